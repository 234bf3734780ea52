//! What the MachineSet controller writes, and reads back.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use nodewright_api::{ClassRef, Machine, MachineSet, MachineSetStatus, MachineSpec, annotations, finalizers};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    object::annotation,
    owned::{Owned, Part},
};
use serde::Serialize;

use crate::shared::ledger::Index;

/// All of a MachineSet's status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StatusPart {
    pub(super) status: MachineSetStatus,
}

impl Owned for StatusPart {
    type Of = MachineSet;
    const PART: Part = Part::Status;

    fn seen(live: &MachineSet) -> Self {
        Self { status: live.status.clone().unwrap_or_default() }
    }
}

/// What a Machine has from its set: all that it is born with. The Machine controller owns the rest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MachinePart {
    metadata: MachineMeta,
    spec: MachineSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct MachineMeta {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<OwnerReference>,
    finalizers: Vec<String>,
}

impl MachinePart {
    /// What the Machine of an index is born with. Without an index: a Machine that the set has adopted.
    pub(super) fn of(set: &MachineSet, index: Option<Index>) -> Self {
        let template = &set.spec.template;
        let mut annotations = template.metadata.annotations.clone().unwrap_or_default();
        annotations.extend(index.map(|index| (annotations::INDEX.to_owned(), index.to_string())));
        for key in [annotations::TRACEPARENT, annotations::EFFECTIVE_CREATION_TIMEOUT] {
            annotations.extend(annotation(set, key).map(|value| (key.to_owned(), value.to_owned())));
        }
        TraceContext::normalize(&mut annotations, annotations::TRACEPARENT);
        let mut spec = template.spec.clone().within_bounds();
        spec.provider_id = String::new();
        let metadata = MachineMeta {
            labels: template.metadata.labels.clone().unwrap_or_default(),
            annotations,
            owner_references: set.controller_owner_ref(&()).into_iter().map(blocking).collect(),
            finalizers: vec![finalizers::MACHINE_CONTROLLER_MANAGER.to_owned()],
        };
        Self { metadata, spec }
    }

    /// What a Machine that lives takes over from the template: node template, timeouts, class kind. Its class is the
    /// one that its VM was made from, and its metadata are what became of what it was born with.
    pub(super) fn for_live(mut self, live: &Machine) -> Self {
        let mut metadata = self.seen_like(live).metadata;
        let born_with = |key: &String| self.metadata.annotations.contains_key(key);
        metadata.annotations = live.metadata.annotations.clone().unwrap_or_default();
        metadata.annotations.retain(|key, _| born_with(key));
        self.metadata = metadata;
        self.spec.class = ClassRef { kind: self.spec.class.kind, ..live.spec.class.clone() };
        self
    }

    /// What a Machine without an owner becomes when the set takes it: the same, with an owner and the finalizer.
    pub(super) fn adopting(self, live: &Machine) -> Self {
        let (owners, finalizers) = (self.metadata.owner_references.clone(), self.metadata.finalizers.clone());
        let mut part = self.for_live(live);
        part.metadata.owner_references = owners;
        part.metadata.finalizers = finalizers;
        part
    }

    /// The Machine to be created under a name.
    pub(super) fn machine(&self, set: &MachineSet, name: String) -> Machine {
        let metadata = ObjectMeta {
            name: Some(name),
            namespace: set.metadata.namespace.clone(),
            labels: Some(self.metadata.labels.clone()),
            annotations: Some(self.metadata.annotations.clone()),
            owner_references: Some(self.metadata.owner_references.clone()),
            finalizers: Some(self.metadata.finalizers.clone()),
            ..ObjectMeta::default()
        };
        Machine { metadata, spec: self.spec.clone(), status: None }
    }
}

/// Garbage collection in the foreground waits for Machines, as it does with machine-controller-manager's.
fn blocking(mut owner: OwnerReference) -> OwnerReference {
    owner.block_owner_deletion = Some(true);
    owner
}

impl Owned for MachinePart {
    type Of = Machine;
    const PART: Part = Part::Main;

    fn seen(live: &Machine) -> Self {
        let meta = &live.metadata;
        let metadata = MachineMeta {
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            owner_references: meta.owner_references.clone().unwrap_or_default(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        };
        let spec = MachineSpec { provider_id: String::new(), ..live.spec.clone() };
        Self { metadata, spec }
    }

    fn seen_like(&self, live: &Machine) -> Self {
        let mut seen = Self::seen(live);
        let wanted = &self.metadata;
        seen.metadata.labels.retain(|key, _| wanted.labels.contains_key(key));
        seen.metadata.annotations.retain(|key, _| wanted.annotations.contains_key(key));
        seen.metadata.owner_references.retain(|owner| wanted.owner_references.iter().any(|own| own.uid == owner.uid));
        seen.metadata.finalizers.retain(|finalizer| wanted.finalizers.contains(finalizer));
        seen
    }
}
