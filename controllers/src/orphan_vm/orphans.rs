//! Which VMs of a list no Machine has, or why the list does not say.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_api::{Machine, MachinePhase};
use nodewright_driver::ListedVm;
use nodewright_runtime::object::{is_deleting, name};

use super::{
    calls::{Listed, Orphan},
    snapshot::{BlockedBy, NamespaceMachines},
};
use crate::shared::{
    indexes::instance_id,
    ownership::{noted_id, vm_id},
};

/// The list has not all VMs.
pub(super) const INCOMPLETE: &str = "VMListIncomplete";
/// The list has no VM of a Machine of ours: it may be the list of another cluster or account.
pub(super) const FOREIGN: &str = "VMListForeign";

/// The orphans of a list, in the order of their ids. The list is not believed if it lacks a VM that must exist, or has none of
/// ours.
pub(super) fn orphans(listed: &Listed, fleet: &NamespaceMachines) -> Result<Vec<Orphan>, BlockedBy> {
    let shown: BTreeMap<&str, &ListedVm> = listed.iter().map(|(id, vm)| (instance_id(id), vm)).collect();
    let has_vm = |machine: &&Machine| noted_id(machine).is_some_and(|id| shown.contains_key(instance_id(id)));
    let machines = || fleet.listed.iter().map(AsRef::as_ref);
    let mut missing =
        machines().filter(|machine| is_running(machine) && !has_vm(machine)).map(name).collect::<Vec<_>>();
    missing.sort_unstable();
    if let Some(first) = missing.first() {
        let text = format!(
            "the provider's list of {} VMs lacks those of {} running machines, such as {first}: orphans cannot be evaluated",
            listed.len(),
            missing.len()
        );
        return Err((INCOMPLETE, text));
    }
    let mut tags: BTreeMap<&str, Vec<(&str, &ListedVm)>> = BTreeMap::new();
    for (id, vm) in listed.iter().filter(|(_, vm)| !vm.is_deleting) {
        tags.entry(&vm.machine).or_default().push((id, vm));
    }
    let of_machine = tags.into_iter().flat_map(|(machine, vms)| orphans_of(fleet, machine, &vms));
    let mut orphans: Vec<_> = of_machine.collect();
    orphans.sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
    if !orphans.is_empty() && !shows_ours(listed, fleet) {
        let text = format!(
            "none of the {} VMs that the provider lists is of a machine here: the class may name another cluster or account, their \
             machines may be in another namespace, or are lost; delete the VMs at the provider if they are of no use to anybody",
            listed.len()
        );
        return Err((FOREIGN, text));
    }
    Ok(orphans)
}

/// Whether a list has the VM of a Machine here.
pub(super) fn shows_ours(listed: &Listed, fleet: &NamespaceMachines) -> bool {
    let own: BTreeSet<&str> = fleet.listed.iter().filter_map(|machine| noted_id(machine)).map(instance_id).collect();
    listed.keys().any(|id| own.contains(instance_id(id)))
}

fn is_running(machine: &Machine) -> bool {
    let phases = [MachinePhase::Running, MachinePhase::Available];
    !is_deleting(machine) && phases.contains(machine.phase()) && noted_id(machine).is_some()
}

/// The orphans among the VMs whose tags name one Machine.
fn orphans_of(fleet: &NamespaceMachines, machine: &str, vms: &[(&str, &ListedVm)]) -> Vec<Orphan> {
    let keeps = match fleet.machine(machine) {
        None if fleet.may_create(machine) && !fleet.has_retired(machine) => return vec![],
        None => None,
        Some(live) => match kept(live, vms) {
            Some(keeps) => Some(keeps),
            None => return vec![],
        },
    };
    let is_free = |id: &str| !fleet.names(id) && keeps.is_none_or(|keeps| instance_id(keeps) != instance_id(id));
    let explained = keeps.is_some() || fleet.has_retired(machine);
    let orphan = |id: &str| Orphan {
        provider_id: id.to_owned(),
        machine: machine.to_owned(),
        keeps: keeps.map(str::to_owned),
        explained,
    };
    vms.iter().map(|(id, _)| *id).filter(|id| is_free(id)).map(orphan).collect()
}

/// Which of several VMs a Machine keeps: the one that it has, if the list shows that, or the oldest if it has none yet. `None` if
/// that is not certain, and none of them may go.
fn kept<'a>(machine: &Machine, vms: &[(&'a str, &ListedVm)]) -> Option<&'a str> {
    if is_deleting(machine) || vms.len() < 2 {
        return None;
    }
    match (noted_id(machine), vm_id(machine)) {
        (Some(own), _) => vms.iter().map(|(id, _)| *id).find(|id| instance_id(id) == instance_id(own)),
        (None, Some(_)) => None,
        (None, None) => {
            let is_dated = vms.iter().all(|(_, vm)| vm.created.is_some());
            vms.iter().filter(|_| is_dated).min_by_key(|(id, vm)| (vm.created, *id)).map(|(id, _)| *id)
        }
    }
}
