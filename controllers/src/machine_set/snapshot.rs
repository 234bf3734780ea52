//! The snapshot of a MachineSet.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{ObjectRef, controller_uid, name, uid},
};

use crate::shared::clusters::CONTROL;
use crate::shared::{
    indexes::{MACHINES_BY_SET_NAME, ORPHAN_MACHINES},
    ledger::base,
    membership::{may_adopt, may_be_member},
    rivals::is_contested,
};

/// A MachineSet and its Machines.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The set.
    pub set: Arc<MachineSet>,
    /// The Machines that it controls, by name.
    pub machines: Vec<Arc<Machine>>,
    /// Machines without an owner that it may adopt, by name.
    pub orphans: Vec<Arc<Machine>>,
    /// Machines without an owner that it selects but does not adopt, because another Machine has or names the same VM.
    pub contested: Vec<Arc<Machine>>,
    /// Machines that it does not control and that have a name which it could generate.
    pub namesakes: Vec<Arc<Machine>>,
    /// Existing Machines that cannot be read, by name: all of the namespace.
    pub unreadable: Vec<Arc<Unreadable>>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef) -> Option<Self> {
        let set = stores.of::<MachineSet>(CONTROL).get(key)?;
        let store = stores.of::<Machine>(CONTROL);
        // The store has the last readable version of a Machine that has become unreadable. It is not enough to choose Machines
        // to delete, and a restart loses it.
        let readable = |mut machines: Vec<Arc<Machine>>| {
            machines.retain(|machine| !store.is_unreadable(&key.namespace, name(machine.as_ref())));
            machines
        };
        let by_name = |mut machines: Vec<Arc<Machine>>| {
            machines.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
            machines
        };
        let machines = readable(store.owned_by(uid(set.as_ref())));
        let mut unreadable = store.unreadable();
        unreadable.retain(|machine| machine.namespace() == &*key.namespace);
        let mut namesakes = store.by(MACHINES_BY_SET_NAME, base(&key.name));
        namesakes.retain(|machine| controller_uid(machine.as_ref()) != Some(uid(set.as_ref())));
        let mut orphans = store.by(ORPHAN_MACHINES, &key.namespace);
        orphans.retain(|machine| may_adopt(&set, machine));
        let (namesakes, orphans) = (by_name(readable(namesakes)), by_name(readable(orphans)));
        let (contested, orphans) = orphans.into_iter().partition(|machine| is_contested(stores, machine));
        Some(Self { set, machines, orphans, contested, namesakes, unreadable })
    }

    /// The unreadable Machines that may be the set's: it controls them, would adopt them, or their owner is unknown.
    pub(super) fn unreadable_members(&self) -> impl Iterator<Item = &Unreadable> {
        self.unreadable.iter().map(AsRef::as_ref).filter(|machine| may_be_member(&self.set, machine))
    }
}
