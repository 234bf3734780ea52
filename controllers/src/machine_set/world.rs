//! What a MachineSet may see.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet, annotations, selector};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{Cluster, Key, annotation, controller, controller_uid, is_deleting, name, namespace, uid},
};

use crate::{
    claim::is_contested,
    indexes::{MACHINES_BY_SET_NAME, ORPHAN_MACHINES},
    ledger::base,
};

/// A MachineSet and its Machines.
#[derive(Clone, Debug)]
pub struct World {
    /// The set.
    pub set: Arc<MachineSet>,
    /// The Machines that it controls, by name.
    pub machines: Vec<Arc<Machine>>,
    /// Machines without an owner that it could take, by name.
    pub orphans: Vec<Arc<Machine>>,
    /// Machines without an owner that it selects and does not take, because their VM is another Machine's, or named by one.
    pub contested: Vec<Arc<Machine>>,
    /// Machines that it does not control and whose names it could ask for.
    pub namesakes: Vec<Arc<Machine>>,
    /// Machines that exist and cannot be read, by name: all of the namespace.
    pub unreadable: Vec<Arc<Unreadable>>,
}

/// Whether a set's selector matches a Machine. An empty one matches nothing: it would take everything.
pub(super) fn selects(set: &MachineSet, machine: &Machine) -> bool {
    let selector = set.spec.selector.as_ref();
    !selector::is_empty(selector) && selector::matches(selector, machine.metadata.labels.as_ref())
}

/// Whether a set is going to take a Machine that nobody owns, once it has been given its size: one that is being deleted
/// takes nobody, and none takes a Machine whose VM is another Machine's.
pub(crate) fn will_take(stores: &Stores, set: &MachineSet, machine: &Machine) -> bool {
    would_take(set, machine) && !is_contested(stores, machine)
}

/// Whether a set is going to take a Machine that nobody owns, if its VM is its own.
pub(crate) fn would_take(set: &MachineSet, machine: &Machine) -> bool {
    !is_deleting(set) && may_take(set, machine)
}

/// Whether a set may take a Machine that nobody owns.
pub(super) fn may_take(set: &MachineSet, machine: &Machine) -> bool {
    selects(set, machine) && !is_deleting(machine)
}

/// Whether the number of replicas is what somebody wants: a set is born by its deployment with none, and has to wait until
/// it is given its size.
pub(crate) fn is_sized(set: &MachineSet) -> bool {
    controller(set).is_none() || annotation(set, annotations::DESIRED_REPLICAS).is_some()
}

impl World {
    pub(super) fn observe(stores: &Stores, key: &Key) -> Option<Self> {
        let set = stores.of::<MachineSet>(Cluster::CONTROL).get(key)?;
        let store = stores.of::<Machine>(Cluster::CONTROL);
        let mut machines = store.owned_by(uid(set.as_ref()));
        // Of one that can be read no longer the store has the last version that could be: it says too little to choose a
        // victim by, and after a restart it would not be there.
        machines.retain(|machine| !store.is_unreadable(&key.namespace, name(machine.as_ref())));
        let mut unreadable = store.unreadable();
        unreadable.retain(|machine| machine.namespace() == &*key.namespace);
        let mut namesakes = store.by(MACHINES_BY_SET_NAME, base(&key.name));
        namesakes.retain(|machine| controller_uid(machine.as_ref()) != Some(uid(set.as_ref())));
        namesakes.retain(|machine| !store.is_unreadable(&key.namespace, name(machine.as_ref())));
        namesakes.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let mut orphans = store.by(ORPHAN_MACHINES, &key.namespace);
        orphans.retain(|machine| may_take(&set, machine));
        orphans.retain(|machine| !store.is_unreadable(&key.namespace, name(machine.as_ref())));
        orphans.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let (contested, orphans) = orphans.into_iter().partition(|machine| is_contested(stores, machine));
        Some(Self { set, machines, orphans, contested, namesakes, unreadable })
    }

    /// The unreadable Machines that may be the set's: it controls them, would take them, or nothing is known of them.
    pub(super) fn unreadable_members(&self) -> impl Iterator<Item = &Unreadable> {
        self.unreadable.iter().map(AsRef::as_ref).filter(|machine| may_be_member(&self.set, machine))
    }
}

/// Whether an unreadable Machine may be one of a set's, or become one.
pub(crate) fn may_be_member(set: &MachineSet, machine: &Unreadable) -> bool {
    if namespace(set) != machine.namespace() {
        return false;
    }
    let selector = set.spec.selector.as_ref();
    let labels = machine.metadata().and_then(|metadata| metadata.labels.as_ref());
    let is_orphan = machine.controller().is_none() && !machine.is_deleting();
    let would_take = is_orphan && !selector::is_empty(selector) && selector::matches(selector, labels);
    machine.may_be_controlled_by(uid(set)) || would_take
}
