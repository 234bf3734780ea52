//! Which Machines a set deletes, and which ordinals it retires before.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase, MachineSet, annotations};
use nodewright_runtime::{
    effect::Never,
    object::{annotation, name},
    plan::Context,
};

use super::{
    deletion_order::{self, ByAge, marked},
    members::{BATCH, Members},
};
use crate::shared::ledger::Ledger;

/// Machines to delete.
pub(super) struct Removal<'a> {
    /// The ledger to write first: with these Machines retired, and with the ones that another client deletes.
    pub(super) ledger: Ledger,
    pub(super) machines: Vec<&'a Arc<Machine>>,
}

/// The removal of these Machines, and of those that are retired and not yet deleted.
pub(super) fn removal<'a>(members: &Members<'a>, victims: Vec<&'a Arc<Machine>>) -> Removal<'a> {
    let ordinals = victims.iter().filter_map(|machine| members.ordinal(machine));
    let unnumbered = victims.iter().filter(|machine| members.ordinal(machine).is_none());
    let present = |wanted: &str| members.snapshot.machines.iter().any(|machine| name(machine.as_ref()) == wanted);
    let ledger = members
        .ledger
        .retire(ordinals.chain(members.leaving.iter().copied()))
        .note(unnumbered.map(|machine| name(machine.as_ref()).to_owned()), present);
    let machines = members.doomed.iter().copied().take(BATCH).chain(victims).collect();
    Removal { ledger, machines }
}

/// The Machines to delete: those that failed, those that the autoscaler chose, and of the others the surplus in deletion
/// order. The surplus is counted without the former, so that no other Machine is deleted in their place.
pub(super) fn victims<'a>(
    context: &Context<'_, Never>,
    members: &Members<'a>,
    replicas: usize,
) -> Vec<&'a Arc<Machine>> {
    let set = members.snapshot.set.as_ref();
    let mut staying = members.staying.clone();
    deletion_order::sort(&mut staying, ByAge::parse(annotation(set, annotations::DELETION_ORDER)));
    let goes =
        |machine: &Machine| is_chosen(set, machine) || (is_failed(machine) && !is_preserved(machine, context.now));
    let (mut victims, others): (Vec<_>, Vec<_>) = staying.into_iter().partition(|machine| goes(machine));
    let surplus = others.len().saturating_sub(replicas);
    victims.extend(others.into_iter().take(surplus));
    victims.truncate(BATCH);
    victims
}

fn is_failed(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Failed
}

/// Whether the autoscaler has marked a Machine, and the set has the replica count that was written with the mark.
fn is_chosen(set: &MachineSet, machine: &Machine) -> bool {
    let candidate = annotation(machine, annotations::MACHINE_PRIORITY) == Some(annotations::MACHINE_PRIORITY_CANDIDATE);
    let changed = annotation(set, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME).and_then(|time| time.parse().ok());
    candidate && marked(machine).zip(changed).is_some_and(|(marked, changed)| marked <= changed)
}

/// Whether a Machine is kept for diagnosis: until its expiry, or from the request until the expiry is set.
fn is_preserved(machine: &Machine, now: Timestamp) -> bool {
    let requested = annotation(machine, annotations::PRESERVE).is_some_and(|value| {
        [annotations::PRESERVE_NOW, annotations::PRESERVE_WHEN_FAILED, annotations::PRESERVE_AUTO].contains(&value)
    });
    preserve_expiry(machine).map_or(requested, |expiry| expiry > now)
}

fn preserve_expiry(machine: &Machine) -> Option<Timestamp> {
    Some(machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0)
}

/// When the preservation of the first failed Machine ends: then it is replaced.
pub(super) fn next_expiry(members: &Members<'_>, now: Timestamp) -> Option<Timestamp> {
    let failed = members.staying.iter().filter(|machine| is_failed(machine));
    failed.filter_map(|machine| preserve_expiry(machine)).filter(|expiry| *expiry > now).min()
}
