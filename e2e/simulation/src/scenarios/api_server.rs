//! The API server is unreachable, refuses requests, or applies them late.

use super::builders::{at, delete, named, of, one, request, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, RequestResult},
};

pub(super) fn servers() -> Vec<Scenario> {
    vec![
        named(
            "ten minutes without the API server",
            run([scale(5)], vec![at(300, Act::ApiDown(60)), at(70_000, Act::ApiDown(600))]),
        ),
        named(
            "five minutes of too many requests, with leases",
            Run {
                elects: true,
                ..run([scale(5)], vec![at(2_000, Act::ApiRefuses { code: 429, percent: 70, seconds: 300 })])
            },
        ),
        named(
            "a machine is deleted while nothing can be written to its set",
            one(vec![at(20_000, Act::ApiRefuses { code: 409, percent: 60, seconds: 30 }), at(20_100, delete(0))]),
        ),
    ]
}

/// Faults of single requests.
pub(super) fn requests() -> Vec<Scenario> {
    vec![
        named(
            "a deletion that comes late, when another set has the name",
            Run {
                revisions: Some(0),
                // The deletion of the first template's set, after the second template's machines exist.
                ..run(
                    [roll("large"), roll("small")],
                    vec![request("delete", "machinesets", 0, RequestResult::CommitLate(25))],
                )
            },
        ),
        named(
            "the creation of a set that takes effect when the set has been given its size",
            one(vec![request("patch", "machinesets", 0, RequestResult::CommitLate(18))]),
        ),
        named(
            "a machine is deleted while what its status has to say is never answered",
            one(vec![request("patch", "machines", 2, RequestResult::Hang), at(5_000, delete(0))]),
        ),
        named(
            "a machine is deleted while its set cannot note that its name has had its life",
            one(vec![at(20_000, delete(0)), request("patch", "machinesets", 6, RequestResult::Hang)]),
        ),
        named(
            "a creation that takes effect when its name has had its life",
            run(
                [scale(0)],
                vec![
                    // The patch of the second machine.
                    request("patch", "machines", 1, RequestResult::CommitLate(18)),
                    at(12_000, Act::HoldWatches(of("machinesets"), 60)),
                ],
            ),
        ),
    ]
}
