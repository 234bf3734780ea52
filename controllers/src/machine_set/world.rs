//! What a MachineSet may see.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet, selector};
use nodewright_runtime::{
    cache::Stores,
    object::{Cluster, Key, controller_uid, is_deleting, name, uid},
};

use crate::{
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
    /// Machines that it does not control and whose names it could ask for.
    pub namesakes: Vec<Arc<Machine>>,
}

/// Whether a set's selector matches a Machine. An empty one matches nothing: it would take everything.
pub(super) fn selects(set: &MachineSet, machine: &Machine) -> bool {
    let selector = set.spec.selector.as_ref();
    !selector::is_empty(selector) && selector::matches(selector, machine.metadata.labels.as_ref())
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
        orphans.retain(|machine| selects(&set, machine) && !is_deleting(machine.as_ref()));
        orphans.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        Some(Self { set, machines, orphans, namesakes })
    }
}
