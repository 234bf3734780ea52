//! Which Machines belong to which MachineSet, by owner or by adoption, and which name the same VM.

use std::{collections::BTreeMap, sync::Arc};

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use nodewright_api::{Machine, MachineSet, annotations, selector};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{Kind, annotation, controller, is_deleting, namespace, uid},
};
use serde_json::json;

use crate::shared::{
    CONTROL,
    indexes::{MACHINE_BY_INSTANCE, instance_id},
    ownership::{noted_id, vm_id},
    patch,
};

/// The finalizer that the API server puts on an object that is deleted with `--cascade=orphan`.
pub(crate) const ORPHAN_FINALIZER: &str = "orphan";

/// Whether a selector matches labels. An empty one matches nothing: otherwise its owner would adopt all objects.
pub(crate) fn matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    !selector::is_empty(selector) && selector::matches(selector, labels)
}

pub(crate) fn selects(set: &MachineSet, machine: &Machine) -> bool {
    matches(set.spec.selector.as_ref(), machine.metadata.labels.as_ref())
}

/// Whether a set will adopt a Machine without an owner, once the set has its size.
pub(crate) fn will_adopt(stores: &Stores, set: &MachineSet, machine: &Machine) -> bool {
    would_adopt(set, machine) && !is_contested(stores, machine)
}

/// Whether a set will adopt a Machine without an owner if no other Machine names the same VM.
pub(crate) fn would_adopt(set: &MachineSet, machine: &Machine) -> bool {
    !is_deleting(set) && may_adopt(set, machine)
}

/// Whether a set may adopt a Machine without an owner. Of several such sets the one whose write arrives first does: the write holds for
/// the version of the Machine that the set has seen.
pub(crate) fn may_adopt(set: &MachineSet, machine: &Machine) -> bool {
    selects(set, machine) && !is_deleting(machine)
}

/// Removes the reference to an owner that has let the object go. The object keeps everything else.
pub(crate) fn release(seen: &ObjectMeta, owner: &str) -> Patch {
    let all = seen.owner_references.as_deref().unwrap_or_default();
    let others: Vec<_> = all.iter().filter(|reference| reference.uid != owner).collect();
    if others.len() == all.len() {
        return Patch(vec![]);
    }
    Patch(vec![patch::same_version(seen), patch::set(&["metadata", "ownerReferences"], json!(others))])
}

/// Whether a set has its size: a deployment creates its sets with 0 replicas and sizes them later.
pub(crate) fn is_sized(set: &MachineSet) -> bool {
    controller(set).is_none() || annotation(set, annotations::DESIRED_REPLICAS).is_some()
}

/// Whether an unreadable object may be one that `owner` controls, or become one: it would adopt what its selector matches.
pub(crate) fn may_be_owned<K: Kind>(owner: &K, selector: Option<&LabelSelector>, object: &Unreadable) -> bool {
    let labels = object.metadata().and_then(|metadata| metadata.labels.as_ref());
    let is_orphan = object.controller().is_none() && !object.is_deleting();
    let may_be_owned = object.may_be_controlled_by(uid(owner)) || is_orphan && matches(selector, labels);
    namespace(owner) == object.namespace() && may_be_owned
}

pub(crate) fn conflicting_machines(stores: &Stores, machine: &Machine) -> Vec<Arc<Machine>> {
    let Some(id) = vm_id(machine) else { return vec![] };
    let mut all = stores.of::<Machine>(CONTROL).by(MACHINE_BY_INSTANCE, instance_id(id));
    all.retain(|other| uid(other.as_ref()) != uid(machine) && vm_id(other) == Some(id));
    all
}

/// Whether another Machine has or names the VM of this one, and the VM is not proven to be this one's alone.
pub(crate) fn is_contested(stores: &Stores, machine: &Machine) -> bool {
    let conflicting = conflicting_machines(stores, machine);
    let has_it = noted_id(machine).is_some() && conflicting.iter().all(|other| noted_id(other).is_none());
    !conflicting.is_empty() && !has_it
}
