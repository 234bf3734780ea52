//! Runs that somebody has thought of: what has cost machines elsewhere, and what chance would take long to find.

use super::{
    campaign::up_roll_down,
    run::Run,
    schedule::{Act, Fate, Schedule, Trouble},
};
use crate::cloud::{Code, Effect, FaultMatch, FaultOperation, FaultOrder};

/// A run that has a name.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens.
    pub name: &'static str,
    /// The run.
    pub run: Run,
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    let plain =
        |phases: Vec<Act>, troubles: Vec<Trouble>| Run { phases, schedule: Schedule(troubles), ..up_roll_down(1) };
    let small = |troubles: Vec<Trouble>| Run { replicas: 1, ..plain(vec![], troubles) };
    let apply_late = Effect::ApplyLate { seconds: 20.0, code: Code::DeadlineExceeded };
    let lost = |steps: std::ops::Range<u64>| steps.map(|step| Trouble::Step { step, fate: Fate::RefuseAfter(504) });
    let of = |kind: &str| kind.to_owned();
    vec![
        Scenario {
            name: "a VM that appears after its machine was deleted",
            run: small(vec![at(0, cloud(FaultOperation::Create, apply_late)), at(1_500, Act::DeleteMachine(0))]),
        },
        Scenario {
            name: "answers of the cloud that are lost",
            run: plain(vec![], vec![at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true }))]),
        },
        Scenario {
            name: "a set that grows while its cache is old",
            run: plain(vec![], vec![at(0, Act::LateWatches(of("machines"), 8_000)), at(3_000, Act::Scale(6))]),
        },
        Scenario {
            name: "lost answers while caches stand still",
            run: plain(
                vec![Act::Scale(5)],
                lost(8..24).chain([at(100, Act::HoldWatches(of("machines"), 40))]).collect(),
            ),
        },
        Scenario {
            name: "a leader that sleeps",
            run: Run {
                elects: true,
                ..plain(vec![Act::Scale(6)], (0..8).map(|turn| at(2_050 + turn * 3_100, Act::Sleep(20))).collect())
            },
        },
        Scenario {
            name: "two managers with old caches, and a user who cannot decide",
            run: plain(
                vec![],
                vec![
                    at(0, Act::LateWatches(of("machines"), 6_000)),
                    at(500, Act::SecondManager(90)),
                    at(2_000, Act::Scale(5)),
                    at(9_000, Act::Scale(1)),
                    at(20_000, Act::Scale(4)),
                ],
            ),
        },
        Scenario {
            name: "machines that outlive their deployment and its set",
            run: plain(
                vec![Act::OrphanMachines, Act::OrphanMachines],
                vec![at(0, Act::LateWatches(of("machinesets"), 300)), at(4_000, Act::LateWatches(of("machines"), 700))],
            ),
        },
        Scenario {
            name: "a machine is deleted while nothing can be written to its set",
            run: small(vec![
                at(20_000, Act::ApiRefuses { code: 409, percent: 60, seconds: 30 }),
                at(20_100, Act::DeleteMachine(0)),
            ]),
        },
        Scenario {
            name: "a creation that takes effect when its name has had its life",
            run: plain(
                vec![Act::Scale(0)],
                vec![
                    Trouble::Step { step: 13, fate: Fate::CommitLate(18) },
                    at(12_000, Act::HoldWatches(of("machinesets"), 60)),
                ],
            ),
        },
    ]
}

fn at(millis: u64, act: Act) -> Trouble {
    Trouble::At { millis, act }
}

fn cloud(operation: FaultOperation, effect: Effect) -> Act {
    let matching = FaultMatch::default();
    Act::Cloud(FaultOrder { operation, matching, count: Some(3), for_seconds: Some(60.0), probability: None, effect })
}
