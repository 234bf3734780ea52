//! Managers with old caches, killed managers, two managers.

use nodewright_e2e_cloud::{Effect, FaultOperation};

use super::builders::{
    at, delete, for_seconds, forgotten, lasting, late_rival, named, of, one, refuses, request, roll, run, scale,
};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, RequestResult, Trouble, UserError},
};

pub(super) fn caches() -> Vec<Scenario> {
    vec![
        named(
            "a set that grows while its cache is old",
            run([], vec![at(0, Act::LateWatches(of("machines"), 8_000)), at(3_000, scale(6))]),
        ),
        named(
            "many machines at once, and a cache of them that lags by half a minute",
            run([scale(20), scale(3)], vec![at(3_000, Act::LateWatches(of("machines"), 30_000))]),
        ),
        named(
            "lost answers while caches stand still",
            run(
                [scale(5)],
                (8..24)
                    .map(|step| Trouble::Step { step, request_result: RequestResult::RefuseAfter(504) })
                    .chain([at(100, Act::HoldWatches(of("machines"), 40))])
                    .collect(),
            ),
        ),
        named(
            "watches that break three times, and have to list again each time",
            run([scale(6), scale(0)], (0..3).flat_map(|turn| forgotten(200 + turn * 2_000)).collect()),
        ),
        named(
            "watches that are silent for ten minutes",
            run(
                [scale(6), roll("large")],
                vec![
                    at(100, Act::HoldWatches(of("machines"), 600)),
                    at(150, Act::HoldWatches(of("machinesets"), 600)),
                    at(4_000, Act::HoldWatches(of("nodes"), 600)),
                ],
            ),
        ),
        named(
            "a manager that starts at an API server that lags",
            run(
                [scale(5), scale(2)],
                vec![
                    at(4_500, Act::LaggingServer(3_000)),
                    at(70_000, scale(4)),
                    at(71_000, Act::LaggingServer(20_000)),
                ],
            ),
        ),
    ]
}

pub(super) fn managers() -> Vec<Scenario> {
    let naps = (0..8).map(|turn| at(2_050 + turn * 3_100, Act::Sleep(20)));
    vec![
        named(
            "a manager that is killed again and again",
            run([roll("large"), Edit::DeletePool.into()], (1..9).map(|turn| at(turn * 1_700, Act::Crash)).collect()),
        ),
        named("a leader that sleeps", Run { elects: true, ..run([scale(6)], naps.collect()) }),
        named(
            "a leader that sleeps while it looks for the VM that it deletes",
            Run {
                elects: true,
                // The answer arrives before the next check of the lease, which is at whole seconds.
                ..one(vec![
                    at(19_000, lasting(FaultOperation::List, Effect::Latency { seconds: 2.95 })),
                    at(20_000, delete(0)),
                    at(22_900, Act::Sleep(20)),
                ])
            },
        ),
        named(
            "two managers of which one may write, until it is killed",
            Run {
                elects: true,
                ..run([scale(6), roll("large")], vec![at(50, Act::SecondManager(200)), at(30_000, Act::Crash)])
            },
        ),
        named(
            "clocks that are ten minutes fast, and then slow",
            run(
                [roll("large"), scale(0)],
                vec![at(500, Act::JumpClock(600)), at(5_500, Act::JumpClock(-1_200)), at(9_000, Act::JumpClock(600))],
            ),
        ),
    ]
}

/// Clocks that are two hours off, each process by its own.
pub(super) fn clocks() -> Vec<Scenario> {
    const OFF: i64 = 7_200;
    vec![
        named(
            "a clock that is two hours ahead while machines come up",
            run([scale(6), roll("large")], vec![at(2_000, Act::JumpClock(OFF))]),
        ),
        named(
            "a clock that is two hours behind while VMs die, and set right after half an hour",
            Run {
                heartbeats: true,
                ..run(
                    [],
                    vec![
                        at(2_000, Act::JumpClock(-OFF)),
                        at(60_000, Act::KillVm(0)),
                        at(1_800_000, Act::JumpClock(OFF)),
                    ],
                )
            },
        ),
        named(
            "two managers without leases whose clocks differ by four hours",
            run(
                [scale(5)],
                vec![
                    at(100, Act::JumpClock(-OFF / 2)),
                    at(100, Act::JumpRival(OFF)),
                    at(200, Act::SecondManager(300)),
                    at(400_000, Act::JumpClock(OFF / 2)),
                ],
            ),
        ),
        named(
            "a clock that gains two hours in an hour, and a rollout in between",
            run([], vec![at(0, Act::DriftClock(OFF)), at(600_000, roll("large")), at(900_000, scale(5))]),
        ),
        named(
            "a creation timeout of a second for an hour, and more machines",
            Run {
                heartbeats: true,
                ..run([], vec![at(25_000, Act::Err(UserError::ShortTimeout, 3_600)), at(26_000, scale(6))])
            },
        ),
        named(
            "a creation timeout of a second and a rollout, with two managers without leases whose clocks differ",
            run(
                [],
                vec![
                    at(25_000, Act::Err(UserError::ShortTimeout, 900)),
                    at(25_500, Act::JumpRival(OFF)),
                    at(26_000, roll("large")),
                    at(26_500, Act::SecondManager(600)),
                ],
            ),
        ),
    ]
}

pub(super) fn conflicting() -> Vec<Scenario> {
    vec![
        named(
            "two managers with old caches, and a user who cannot decide",
            run(
                [],
                vec![
                    at(0, Act::LateWatches(of("machines"), 6_000)),
                    at(500, Act::SecondManager(90)),
                    at(2_000, scale(5)),
                    at(9_000, scale(1)),
                    at(20_000, scale(4)),
                ],
            ),
        ),
        named(
            "two managers, and a provider that refuses machines for minutes",
            run(
                [],
                vec![
                    at(0, scale(6)),
                    at(0, for_seconds(150.0, FaultOperation::Create, refuses())),
                    at(1_000, Act::SecondManager(140)),
                ],
            ),
        ),
        named(
            "a second manager that has yet to see what was wanted last",
            run([scale(1), scale(5), scale(2), scale(6)], late_rival("machinesets", 6_000, 6)),
        ),
        named(
            "a second manager that sees the deployment as it was",
            run([scale(6), scale(1), scale(8), scale(3)], late_rival("machinedeployments", 12_000, 12)),
        ),
        named(
            "a second manager with an old view of a set meets a machine whose name has had its life",
            run(
                [scale(0)],
                vec![
                    // The creation of the second machine, and the deletion of the object that it creates when it takes effect.
                    request("patch", "machines", 1, RequestResult::CommitLate(18)),
                    request("delete", "machines", 3, RequestResult::ArriveLate(5)),
                    at(2_500, Act::SecondManager(60)),
                    // All three machines exist at 3.5 s, and are deleted then.
                    at(3_300, Act::LateRival(of("machinesets"), 30_000)),
                ],
            ),
        ),
    ]
}
