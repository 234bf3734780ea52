//! What a MachineSet may see.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{Key, controller_uid, name, uid},
};

use crate::shared::clusters::CONTROL;
use crate::shared::{
    indexes::{MACHINES_BY_SET_NAME, ORPHAN_MACHINES},
    ledger::base,
    membership::{may_adopt, may_be_member},
    ownership::is_contested,
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

impl World {
    pub(super) fn observe(stores: &Stores, key: &Key) -> Option<Self> {
        let set = stores.of::<MachineSet>(CONTROL).get(key)?;
        let store = stores.of::<Machine>(CONTROL);
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
        orphans.retain(|machine| may_adopt(&set, machine));
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
