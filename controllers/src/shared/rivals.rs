//! Machines that name the same VM.

use std::sync::Arc;

use nodewright_api::Machine;
use nodewright_runtime::{cache::Stores, object::uid};

use crate::shared::{
    clusters::CONTROL,
    indexes::{MACHINE_BY_INSTANCE, instance_id},
    ownership::{noted_id, vm_id},
};

/// The other Machines that name the same VM.
pub(crate) fn rivals(stores: &Stores, machine: &Machine) -> Vec<Arc<Machine>> {
    let Some(id) = vm_id(machine) else { return vec![] };
    let mut all = stores.of::<Machine>(CONTROL).by(MACHINE_BY_INSTANCE, instance_id(id));
    all.retain(|other| uid(other.as_ref()) != uid(machine) && vm_id(other) == Some(id));
    all
}

/// Whether another Machine has or names the VM of this one, and the VM is not proven to be this one's alone.
pub(crate) fn is_contested(stores: &Stores, machine: &Machine) -> bool {
    let rivals = rivals(stores, machine);
    let has_it = noted_id(machine).is_some() && rivals.iter().all(|rival| noted_id(rival).is_none());
    !rivals.is_empty() && !has_it
}
