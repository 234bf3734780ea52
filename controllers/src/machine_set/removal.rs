//! Which Machines a set deletes and in which order, and which ordinals it retires before: first those whose ordinals are retired
//! already (`retired`), then those that failed or that the cluster autoscaler chose, then the surplus. Within each group the
//! order is machine-controller-manager's, except for updates in place ([`Order::sort`]).

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    Machine, MachinePhase, MachineSet, annotations,
    stored::{CreationRound, MARKED_FOR_DELETION, SCALER_CHANGE},
};
use nodewright_runtime::object::{annotation, created, name};

use super::{
    memory::Context,
    snapshot::{BATCH, Members},
};
use crate::shared::{
    creation_backoff::CreationBackoff,
    fleet::FleetSettings,
    in_place::is_moving,
    ledger::Ledger,
    preservation::{is_auto_preserved, kept_until, preserve_expiry},
};

#[derive(Debug)]
pub(super) struct Removal<'a> {
    /// The ledger to write first: with these Machines retired, and with the ones that another client deletes.
    pub(super) ledger: Ledger,
    pub(super) machines: Vec<&'a Arc<Machine>>,
    /// The round of replacements that begins.
    pub(super) round: Option<CreationRound>,
}

/// `retired`: Machines whose ordinals are retired already, and which go, too.
pub(super) fn removal<'a>(
    members: &Members<'a>,
    retired: &[&'a Arc<Machine>],
    candidates: Vec<&'a Arc<Machine>>,
    backoff: &CreationBackoff<'_>,
) -> Removal<'a> {
    let round = backoff.begin(candidates.iter().map(AsRef::as_ref), members.next_ordinal());
    let ordinals = candidates.iter().filter_map(|machine| members.ordinal(machine));
    let unnumbered = candidates.iter().filter(|machine| members.ordinal(machine).is_none());
    let present = |wanted: &str| members.snapshot.machines.iter().any(|machine| name(machine.as_ref()) == wanted);
    let ledger = members
        .ledger
        .retire(ordinals.chain(members.leaving.iter().copied()))
        .note(unnumbered.map(|machine| name(machine.as_ref()).to_owned()), present);
    let machines = retired.iter().copied().take(BATCH).chain(candidates).collect();
    Removal { ledger, machines, round }
}

/// The Machines to delete: those that failed, those that the autoscaler chose, and of the others the surplus. `preserved`: those that
/// the set preserves from now on.
pub(super) fn deletion_candidates<'a>(
    context: &Context<'_>,
    members: &Members<'a>,
    replicas: usize,
    backoff: &CreationBackoff<'_>,
    preserved: &[&Arc<Machine>],
) -> Vec<&'a Arc<Machine>> {
    let (set, settings) = (members.snapshot.set.as_ref(), &members.snapshot.settings.fleet);
    let order = Order::of(context, members);
    let is_preserved =
        |machine: &Machine| kept_until(machine, settings.preserve_timeout).is_some_and(|until| until > context.now);
    let begins = |machine: &Machine| preserved.iter().any(|other| name(other.as_ref()) == name(machine));
    let is_kept = |machine: &Machine| is_preserved(machine) || begins(machine) || backoff.kept_until(machine).is_some();
    let is_known = known_from(context) <= context.now;
    let goes = |machine: &Machine| is_chosen(set, machine) || (is_known && is_failed(machine) && !is_kept(machine));
    let (mut candidates, mut others): (Vec<_>, Vec<_>) = members.staying.iter().partition(|machine| goes(machine));
    if candidates.is_empty() && others.len() <= replicas {
        return vec![];
    }
    // Those that have moved here are counted before any goes.
    candidates.retain(|machine: &&Arc<Machine>| !is_moving(machine));
    others.retain(|machine: &&Arc<Machine>| !is_moving(machine));
    order.sort(&mut candidates);
    let surplus = others.len().saturating_sub(replicas);
    if surplus > 0 {
        order.sort(&mut others);
        candidates.extend(others.into_iter().take(surplus));
    }
    candidates.truncate(BATCH);
    candidates
}

