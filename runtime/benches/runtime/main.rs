#![allow(clippy::unwrap_used, clippy::panic)] // a measure that cannot be made ends the run

//! Compares Nodewright's runtime with kube-runtime: the memory of a cache, the speed of lookups by owner, the rate of
//! reconciles, the latency of plans.
//!
//! | measure | what |
//! |---|---|
//! | [`memory`] | bytes per object; the peak of a relist; the bytes of each part of an object |
//! | [`owners`] | lookup by owner |
//! | [`rate`] | reconciles per second with nothing to do; bytes per object with a controller |
//! | [`latency`] | from event to plan, idle and with ten thousand objects waiting |
//!
//! # How
//! * Both read the same text from the same server in process ([`server`]), through kube's client: pages of 500, then a
//!   watch. Both decode it into the same type. All machines derive from the one in `machine.json`.
//! * Each measure of each contender runs in its own process, on tokio's default runtime.
//! * Memory is the number of bytes requested from the allocator ([`heap`]), and beside it the resident set. The counting costs
//!   both contenders the same few nanoseconds for each allocation.
//! * [`report`] has the goals. The exit code tells whether all are met.

mod contender;
mod fixture;
mod heap;
mod kubes;
mod latency;
mod memory;
mod ours;
mod owners;
mod rate;
mod report;
mod server;

use std::{
    env,
    process::{Command, ExitCode, Stdio},
};

use tokio::runtime::Runtime;

use crate::{
    contender::Contender,
    report::{Numbers, Report},
};

/// The argument of a child process that makes one measure.
const CHILD: &str = "--measure";

/// The measures and their contenders.
const MEASURES: [(&str, &[Contender]); 4] = [
    ("memory", &Contender::ALL),
    ("owners", &[Contender::Ours, Contender::Kube]),
    ("rate", &[Contender::Ours, Contender::Kube]),
    ("latency", &[Contender::Ours, Contender::Kube]),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == CHILD) {
        let who = Contender::ALL.into_iter().find(|who| who.name() == arguments[place + 2]);
        let numbers = measure(&arguments[place + 1], who.expect("a contender"));
        println!("{}", serde_json::to_string(&numbers).expect("numbers are JSON"));
        return ExitCode::SUCCESS;
    }
    let mut report = Report::default();
    for (name, contenders) in MEASURES {
        for who in contenders {
            eprintln!("measuring {name} of {}", who.name());
            report.add(name, *who, in_own_process(name, *who));
        }
    }
    if report.print() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn in_own_process(name: &str, who: Contender) -> Numbers {
    let program = env::current_exe().expect("this program has a path");
    let mut child = Command::new(program);
    let output = child.args([CHILD, name, who.name()]).stderr(Stdio::inherit()).output().expect("it starts");
    assert!(output.status.success(), "the measure of {name} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("it prints numbers")
}

fn measure(name: &str, who: Contender) -> Numbers {
    let runtime = Runtime::new().expect("a runtime");
    match name {
        "memory" => runtime.block_on(memory::measure(who)),
        "owners" => runtime.block_on(owners::measure(who)),
        "rate" => runtime.block_on(rate::measure(who)),
        "latency" => latency::measure(who),
        _ => panic!("there is no measure named {name}"),
    }
}
