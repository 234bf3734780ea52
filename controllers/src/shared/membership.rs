//! Which Machines belong to which MachineSet: by owner, or by adoption.

use nodewright_api::{Machine, MachineSet, annotations, selector};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{annotation, controller, is_deleting, namespace, uid},
};

use crate::shared::rivals::is_contested;

/// The finalizer that the API server puts on an object that is deleted with `--cascade=orphan`.
pub(crate) const ORPHAN_FINALIZER: &str = "orphan";

/// Whether a set's selector matches a Machine. An empty selector matches nothing: otherwise the set would adopt all Machines.
pub(crate) fn selects(set: &MachineSet, machine: &Machine) -> bool {
    let selector = set.spec.selector.as_ref();
    !selector::is_empty(selector) && selector::matches(selector, machine.metadata.labels.as_ref())
}

/// Whether a set will adopt a Machine without an owner, once the set has its size. A set that is being deleted adopts
/// nothing, and no set adopts a Machine whose VM belongs to another Machine.
pub(crate) fn will_adopt(stores: &Stores, set: &MachineSet, machine: &Machine) -> bool {
    would_adopt(set, machine) && !is_contested(stores, machine)
}

/// Whether a set will adopt a Machine without an owner if no other Machine names the same VM.
pub(crate) fn would_adopt(set: &MachineSet, machine: &Machine) -> bool {
    !is_deleting(set) && may_adopt(set, machine)
}

/// Whether a set that is not being deleted may adopt a Machine without an owner.
pub(crate) fn may_adopt(set: &MachineSet, machine: &Machine) -> bool {
    selects(set, machine) && !is_deleting(machine)
}

/// Whether `spec.replicas` of a set is what a user or a deployment wants. A deployment creates its sets with 0 replicas
/// and sizes them later.
pub(crate) fn is_sized(set: &MachineSet) -> bool {
    controller(set).is_none() || annotation(set, annotations::DESIRED_REPLICAS).is_some()
}

/// Whether an unreadable Machine may be one of a set's Machines, or become one.
pub(crate) fn may_be_member(set: &MachineSet, machine: &Unreadable) -> bool {
    if namespace(set) != machine.namespace() {
        return false;
    }
    let selector = set.spec.selector.as_ref();
    let labels = machine.metadata().and_then(|metadata| metadata.labels.as_ref());
    let is_orphan = machine.controller().is_none() && !machine.is_deleting();
    let would_adopt = is_orphan && !selector::is_empty(selector) && selector::matches(selector, labels);
    machine.may_be_controlled_by(uid(set)) || would_adopt
}
