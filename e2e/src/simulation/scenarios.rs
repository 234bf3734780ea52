//! Runs that somebody has thought of: what has cost machines elsewhere, and what chance would take long to find.
//!
//! Those that need no hand in the API server are played on a real control plane as well, by the end-to-end tests.

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
    [clouds(), caches(), managers(), servers(), users()].concat()
}

fn clouds() -> Vec<Scenario> {
    let late = Effect::ApplyLate { seconds: 20.0, code: Code::DeadlineExceeded };
    vec![
        Scenario {
            name: "a VM that appears after its machine was deleted",
            run: one(vec![at(0, cloud(FaultOperation::Create, late)), at(1_500, Act::DeleteMachine(0))]),
        },
        Scenario {
            name: "answers of the cloud that are lost",
            run: run([], vec![at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true }))]),
        },
        Scenario {
            name: "a VM that its cloud does not list at once, and a manager that is killed meanwhile",
            run: run(
                [],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                    at(400, Act::Crash),
                    at(2_900, Act::Crash),
                ],
            ),
        },
        Scenario {
            name: "a VM whose making was never answered, and lists that fail for a minute while its machine goes",
            run: one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true })),
                at(
                    300,
                    lasting(
                        FaultOperation::List,
                        Effect::Error { code: Code::Unavailable, message: None, applied: false },
                    ),
                ),
                at(500, Act::DeleteMachine(0)),
            ]),
        },
        Scenario {
            name: "calls that never end, and answers that nobody understands",
            run: run(
                [Act::Scale(5)],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Hang { applied: true })),
                    at(1, cloud(FaultOperation::List, Effect::Garbage)),
                ],
            ),
        },
    ]
}

fn caches() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a set that grows while its cache is old",
            run: run([], vec![at(0, Act::LateWatches(of("machines"), 8_000)), at(3_000, Act::Scale(6))]),
        },
        Scenario {
            name: "many machines at once, and a cache of them that lags by half a minute",
            run: run([Act::Scale(20), Act::Scale(3)], vec![at(3_000, Act::LateWatches(of("machines"), 30_000))]),
        },
        Scenario {
            name: "lost answers while caches stand still",
            run: run(
                [Act::Scale(5)],
                (8..24)
                    .map(|step| Trouble::Step { step, fate: Fate::RefuseAfter(504) })
                    .chain([at(100, Act::HoldWatches(of("machines"), 40))])
                    .collect(),
            ),
        },
        Scenario {
            name: "watches that break three times, and have to list again each time",
            run: run([Act::Scale(6), Act::Scale(0)], (0..3).flat_map(|turn| forgotten(200 + turn * 2_000)).collect()),
        },
        Scenario {
            name: "watches that are silent for ten minutes",
            run: run(
                [Act::Scale(6), roll("large")],
                vec![
                    at(100, Act::HoldWatches(of("machines"), 600)),
                    at(150, Act::HoldWatches(of("machinesets"), 600)),
                    at(4_000, Act::HoldWatches(of("nodes"), 600)),
                ],
            ),
        },
        Scenario {
            name: "a manager that starts at an API server that lags",
            run: run(
                [Act::Scale(5), Act::Scale(2)],
                vec![
                    at(4_500, Act::LaggingServer(3_000)),
                    at(70_000, Act::Scale(4)),
                    at(71_000, Act::LaggingServer(20_000)),
                ],
            ),
        },
    ]
}

