//! Builders for runs.

use nodewright_e2e_cloud::{Code, Effect, FaultMatch, FaultOperation, FaultOrder};

use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, RequestResult, Schedule, Trouble},
};

pub(super) fn named(name: &str, run: Run) -> Scenario {
    Scenario { name: name.to_owned(), run }
}

/// A run with three machines.
pub(super) fn run(phases: impl Into<Vec<Act>>, troubles: Vec<Trouble>) -> Run {
    Run { phases: phases.into(), schedule: Schedule(troubles), ..Run::up_roll_down(1) }
}

/// A run with one machine.
pub(super) fn one(troubles: Vec<Trouble>) -> Run {
    Run { replicas: 1, ..run([], troubles) }
}

/// The request_result of the n-th write per verb and kind.
pub(super) fn request(verb: &str, plural: &str, number: u64, request_result: RequestResult) -> Trouble {
    Trouble::Request { verb: verb.to_owned(), plural: plural.to_owned(), number, request_result }
}

pub(super) fn at(millis: u64, act: Act) -> Trouble {
    Trouble::At { millis, act }
}

pub(super) fn of(kind: &str) -> String {
    kind.to_owned()
}

pub(super) fn scale(replicas: u32) -> Act {
    Edit::Scale(replicas).into()
}

pub(super) fn roll(class: &str) -> Act {
    Edit::Roll(class.to_owned()).into()
}

pub(super) fn delete(machine: usize) -> Act {
    Edit::DeleteMachine(machine).into()
}

/// A second manager whose watches of a kind are late by this much, from `times` times ten seconds on.
pub(super) fn late_rival(plural: &str, millis: u32, times: u64) -> Vec<Trouble> {
    let late = (0..times).map(|turn| at(turn * 10_000, Act::LateRival(of(plural), millis)));
    late.chain([at(50, Act::SecondManager(300))]).collect()
}

/// Breaks the watches of all kinds that change, and drops the history from which they would resume.
pub(super) fn forgotten(millis: u64) -> impl Iterator<Item = Trouble> {
    let kinds = ["machines", "machinesets", "machinedeployments"];
    let cuts = kinds.map(|kind| Act::CutWatches(kind.to_owned()));
    cuts.into_iter().chain([Act::Compact]).map(move |act| at(millis, act))
}

pub(super) fn fails() -> Effect {
    Effect::Error { code: Code::Unavailable, message: None, applied: false }
}

/// A failure that does not pass by itself.
pub(super) fn refuses() -> Effect {
    Effect::Error { code: Code::Internal, message: None, applied: false }
}

/// A cloud fault for all calls of a minute.
pub(super) fn lasting(operation: FaultOperation, effect: Effect) -> Act {
    for_seconds(60.0, operation, effect)
}

/// A cloud fault for this long.
pub(super) fn for_seconds(seconds: f64, operation: FaultOperation, effect: Effect) -> Act {
    let matching = FaultMatch::default();
    Act::Cloud(FaultOrder { operation, matching, count: None, for_seconds: Some(seconds), probability: None, effect })
}

/// A cloud fault for the next three calls within a minute.
pub(super) fn cloud(operation: FaultOperation, effect: Effect) -> Act {
    struck(operation, 3, effect)
}

/// A cloud fault for the next calls within a minute.
pub(super) fn struck(operation: FaultOperation, calls: u64, effect: Effect) -> Act {
    let (matching, count) = (FaultMatch::default(), Some(calls));
    Act::Cloud(FaultOrder { operation, matching, count, for_seconds: Some(60.0), probability: None, effect })
}

/// A call that returns at once, and takes effect this many seconds later.
pub(super) fn late_by(seconds: f64) -> Effect {
    Effect::ApplyLate { seconds, code: Code::DeadlineExceeded }
}
