//! What a MachineSet may see.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet, annotations, selector};
use nodewright_runtime::{
    cache::Stores,
    object::{Cluster, Key, annotation, controller, controller_uid, is_deleting, name, uid},
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
        let machines = store.owned_by(uid(set.as_ref()));
        let mut namesakes = store.by(MACHINES_BY_SET_NAME, base(&key.name));
        namesakes.retain(|machine| controller_uid(machine.as_ref()) != Some(uid(set.as_ref())));
        namesakes.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let mut orphans = store.by(ORPHAN_MACHINES, &key.namespace);
        orphans.retain(|machine| may_take(&set, machine));
        orphans.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let (contested, orphans) = orphans.into_iter().partition(|machine| is_contested(stores, machine));
        Some(Self { set, machines, orphans, contested, namesakes })
    }
}
