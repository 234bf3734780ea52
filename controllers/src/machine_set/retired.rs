//! When Machines go whose ordinals are retired, and which have not been deleted yet.
//!
//! The set retires an ordinal and deletes its Machine in one plan. What it chose was a surplus, or did not work, so what is left after
//! a crash in between may go at once. A ledger that a user has edited, or that is another set's, may retire Machines that work and are
//! needed. The two cannot be distinguished. So a Machine that works goes only if the set has enough others, and one that is needed is
//! replaced before, within the bounds of the deployment's strategy.

use std::sync::Arc;

use nodewright_api::{
    Machine, annotations,
    stored::{LEDGER, ORDINAL},
};
use nodewright_runtime::object::{is_deleting, name};

use super::{
    memory::Context,
    removal::{Order, is_chosen},
    snapshot::{Members, Snapshot},
};
use crate::shared::{availability::Availability, fleet::FleetSettings};

pub(super) struct Retired<'a> {
    /// These are deleted now.
    pub(super) due: Vec<&'a Arc<Machine>>,
    /// These work, and the set needs them until others do.
    pub(super) kept: Vec<&'a Arc<Machine>>,
    /// How many Machines there may be besides those that are kept.
    pub(super) room: usize,
}

/// `enough`: how many Machines the set needs.
pub(super) fn retired<'a>(
    context: &Context<'_>,
    members: &Members<'a>,
    enough: usize,
    settings: &FleetSettings,
) -> Retired<'a> {
    let set = members.snapshot.set.as_ref();
    let rule = Availability::new(context.now, set.spec.min_ready_seconds, settings);
    let works = |machine: &Machine| rule.is_available(machine) && !is_chosen(set, machine);
    let (mut working, mut due): (Vec<_>, Vec<_>) = members.retired.iter().copied().partition(|it| works(it));
    let staying = members.staying.iter().filter(|machine| rule.is_available(machine)).count();
    let (surge, unavailable) = bounds(members.snapshot, enough);
    let spare = (staying + working.len()).saturating_sub(enough.saturating_sub(unavailable));
    Order::of(context, members).sort(&mut working);
    let kept = working.split_off(spare.min(working.len()));
    due.extend(working);
    let room = enough.saturating_add(surge).saturating_sub(kept.len());
    Retired { due, kept, room }
}

/// How many Machines there may be above the size of the set, `enough`, and how many below. At least one of both is possible, except
/// as long as other sets of the deployment take its surge.
fn bounds(snapshot: &Snapshot, enough: usize) -> (usize, usize) {
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    let Some(deployment) = snapshot.deployment.as_deref() else { return (1, 0) };
    let (surge, unavailable) = match deployment.update_bounds() {
        Ok(bounds) if (bounds.max_surge, bounds.max_unavailable) != (0, 0) => {
            (count(bounds.max_surge), count(bounds.max_unavailable))
        }
        _ => (1, 0),
    };
    let others = snapshot.population.deployment.saturating_sub(snapshot.machines.len());
    let free = (count(deployment.spec.replicas) + surge).saturating_sub(others.saturating_add(enough));
    (surge.min(free), unavailable)
}

/// What to say about Machines that are kept although the ledger retires them.
pub(super) fn text(members: &Members<'_>, retired: &Retired<'_>) -> Option<String> {
    let first = retired.kept.first()?;
    let (machine, key) = (name(first.as_ref()), annotations::LEDGER);
    let ordinal = members.ordinal(first).map_or_else(String::new, |ordinal| format!(" (ordinal {ordinal})"));
    Some(format!(
        "annotation {key}: {} retires {} machines that work and are needed, such as {machine}{ordinal}: if it was edited, take \
         their ordinals out of it again; until then they are replaced, few at a time, as the strategy of the deployment allows",
        members.ledger,
        retired.kept.len()
    ))
}

/// The same, for the status.
pub(super) fn report(context: &Context<'_>, snapshot: &Snapshot, settings: &FleetSettings) -> Option<String> {
    let ledger = LEDGER.of(snapshot.set.as_ref())?;
    // Names are compared only if there is such a Machine, which is rare.
    let may_be_retired = |machine: &Machine| match ORDINAL.of(machine) {
        Some(ordinal) => ledger.is_retired(ordinal),
        None => ledger.is_noted(name(machine)),
    };
    if !snapshot.machines.iter().any(|machine| !is_deleting(machine.as_ref()) && may_be_retired(machine)) {
        return None;
    }
    let members = Members::of(snapshot, &ledger);
    if members.retired.is_empty() {
        return None;
    }
    let enough = usize::try_from(snapshot.set.spec.replicas).unwrap_or(0);
    text(&members, &retired(context, &members, enough, settings))
}
