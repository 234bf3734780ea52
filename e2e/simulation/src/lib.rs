//! A simulated cluster: the real managers, an API server, a cloud and its kubelets in one thread, on simulated time.
//!
//! A [`Run`] is data: a seed, the user's wishes, and the faults with their times. The same run gives the same trace, line by
//! line, in any process. Thousands of runs are made from seeds ([`generate`]). A run that breaks an invariant is shrunk
//! ([`shrink`]) and printed in a form that can be run again.
//!
//! | file | content |
//! |---|---|
//! | [`schedule`] | possible faults |
//! | `adversary`, `calls` | the result of each write and each call of a manager |
//! | `process` | managers that are killed and started again |
//! | `cluster`, `acts`, `quiescence` | the cluster, its events, and whether it has the wanted state |
//! | `oracles`, `replacements`, `drains`, `leases` | the invariants, checked at each change; replacements; drains; who may write when |
//! | `users` | users' errors that no controller expects |
//! | `clock`, `trace` | clocks that jump and sleep; the trace, line by line |
//! | [`pools`] | a pool of node configuration, and the invariant for what it names |
//! | [`rollouts`] | pools that update their Nodes, what goes wrong there, and the invariants for it |
//! | [`workload`] | pods with volumes and disruption budgets, and the controllers that keep them |
//! | [`control_plane`] | the cluster's own controllers, as far as they concern machines |
//! | [`scenarios`] | named runs, written by hand |
//! | `foresight` | what a preview says of a rollout, compared with what then happens |
//! | [`generate`], [`campaign`], [`shrink`] | runs made from seeds, evaluated and shrunk |
//! | `purity` | plans that are made twice, and their transcript |
//! | [`run`], `check` | a run from start to end; the bounds of runs written by hand |
//! | [`command`] | the command line |

mod acts;
mod adversary;
mod calls;
pub mod campaign;
mod check;
mod clock;
mod cloud_nodes;
mod cluster;
pub mod command;
pub mod control_plane;
mod design;
mod disputes;
mod drains;
mod edits;
mod foreign;
mod foresight;
pub mod generate;
#[cfg(test)]
mod health_deadlines;
mod joins;
mod leases;
mod limits;
mod lost;
mod names;
mod oracles;
pub mod pools;
mod preservation;
mod process;
mod purity;
mod quiescence;
mod replacements;
pub mod rollouts;
pub mod run;
pub mod scenarios;
pub mod schedule;
mod set_back;
pub mod shrink;
mod trace;
mod updates;
mod users;
pub mod workload;

pub use self::{
    foresight::Comparison,
    limits::Limits,
    oracles::Counts,
    purity::{Transcript, transcribed},
    run::{Report, Run, Scenario},
    schedule::{Act, Edit, RequestResult, Schedule, Trouble, UserError},
    trace::Detail,
    updates::Orchestration,
};