/// From when on a failed Machine is known to bear what its Node asks for. The Machine controller sees to that before a Machine fails; one
/// that failed under another manager, or whose Node was annotated while no manager ran, bears it soon after ours has begun to lead.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(10);

fn known_from(context: &Context<'_>) -> Timestamp {
    context.leader_since.saturating_add(KNOWN_AFTER).unwrap_or(context.now)
}

pub(super) fn is_failed(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Failed
}

/// Whether the autoscaler has marked a Machine, and the set has the replica count that was written with the mark.
pub(super) fn is_chosen(set: &MachineSet, machine: &Machine) -> bool {
    let changed = SCALER_CHANGE.of(set);
    machine.is_removal_candidate() && marked(machine).zip(changed).is_some_and(|(marked, changed)| marked <= changed)
}

/// When the next failed Machine is no longer kept.
pub(super) fn next_expiry(
    context: &Context<'_>,
    members: &Members<'_>,
    backoff: &CreationBackoff<'_>,
) -> Option<Timestamp> {
    let now = context.now;
    let settings = &members.snapshot.settings.fleet;
    let failed = members.staying.iter().filter(|machine| is_failed(machine));
    let expiries = |machine: &&Arc<Machine>| {
        let kept = [kept_until(machine, settings.preserve_timeout), backoff.kept_until(machine)];
        kept.into_iter().flatten().chain([known_from(context)])
    };
    failed.flat_map(expiries).filter(|expiry| *expiry > now).min()
}

/// In which order Machines of a set are deleted.
pub(super) struct Order<'a> {
    newest_first: bool,
    settings: &'a FleetSettings,
    now: Timestamp,
}

type Rank = (Preservation, i64, (bool, Option<Timestamp>), u8, i128);
type Preservation = (bool, bool, Option<Timestamp>);

impl<'a> Order<'a> {
    pub(super) fn of(context: &Context<'_>, members: &Members<'a>) -> Self {
        let order = annotation(members.snapshot.set.as_ref(), annotations::DELETION_ORDER);
        let newest_first = order == Some(annotations::DELETION_ORDER_NEWEST);
        Self { newest_first, settings: &members.snapshot.settings.fleet, now: context.now }
    }

    /// Sorts Machines so that the first is deleted first:
    ///
    /// 1. those that are not preserved; among the preserved ones those that no user has asked for, then the earlier expiry;
    /// 2. the lower priority;
    /// 3. those marked by the autoscaler, the older mark first;
    /// 4. the less useful phase;
    /// 5. age, the older one first unless the annotation of the set says otherwise; then name.
    pub(super) fn sort(&self, machines: &mut [impl AsRef<Machine>]) {
        machines.sort_unstable_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        machines.sort_by_cached_key(|machine| self.rank(machine.as_ref()));
    }

    fn rank(&self, machine: &Machine) -> Rank {
        let mark = marked(machine);
        let created = created(machine).unwrap_or_default().as_nanosecond();
        let created = if self.newest_first { -created } else { created };
        let mark = (mark.is_none(), mark);
        (self.preservation(machine), machine.priority(), mark, usefulness(machine.phase()), created)
    }

    /// A failed machine that is kept without an expiry in its status is preserved as well.
    fn preservation(&self, machine: &Machine) -> Preservation {
        let kept = || is_failed(machine).then(|| kept_until(machine, self.settings.preserve_timeout)).flatten();
        let expiry = preserve_expiry(machine).or_else(kept).filter(|expiry| *expiry > self.now);
        (expiry.is_some(), expiry.is_some() && !is_auto_preserved(machine), expiry)
    }
}

fn marked(machine: &Machine) -> Option<Timestamp> {
    MARKED_FOR_DELETION.of(machine)
}

