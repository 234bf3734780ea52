//! Why a set has not the machines that it should have.

use jiff::Timestamp;
use nodewright_api::{ConditionStatus, Machine, MachinePhase, MachineSet, conditions::machine_set as kinds};
use nodewright_runtime::object::name;

use super::{
    explanation::{Finding, Link},
    kept_by_others, machine, remedies,
};
use crate::{
    names::{Target, TargetKind},
    output::{State, counted},
    snapshot::{Snapshot, event_time, revision},
};

pub(crate) fn subject(set: &MachineSet) -> String {
    Target::new(TargetKind::Set, name(set)).to_string()
}

/// What keeps a set from the number of machines that it wants.
pub(crate) fn finding(snapshot: &Snapshot, set: &MachineSet) -> Finding {
    let found = if set.is_deleting() { terminating(snapshot, set) } else { living(snapshot, set) };
    found.below([described(snapshot, set)])
}

pub(crate) fn described(snapshot: &Snapshot, set: &MachineSet) -> Link {
    let machines = snapshot.machines_of(set);
    let up = machines.iter().filter(|machine| is_up(machine)).count();
    let text = format!(
        "{} (revision {}): {} wanted, {} exist, {up} run",
        subject(set),
        revision(set),
        set.spec.replicas,
        machines.len()
    );
    Link::new("set", text)
}

pub(crate) fn is_up(machine: &Machine) -> bool {
    !machine.is_deleting() && matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available)
}

fn terminating(snapshot: &Snapshot, set: &MachineSet) -> Finding {
    let begun = set.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    if let Some(found) = failure(set).or_else(|| blocker(snapshot, &[set])) {
        return found;
    }
    let text = "its machines are gone, and finalizers of others keep it";
    if let Some(found) = kept_by_others(set, subject(set), text) {
        return found;
    }
    Finding::waiting(subject(set), "Deleting", "it is being deleted, and no machine is left").since(begun)
}

fn living(snapshot: &Snapshot, set: &MachineSet) -> Finding {
    let found = failure(set).map(|found| concrete(snapshot, set, found));
    let found = found.or_else(|| frozen(set)).or_else(|| blocker(snapshot, &[set]));
    if let Some(found) = found {
        return found;
    }
    let wanted = usize::try_from(set.spec.replicas).unwrap_or_default();
    let present = snapshot.machines_of(set).len();
    if present != wanted {
        return short_of(snapshot, set, present, wanted);
    }
    if is_unseen(set) {
        return unseen(subject(set));
    }
    Finding::done(subject(set), format!("{} run, as wanted", counted(wanted, "machine")))
}

/// A failure that is about a machine is better explained by that one.
fn concrete(snapshot: &Snapshot, set: &MachineSet, found: Finding) -> Finding {
    if found.reason != nodewright_api::reasons::machine_set::CREATION_BACKOFF {
        return found;
    }
    blocker(snapshot, &[set]).filter(|it| it.state == State::Blocked).unwrap_or(found)
}

/// Whether no controller has seen its newest spec.
fn is_unseen(set: &MachineSet) -> bool {
    let seen = set.status.as_ref().map_or(0, |status| status.observed_generation);
    set.metadata.generation.is_some_and(|generation| generation > seen)
}

pub(crate) fn unseen(of: String) -> Finding {
    let text = "no manager has seen its newest spec: the controller does not run for this namespace, or may not write \
        its status";
    Finding::waiting(of, "NotSeen", text).changed_by_all(remedies::of("NotSeen"))
}

fn short_of(snapshot: &Snapshot, set: &MachineSet, present: usize, wanted: usize) -> Finding {
    let number = format!("it has {present} of {}", counted(wanted, "machine"));
    let warning = snapshot.warning("MachineSet", name(set)).filter(|_| present < wanted);
    if let Some(event) = warning {
        let (reason, text) =
            (event.reason.as_deref().unwrap_or_default(), event.message.as_deref().unwrap_or_default());
        let found = Finding::blocked(subject(set), reason, format!("{number}: {text}")).since(event_time(event));
        return found.changed_by_all(remedies::of(reason));
    }
    if is_unseen(set) {
        return unseen(subject(set));
    }
    Finding::waiting(subject(set), "Scaling", format!("{number}: they are being created or deleted"))
}

/// The condition `ReplicaFailure`.
pub(crate) fn failure(set: &MachineSet) -> Option<Finding> {
    let condition = set.condition(kinds::REPLICA_FAILURE).filter(|it| it.status == ConditionStatus::True)?;
    let found = Finding::blocked(subject(set), &condition.reason, condition.message.clone());
    let since: Option<Timestamp> = condition.last_transition_time.as_ref().map(|time| time.0);
    Some(found.since(since).changed_by_all(remedies::of_refusal(&condition.reason, &condition.message)))
}

pub(crate) fn frozen(set: &MachineSet) -> Option<Finding> {
    if !set.is_frozen() {
        return None;
    }
    let condition = set.condition(kinds::FROZEN);
    let text = condition.map_or("it is frozen: it creates no machine", |condition| condition.message.as_str());
    let found = Finding::blocked(subject(set), "Frozen", format!("it is frozen: {text}"));
    let since = condition.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
    Some(found.since(since).changed_by_all(remedies::of("Frozen")))
}

/// The machine that keeps sets from their goal: one that is blocked before one that waits, one that goes before one that comes,
/// the oldest first. How many others wait as well is added.
pub(crate) fn blocker(snapshot: &Snapshot, sets: &[&MachineSet]) -> Option<Finding> {
    let machines = sets.iter().flat_map(|set| snapshot.machines_of(set));
    let mut open: Vec<_> = machines
        .map(|machine| (machine, machine::finding(snapshot, machine)))
        .filter(|(_, found)| found.state != State::Done)
        .collect();
    open.sort_by_key(|(machine, found)| {
        let time = machine.metadata.deletion_timestamp.as_ref().or(machine.metadata.creation_timestamp.as_ref());
        (found.state != State::Blocked, !machine.is_deleting(), time.map(|time| time.0), name(*machine).to_owned())
    });
    let others = open.len().saturating_sub(1);
    let (_, first) = open.into_iter().next()?;
    let also = (others > 0).then(|| format!("{} not as wanted: see kubectl nodewright tree", are(others)));
    Some(first.also(also))
}

fn are(others: usize) -> String {
    let verb = if others == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(others, "more machine"))
}
