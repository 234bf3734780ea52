//! Machines that are preserved.

use super::builders::{at, named, request, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, RequestResult, Trouble},
};

fn preserve(machine: usize, on_node: bool, value: &str) -> Act {
    Edit::Preserve { machine, on_node, value: value.to_owned() }.into()
}

/// The default timeouts: a machine that dies fails after ten minutes.
fn quiet(phases: impl Into<Vec<Act>>, troubles: Vec<Trouble>) -> Run {
    Run { heartbeats: true, ..run(phases, troubles) }
}

pub(super) fn preservations() -> Vec<Scenario> {
    let dead = |millis| at(millis, Act::KillVm(0));
    let auto = |maximum| Act::from(Edit::AutoPreserve(maximum));
    vec![
        named(
            "a failed machine that a user keeps by its Node",
            quiet([], vec![at(30_000, preserve(0, true, "when-failed")), dead(40_000)]),
        ),
        named(
            "a failed machine that a user keeps, and gives up",
            quiet(
                [],
                vec![
                    at(30_000, preserve(0, false, "when-failed")),
                    dead(40_000),
                    at(760_000, preserve(0, false, "false")),
                ],
            ),
        ),
        named(
            "a failed machine that its set keeps, and a manager that dies meanwhile",
            quiet([auto(1)], vec![dead(40_000), at(705_000, Act::Crash), at(712_000, Act::Crash)]),
        ),
        named(
            "two failed machines of which a set keeps one, and then none",
            quiet([auto(1)], vec![dead(40_000), at(40_000, Act::KillVm(1)), at(900_000, auto(0))]),
        ),
        named(
            "a preserved machine that recovers",
            quiet(
                [],
                vec![
                    at(30_000, preserve(0, true, "now")),
                    at(40_000, Act::SilenceKubelet(0, 800)),
                    at(700_000, Act::Crash),
                ],
            ),
        ),
        named(
            "a preserved machine in a rollout",
            quiet(
                [roll("large")],
                vec![at(30_000, preserve(0, false, "when-failed")), dead(40_000), at(720_000, roll("small"))],
            ),
        ),
        named(
            "a machine that works and is preserved, and a scale-down",
            quiet([scale(1), scale(3)], vec![at(25_000, preserve(1, true, "now"))]),
        ),
        named(
            "a preservation whose marks are refused",
            quiet(
                [],
                vec![
                    at(30_000, preserve(0, false, "now")),
                    request("patch", "nodes", 9, RequestResult::Refuse(500)),
                    request("patch", "nodes", 10, RequestResult::LoseAnswer),
                    request("patch", "nodes", 11, RequestResult::CrashAfter),
                    dead(60_000),
                ],
            ),
        ),
    ]
}
