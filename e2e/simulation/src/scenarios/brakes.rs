//! The fleet brake, and a ceiling.

use super::builders::{at, named, roll, run, scale};
use crate::{
    limits::Limits,
    run::{Run, Scenario},
    schedule::{Act, Trouble},
};

/// Ten machines with the fleet brake, and what happens to some of them.
fn ten(some: usize, happens: impl Fn(usize) -> Act) -> Run {
    let limits = Limits { brake: true, ..Limits::default() };
    let troubles: Vec<Trouble> = (0..some).map(|number| at(100_000, happens(number))).collect();
    Run { replicas: 10, heartbeats: true, limits, ..run([], troubles) }
}

/// Three machines, and this many at most.
fn at_most(ceiling: usize, run: Run) -> Run {
    Run { limits: Limits { ceiling: Some(ceiling), ..Limits::default() }, ..run }
}

pub(super) fn brakes() -> Vec<Scenario> {
    vec![
        named(
            "eight of ten kubelets are silent for a quarter of an hour: the fleet brake holds",
            ten(8, |number| Act::SilenceKubelet(number, 900)),
        ),
        named("five of ten VMs die at once: the fleet brake lets one go at a time", ten(5, Act::KillVm)),
        named(
            "a user wants twelve machines for five minutes, and five are allowed",
            at_most(5, run([], vec![at(100_000, scale(12)), at(400_000, scale(3))])),
        ),
        named("a rollout with no more machines than it needs", at_most(4, run([roll("large")], vec![]))),
    ]
}
