//! What a MachineSet may see.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::Stores,
    object::{Cluster, Key, controller_uid, name, uid},
};

use crate::indexes::MACHINES_BY_SET_NAME;

/// A MachineSet and its Machines.
#[derive(Clone, Debug)]
pub struct World {
    /// The set.
    pub set: Arc<MachineSet>,
    /// The Machines that it controls, by name.
    pub machines: Vec<Arc<Machine>>,
    /// Machines that it does not control and whose names it could ask for.
    pub namesakes: Vec<Arc<Machine>>,
}

impl World {
    pub(super) fn observe(stores: &Stores, key: &Key) -> Option<Self> {
        let set = stores.of::<MachineSet>(Cluster::CONTROL).get(key)?;
        let store = stores.of::<Machine>(Cluster::CONTROL);
        let mut machines = store.owned_by(uid(set.as_ref()));
        machines.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let mut namesakes = store.by(MACHINES_BY_SET_NAME, &key.name);
        namesakes.retain(|machine| controller_uid(machine.as_ref()) != Some(uid(set.as_ref())));
        namesakes.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        Some(Self { set, machines, namesakes })
    }
}
