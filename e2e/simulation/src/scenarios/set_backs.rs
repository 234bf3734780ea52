//! The store is set back under a manager that runs.

use super::builders::{at, delete, named, of, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Trouble},
};

/// When the backup is made: all machines run.
const BACKUP: u64 = 60_000;

/// A run with heartbeats: nobody else notices that the VM of a restored machine is gone. A minute after the backup the store is
/// set back; `lost` happens in between, and is undone.
fn set_back(phases: impl Into<Vec<Act>>, lost: Vec<Trouble>) -> Run {
    let troubles = [at(BACKUP, Act::SetBack(60))].into_iter().chain(lost).collect();
    Run { heartbeats: true, ..run(phases, troubles) }
}

pub(super) fn set_backs() -> Vec<Scenario> {
    let late_kinds = ["machines", "machinesets", "machinedeployments"];
    let end = BACKUP + 60_000;
    let late = late_kinds.map(|kind| at(end - 1_000, Act::LateWatches(of(kind), 5_000)));
    // The caches notice it one after the other.
    let refuses = at(end + 1, Act::ApiRefuses { code: 503, percent: 80, seconds: 40 });
    let swallows = at(end + 1, Act::ApiSwallows { percent: 60, seconds: 40 });
    vec![
        named("a store that is set back, and has lost no change", set_back([scale(4)], vec![])),
        named("a scale-down that a restore undoes", set_back([], vec![at(BACKUP + 5_000, scale(1))])),
        named("a scale-up that a restore undoes", set_back([scale(5)], vec![at(BACKUP + 5_000, scale(6))])),
        named("a rollout that a restore undoes", set_back([], vec![at(BACKUP + 5_000, roll("large"))])),
        named("a replaced machine that a restore brings back", set_back([], vec![at(BACKUP + 5_000, delete(1))])),
        named("a rollout that a restore interrupts", set_back([], vec![at(end - 7_000, roll("large"))])),
        named(
            "a scale-down that a restore undoes while watches are late",
            set_back([], [at(BACKUP + 5_000, scale(1))].into_iter().chain(late.clone()).collect()),
        ),
        named(
            "a scale-up that a restore undoes while watches are late",
            set_back([scale(4)], [at(BACKUP + 5_000, scale(6))].into_iter().chain(late).collect()),
        ),
        named(
            "a scale-down that a restore undoes on an API server that refuses most requests",
            set_back([], vec![at(BACKUP + 5_000, scale(1)), refuses.clone()]),
        ),
        named(
            "a scale-up that a restore undoes on an API server that refuses most requests",
            set_back([scale(4)], vec![at(BACKUP + 5_000, scale(6)), refuses]),
        ),
        named(
            "a rollout that a restore undoes on an API server that swallows most requests",
            set_back([], vec![at(BACKUP + 5_000, roll("large")), swallows]),
        ),
        named(
            "a manager that starts when the store has been set back",
            set_back([], vec![at(BACKUP + 5_000, scale(1)), at(end + 100, Act::Crash)]),
        ),
        named(
            "two managers under which the store is set back",
            set_back([], vec![at(BACKUP + 5_000, scale(6)), at(BACKUP + 1_000, Act::SecondManager(180))]),
        ),
        named("sets that were sized for a generation that is gone", run([scale(5)], vec![at(BACKUP, Act::SizeAhead)])),
    ]
}
