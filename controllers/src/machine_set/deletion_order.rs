//! The order in which a MachineSet deletes surplus Machines: machine-controller-manager's, except for updates in place.
//! `removal` decides which Machines are deleted regardless of the surplus: failed ones, and those that the autoscaler chose.

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase, annotations};
use nodewright_runtime::object::{annotation, name};

/// Which of two otherwise equal Machines is deleted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ByAge {
    /// The older one.
    #[default]
    Oldest,
    /// The younger one.
    Newest,
}

impl ByAge {
    /// Reads the annotation `nodewright.dev/deletion-order`; any value except `Newest` means the default.
    pub(super) fn parse(text: Option<&str>) -> Self {
        if text == Some(annotations::DELETION_ORDER_NEWEST) { Self::Newest } else { Self::Oldest }
    }
}

/// Sorts Machines so that the first is deleted first:
///
/// 1. those that are not preserved; among the preserved ones those without a request for it, then the earlier expiry;
/// 2. the lower priority;
/// 3. those marked by the autoscaler, the older mark first;
/// 4. the less useful phase;
/// 5. age, then name.
pub(super) fn sort(machines: &mut [impl AsRef<Machine>], age: ByAge) {
    machines.sort_by_cached_key(|machine| rank(machine.as_ref(), age));
}

type Rank = (Preservation, i64, (bool, Option<Timestamp>), u8, (i128, String));

fn rank(machine: &Machine, age: ByAge) -> Rank {
    let mark = marked(machine);
    let created = machine.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_nanosecond());
    let created = if age == ByAge::Newest { -created } else { created };
    (
        preservation(machine),
        machine.priority(),
        (mark.is_none(), mark),
        usefulness(machine.phase()),
        (created, name(machine).to_owned()),
    )
}

type Preservation = (bool, bool, Option<Timestamp>);

fn preservation(machine: &Machine) -> Preservation {
    let expiry = machine.status.as_ref().and_then(|status| status.current_status.preserve_expiry_time.as_ref());
    let asked = expiry.is_some() && annotation(machine, annotations::PRESERVE) != Some(annotations::PRESERVE_AUTO);
    (expiry.is_some(), asked, expiry.map(|time| time.0))
}

/// When the autoscaler marked a Machine for deletion.
pub(super) fn marked(machine: &Machine) -> Option<Timestamp> {
    annotation(machine, annotations::MARKED_FOR_DELETION_TIME)?.parse().ok()
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
    use crate::testing::{MachineExt, machine};

    fn order(mut machines: Vec<Machine>) -> Vec<String> {
        let mut machines: Vec<_> = machines.drain(..).map(Arc::new).collect();
        sort(&mut machines, ByAge::Oldest);
        machines.iter().map(|machine| name(machine.as_ref()).to_owned()).collect()
    }

    #[test]
    fn the_less_useful_goes_first() {
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
    fn the_older_mark_goes_first_and_then_the_older_machine() {
        let mark = annotations::MARKED_FOR_DELETION_TIME;
        let late = machine("late").annotation(mark, "2026-01-02T00:00:00Z").build();
        let early = machine("early").annotation(mark, "2026-01-01T00:00:00Z").build();
        let old = machine("old").created("2025-01-01T00:00:00Z").build();
        let young = machine("young").created("2025-06-01T00:00:00Z").build();
        assert_eq!(order(vec![young.clone(), late, old.clone(), early]), ["early", "late", "old", "young"]);
        let mut newest_first = vec![Arc::new(old), Arc::new(young)];
        sort(&mut newest_first, ByAge::Newest);
        assert_eq!(name(newest_first[0].as_ref()), "young");
    }
}