fn usefulness(phase: &MachinePhase) -> u8 {
    match phase {
        // The deletion of a Machine on which no work has been done yet costs the least.
        MachinePhase::Terminating | MachinePhase::Unset => 0,
        MachinePhase::Failed => 1,
        MachinePhase::CrashLoopBackOff => 2,
        MachinePhase::Unknown => 3,
        MachinePhase::Pending | MachinePhase::Other(_) => 4,
        // MCM has no rank for in-place updates, so it deletes such Machines first of all.
        MachinePhase::InPlaceUpdateFailed => 5,
        MachinePhase::Available | MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateSuccessful => 6,
        MachinePhase::Running => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{MachineExt, NOW, machine};

    fn sort(machines: &mut [Arc<Machine>], newest_first: bool) {
        let now = NOW.parse().unwrap();
        Order { newest_first, settings: &FleetSettings::default(), now }.sort(machines);
    }

    fn order(machines: Vec<Machine>) -> Vec<String> {
        let mut machines: Vec<_> = machines.into_iter().map(Arc::new).collect();
        sort(&mut machines, false);
        machines.iter().map(|machine| name(machine.as_ref()).to_owned()).collect()
    }

    #[test]
    fn mcm_defect_13_the_less_useful_goes_first() {
        let running = machine("running").phase("Running").build();
        let pending = machine("pending").phase("Pending").build();
        let failed = machine("failed").phase("Failed").build();
        let updating = machine("updating").phase("InPlaceUpdating").build();
        let unknown = machine("unknown").phase("Unknown").build();
        let names = order(vec![running, pending, updating, failed, unknown]);
        assert_eq!(names, ["failed", "unknown", "pending", "updating", "running"]);
    }

    #[test]
    fn priority_beats_phase_and_preservation_beats_priority() {
        let chosen = machine("chosen").phase("Running").annotation(annotations::MACHINE_PRIORITY, "1").build();
        let failed = machine("failed").phase("Failed").build();
        let preserved = machine("preserved")
            .phase("Failed")
            .annotation(annotations::MACHINE_PRIORITY, "1")
            .preserved_until("2030-01-01T00:00:00Z")
            .build();
        assert_eq!(order(vec![preserved, failed, chosen]), ["chosen", "failed", "preserved"]);
    }

    #[test]
    fn of_preserved_machines_those_go_first_that_nobody_has_asked_for_and_a_time_that_is_over_counts_nothing() {
        let preserved = |name: &str, asks: &str, at: &str| {
            machine(name).phase("Running").annotation(annotations::PRESERVE, asks).preserved_until(at).build()
        };
        let machines = vec![
            preserved("user-late", "now", "2026-06-09T00:00:00Z"),
            preserved("user-soon", "now", "2026-06-08T00:00:00Z"),
            preserved("by-set", "auto-preserved", "2026-06-09T00:00:00Z"),
            preserved("over", "now", "2026-06-01T12:00:00Z"),
            machine("running").phase("Running").build(),
        ];
        assert_eq!(order(machines), ["over", "running", "by-set", "user-soon", "user-late"]);
    }

    #[test]
    fn the_older_mark_goes_first_and_then_the_older_machine() {
        let mark = annotations::MARKED_FOR_DELETION_TIME;
        let late = machine("late").annotation(mark, "2026-01-02T00:00:00Z").build();
        let early = machine("early").annotation(mark, "2026-01-01T00:00:00Z").build();
        let old = machine("old").created("2025-01-01T00:00:00Z").build();
        let young = machine("young").created("2025-06-01T00:00:00Z").build();
        assert_eq!(order(vec![young.clone(), late, old.clone(), early]), ["early", "late", "old", "young"]);
        let mut newest_first = vec![Arc::new(old), Arc::new(young)];
        sort(&mut newest_first, true);
        assert_eq!(name(newest_first[0].as_ref()), "young");
    }
}
