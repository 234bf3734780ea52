//! The rules of Kubernetes that differ between kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use self::Habit::{CreateOnUpdate, Generations, ReturnsDeleted, UnconditionalUpdate};
use super::fields::Shape;
use super::fields::shape::{builtin, of_schema};
use super::route::Resource;
use super::validations::{self, Immutable};

/// How the status of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusRule {
    /// There is no status, or it is an ordinary field.
    None,
    /// Only through the status endpoint.
    Apart,
    /// Through the status endpoint, or on creation.
    ApartButAtBirth,
}

/// A behavior of some kinds only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    /// `metadata.generation` counts changes.
    Generations,
    /// A PUT needs no resource version.
    UnconditionalUpdate,
    /// A PUT creates a missing object.
    CreateOnUpdate,
    /// A deletion is answered with the deleted object, and not with a Status.
    ReturnsDeleted,
}

/// Rules in which kinds differ.
#[allow(clippy::struct_excessive_bools)] // they are independent of one another
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) status: StatusRule,
    habits: &'static [Habit],
}

impl Rules {
    pub(super) fn has(&self, habit: Habit) -> bool {
        self.habits.contains(&habit)
    }
}

/// The paths of the scale's fields in the objects of a kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) replicas: String,
    pub(super) status_replicas: String,
    pub(super) selector: Option<String>,
}

/// A kind and its rules.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Empty until an object or a definition has named the kind.
    pub(super) name: String,
    pub(super) is_custom: bool,
    pub(super) rules: Rules,
    pub(super) scale: Option<Scale>,
    pub(super) shape: Shape,
    pub(super) validations: Vec<Immutable>,
}

const CUSTOM: Rules = Rules { status: StatusRule::Apart, habits: &[Generations] };
const PLAIN: Rules = Rules { status: StatusRule::None, habits: &[UnconditionalUpdate] };
const WITH_STATUS: Rules = Rules { status: StatusRule::Apart, habits: &[UnconditionalUpdate] };
const RETURNED: Rules = Rules { status: StatusRule::Apart, habits: &[UnconditionalUpdate, ReturnsDeleted] };

/// From the storage strategies of Kubernetes 1.36.
const BUILTIN: &[(&str, &str, &str, Rules)] = &[
    ("", "configmaps", "ConfigMap", PLAIN),
    ("", "events", "Event", Rules { habits: &[UnconditionalUpdate, CreateOnUpdate], ..PLAIN }),
    ("", "namespaces", "Namespace", RETURNED),
    ("", "nodes", "Node", Rules { status: StatusRule::ApartButAtBirth, ..PLAIN }),
    ("", "persistentvolumeclaims", "PersistentVolumeClaim", RETURNED),
    ("", "persistentvolumes", "PersistentVolume", RETURNED),
    ("", "pods", "Pod", Rules { habits: &[Generations, UnconditionalUpdate, ReturnsDeleted], ..WITH_STATUS }),
    ("", "secrets", "Secret", PLAIN),
    ("", "serviceaccounts", "ServiceAccount", Rules { status: StatusRule::None, ..RETURNED }),
    ("coordination.k8s.io", "leases", "Lease", Rules { habits: &[CreateOnUpdate], ..PLAIN }),
    ("policy", "poddisruptionbudgets", "PodDisruptionBudget", Rules { habits: &[Generations], ..WITH_STATUS }),
    ("storage.k8s.io", "volumeattachments", "VolumeAttachment", Rules { habits: &[ReturnsDeleted], ..WITH_STATUS }),
];

/// All kinds that were used so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds(BTreeMap<Resource, Arc<Kind>>);

impl Kinds {
    pub(super) fn get(&self, resource: &Resource) -> Arc<Kind> {
        self.0.get(resource).cloned().unwrap_or_else(|| Arc::new(guess(resource)))
    }

    /// Like [`Kinds::get`], but keeps the guessed rules, and takes the name of the kind from an object.
    pub(super) fn learn(&mut self, resource: &Resource, name: Option<&str>) -> Arc<Kind> {
        if !self.0.contains_key(resource) {
            self.0.insert(resource.clone(), Arc::new(guess(resource)));
        }
        if let (Some(name), Some(kind)) = (name, self.0.get_mut(resource))
            && kind.name.is_empty()
        {
            name.clone_into(&mut Arc::make_mut(kind).name);
        }
        self.get(resource)
    }

    /// Declares the kinds of a `CustomResourceDefinition`.
    pub(super) fn declare(&mut self, definition: &Value) {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        for version in spec["versions"].as_array().into_iter().flatten() {
            let resource = Resource {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                plural: text(&spec["names"]["plural"]),
            };
            let subresources = &version["subresources"];
            let path = |value: &Value| value.as_str().map(|path| path.replace('.', "/"));
            let scale = path(&subresources["scale"]["specReplicasPath"]).map(|replicas| Scale {
                replicas,
                status_replicas: path(&subresources["scale"]["statusReplicasPath"]).unwrap_or_default(),
                selector: path(&subresources["scale"]["labelSelectorPath"]),
            });
            let status = if subresources["status"].is_object() { StatusRule::Apart } else { StatusRule::None };
            let kind = Kind {
                name: text(&spec["names"]["kind"]),
                is_custom: true,
                rules: Rules { status, ..CUSTOM },
                scale,
                shape: of_schema(&version["schema"]["openAPIV3Schema"]),
                validations: validations::of_schema(&version["schema"]["openAPIV3Schema"]),
            };
            self.0.insert(resource, Arc::new(kind));
        }
    }
}

/// The rules of an undeclared kind.
fn guess(resource: &Resource) -> Kind {
    let found = BUILTIN.iter().find(|(group, plural, ..)| *group == resource.group && *plural == resource.plural);
    let is_custom = resource.is_custom();
    let (name, rules) = match found {
        Some((_, _, name, rules)) => (*name, *rules),
        None if is_custom => ("", CUSTOM),
        None if matches!(resource.group.as_str(), "apps" | "batch") => {
            ("", Rules { habits: &[Generations, UnconditionalUpdate], ..WITH_STATUS })
        }
        None => ("", WITH_STATUS),
    };
    let scale = is_custom.then(|| Scale {
        replicas: "/spec/replicas".to_owned(),
        status_replicas: "/status/replicas".to_owned(),
        selector: Some("/status/selector".to_owned()),
    });
    Kind { name: name.to_owned(), is_custom, rules, scale, shape: builtin(name), validations: vec![] }
}