fn managers() -> Vec<Scenario> {
    let naps = (0..8).map(|turn| at(2_050 + turn * 3_100, Act::Sleep(20)));
    vec![
        Scenario {
            name: "a manager that is killed again and again",
            run: run([roll("large"), Act::DeletePool], (1..9).map(|turn| at(turn * 1_700, Act::Crash)).collect()),
        },
        Scenario { name: "a leader that sleeps", run: Run { elects: true, ..run([Act::Scale(6)], naps.collect()) } },
        Scenario {
            name: "a leader that sleeps while it looks for the VM that it deletes",
            run: Run {
                elects: true,
                // The answer comes before the next look at the term, which is at whole seconds.
                ..one(vec![
                    at(19_000, lasting(FaultOperation::List, Effect::Latency { seconds: 2.95 })),
                    at(20_000, Act::DeleteMachine(0)),
                    at(22_900, Act::Sleep(20)),
                ])
            },
        },
        Scenario {
            name: "two managers with old caches, and a user who cannot decide",
            run: run(
                [],
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
            name: "a second manager that has yet to see what was wanted last",
            run: run(
                [Act::Scale(1), Act::Scale(5), Act::Scale(2), Act::Scale(6)],
                (0..6)
                    .map(|turn| at(turn * 10_000, Act::LateRival(of("machinesets"), 6_000)))
                    .chain([at(50, Act::SecondManager(300))])
                    .collect(),
            ),
        },
        Scenario {
            name: "a second manager that sees the deployment as it was",
            run: run(
                [Act::Scale(6), Act::Scale(1), Act::Scale(8), Act::Scale(3)],
                (0..12)
                    .map(|turn| at(turn * 10_000, Act::LateRival(of("machinedeployments"), 12_000)))
                    .chain([at(50, Act::SecondManager(300))])
                    .collect(),
            ),
        },
        Scenario {
            name: "clocks that are ten minutes fast, and then slow",
            run: run(
                [roll("large"), Act::Scale(0)],
                vec![at(500, Act::JumpClock(600)), at(5_500, Act::JumpClock(-1_200)), at(9_000, Act::JumpClock(600))],
            ),
        },
    ]
}

fn servers() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "ten minutes without the API server",
            run: run([Act::Scale(5)], vec![at(300, Act::ApiDown(60)), at(70_000, Act::ApiDown(600))]),
        },
        Scenario {
            name: "five minutes of too many requests, with leases",
            run: Run {
                elects: true,
                ..run([Act::Scale(5)], vec![at(2_000, Act::ApiRefuses { code: 429, percent: 70, seconds: 300 })])
            },
        },
        Scenario {
            name: "a machine is deleted while nothing can be written to its set",
            run: one(vec![
                at(20_000, Act::ApiRefuses { code: 409, percent: 60, seconds: 30 }),
                at(20_100, Act::DeleteMachine(0)),
            ]),
        },
        Scenario {
            name: "a deletion that comes late, when another set has the name",
            run: Run {
                revisions: Some(0),
                // That of the set of the first template, once the second one's machines are there.
                ..run([roll("large"), roll("small")], vec![Trouble::Step { step: 141, fate: Fate::CommitLate(25) }])
            },
        },
        Scenario {
            name: "a creation that takes effect when its name has had its life",
            run: run(
                [Act::Scale(0)],
                vec![
                    Trouble::Step { step: 13, fate: Fate::CommitLate(18) },
                    at(12_000, Act::HoldWatches(of("machinesets"), 60)),
                ],
            ),
        },
    ]
}

fn users() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a user who changes his mind",
            run: run(
                [Act::Scale(1)],
                vec![at(6_000, Act::Scale(5)), at(6_050, Act::Scale(3)), at(6_100, roll("large"))],
            ),
        },
        Scenario {
            name: "somebody who writes into everything",
            run: run(
                [Act::Scale(5), Act::DeletePool],
                vec![at(100, Act::Disturb(80)), at(5_000, Act::DropManagedFields), at(9_000, Act::Disturb(80))],
            ),
        },
        Scenario {
            name: "machines that outlive their deployment",
            run: run([Act::OrphanMachines, Act::Scale(1), Act::OrphanMachines], vec![]),
        },
        Scenario {
            name: "machines that change their set while they wait for their VMs",
            run: run(
                [],
                vec![
                    at(0, lasting(FaultOperation::List, Effect::Latency { seconds: 6.0 })),
                    at(500, Act::LateWatches(of("machines"), 4_000)),
                    at(500, Act::LateWatches(of("machinesets"), 4_000)),
                    at(1_000, Act::OrphanMachines),
                ],
            ),
        },
        Scenario {
            name: "a deployment that hears late that it goes, when its set is left behind",
            run: run(
                [Act::OrphanMachines, Act::Scale(5)],
                vec![at(0, Act::LateWatches(of("machinedeployments"), 500))],
            ),
        },
        Scenario {
            name: "machines that outlive their deployment and its set, while caches are late",
            run: run(
                [Act::OrphanMachines, Act::OrphanMachines],
                vec![at(0, Act::LateWatches(of("machinesets"), 300)), at(4_000, Act::LateWatches(of("machines"), 700))],
            ),
        },
    ]
}

/// Three machines, what a user does, and what goes wrong.
fn run(phases: impl Into<Vec<Act>>, troubles: Vec<Trouble>) -> Run {
    Run { phases: phases.into(), schedule: Schedule(troubles), ..up_roll_down(1) }
}

/// One machine, and what goes wrong.
fn one(troubles: Vec<Trouble>) -> Run {
    Run { replicas: 1, ..run([], troubles) }
}

fn at(millis: u64, act: Act) -> Trouble {
    Trouble::At { millis, act }
}

fn of(kind: &str) -> String {
    kind.to_owned()
}

fn roll(class: &str) -> Act {
    Act::Roll(class.to_owned())
}

/// The watches of all that changes break, and the history is gone from which they would go on.
fn forgotten(millis: u64) -> impl Iterator<Item = Trouble> {
    let kinds = ["machines", "machinesets", "machinedeployments"];
    let cuts = kinds.map(|kind| Act::CutWatches(kind.to_owned()));
    cuts.into_iter().chain([Act::Compact]).map(move |act| at(millis, act))
}

/// What the cloud does to all calls for a minute.
fn lasting(operation: FaultOperation, effect: Effect) -> Act {
    let matching = FaultMatch::default();
    Act::Cloud(FaultOrder { operation, matching, count: None, for_seconds: Some(60.0), probability: None, effect })
}

/// What the cloud does to the next three calls within a minute.
fn cloud(operation: FaultOperation, effect: Effect) -> Act {
    let matching = FaultMatch::default();
    Act::Cloud(FaultOrder { operation, matching, count: Some(3), for_seconds: Some(60.0), probability: None, effect })
}
