//! Machines that are updated in place.

use super::builders::{at, named, request, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, RequestResult, Trouble},
    updates::Orchestration,
};

fn in_place(orchestration: Orchestration, phases: impl Into<Vec<Act>>, troubles: Vec<Trouble>) -> Run {
    let (surge, unavailable) = (0, 1);
    Run { in_place: Some(orchestration), surge, unavailable, ..run(phases, troubles) }
}

pub(super) fn updates() -> Vec<Scenario> {
    let auto = |phases: Vec<Act>, troubles| in_place(Orchestration::Auto, phases, troubles);
    let killed = |plural: &str, numbers: std::ops::Range<u64>| -> Vec<Trouble> {
        numbers.map(|number| request("patch", plural, number, RequestResult::CrashAfter)).collect()
    };
    vec![
        named("machines that are updated in place", auto(vec![roll("large"), scale(5), roll("small")], vec![])),
        named(
            "machines that are updated in place with a surge",
            Run { surge: 1, unavailable: 0, ..auto(vec![roll("large")], vec![]) },
        ),
        named(
            "machines that a user selects for an update in place",
            in_place(Orchestration::Manual, [roll("large"), scale(4)], vec![]),
        ),
        named(
            "an update in place whose manager dies after each write of a set",
            auto(vec![roll("large")], killed("machinesets", 6..22)),
        ),
        named(
            "an update in place whose manager dies after each write of a node",
            auto(vec![roll("large")], killed("nodes", 3..15)),
        ),
        named(
            "an update in place whose manager dies after each write of a machine",
            auto(vec![roll("large")], killed("machines", 12..21)),
        ),
        named(
            "an update in place whose template is taken back and given again",
            auto(
                vec![roll("large")],
                vec![
                    at(40_000, roll("large")),
                    at(52_000, roll("small")),
                    at(58_000, roll("large")),
                    at(75_000, roll("small")),
                ],
            ),
        ),
        named(
            "an update in place with two managers of which one sees nodes late",
            auto(vec![roll("large")], super::builders::late_rival("nodes", 4_000, 12)),
        ),
        named(
            "an update in place with a target cluster that is away",
            auto(vec![], vec![at(30_000, roll("large")), at(45_000, Act::TargetDown(60))]),
        ),
        named(
            "a machine that dies while it is updated in place",
            Run {
                heartbeats: true,
                ..auto(vec![], vec![at(30_000, roll("large")), at(42_000, Act::KillVm(0)), at(50_000, Act::KillVm(1))])
            },
        ),
    ]
}
