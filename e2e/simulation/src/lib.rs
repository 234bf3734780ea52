//! A simulated cluster: the managers as they are, an API server, a cloud and its kubelets in one thread, on invented time.
//!
//! A [`Run`] is data: a seed, what the user wants, and what goes wrong when. The same run gives the same trace, line by
//! line, in any process. Thousands of runs are made of seeds ([`generate`]); what breaks an invariant is made shorter
//! ([`shrink`]) and printed such that it can be run again.
//!
//! | file | what |
//! |---|---|
//! | [`schedule`] | what may go wrong |
//! | `adversary`, `calls` | each write and each call of a manager meets its fate there |
//! | `process` | managers that are killed and started again |
//! | `cluster`, `acts`, `rest` | the cluster, what happens in it, and whether all is as wanted |
//! | `oracles`, `replacements`, `terms` | the invariants, looked at with each change; what is given up; who may write when |
//! | `users` | what users do that no controller expects |
//! | `clock`, `trace` | clocks that jump and sleep; what happened, line by line |
//! | [`control_plane`] | what a cluster's own controllers do around machines |
//! | [`scenarios`] | runs that somebody has thought of |
//! | [`generate`], [`campaign`], [`shrink`] | runs made of seeds, judged, made shorter |
//! | [`run`], `check` | a run from start to end; what one that somebody has written may hold |
//! | [`command`] | the command line |

mod acts;
mod adversary;
mod calls;
pub mod campaign;
mod check;
mod clock;
mod cluster;
pub mod command;
pub mod control_plane;
mod design;
mod disputes;
mod edits;
mod foreign;
pub mod generate;
#[cfg(test)]
mod given_up;
mod names;
mod oracles;
mod process;
mod replacements;
mod rest;
pub mod run;
pub mod scenarios;
pub mod schedule;
pub mod shrink;
mod terms;
mod trace;
mod users;

pub use self::{
    oracles::Counts,
    run::{Report, Run, Scenario},
    schedule::{Act, Edit, Fate, Mistake, Schedule, Trouble},
    trace::Detail,
};
