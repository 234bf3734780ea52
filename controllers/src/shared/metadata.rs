//! The parts of metadata that controllers apply.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use nodewright_api::finalizers;
use nodewright_runtime::object::Kind;
use serde::Serialize;

/// The metadata that an owner gives to an object that it controls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChildMeta {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<OwnerReference>,
    pub(crate) finalizers: Vec<String>,
}

impl ChildMeta {
    /// Adds the finalizer, and the reference to the owner, whose foreground garbage collection waits for the child.
    pub(crate) fn owned_by<K: Kind>(mut self, owner: &K) -> Self {
        let reference = owner.controller_owner_ref(&());
        let reference = reference.map(|it| OwnerReference { block_owner_deletion: Some(true), ..it });
        self.owner_references = reference.into_iter().collect();
        self.finalizers = vec![finalizers::MACHINE_CONTROLLER_MANAGER.to_owned()];
        self
    }

    /// For the creation of the child in the namespace of its owner.
    pub(crate) fn named<K: Kind>(self, owner: &K, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: owner.meta().namespace.clone(),
            labels: Some(self.labels),
            annotations: Some(self.annotations),
            owner_references: Some(self.owner_references),
            finalizers: Some(self.finalizers),
            ..ObjectMeta::default()
        }
    }
}

/// Some annotations, or none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SomeAnnotations {
    annotations: BTreeMap<String, String>,
}

impl SomeAnnotations {
    pub(crate) fn of(key: &str, value: Option<&str>) -> Self {
        Self { annotations: BTreeMap::new() }.and(key, value)
    }

    pub(crate) fn and(mut self, key: &str, value: Option<&str>) -> Self {
        self.annotations.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        self
    }
}
