//! Preservation: a Machine that is kept although it has failed, or although the cluster autoscaler could do without it.
//!
//! The meaning is machine-controller-manager's (`docs/usage/machine-preservation.md` there). The annotation `preserve` of the Node
//! counts, or else that of the Machine. While it holds, the status has an expiry time, the Node the condition `Preserved` and the
//! annotation that keeps the cluster autoscaler off. The Node of a failed Machine is drained, and has a taint. The VM stays.
//!
//! ```text
//! annotation ─► decision ─┬─ the Machine: request, expiry time      (`plan::recorded`, before all else)
//!                         ├─ the Node: annotations, condition, taint (`plan::marked`, beside the check of its health)
//!                         └─ the Node of a failed Machine: its Pods  (`plan::kept`)
//! ```
//!
//! # Guarantees
//! * A Machine becomes Failed here only once it bears what its Node asks for, so that its set knows of it.
//! * The expiry time is the first to come and the last to go: a crash in between leaves nothing on the Node for good.
//! * A Node whose marks are refused delays neither the check of its Machine's health nor the end of a failed one.
//!
//! # Caveats
//! * A deletion, a rollout or a scale-down still takes a preserved Machine: as the last of its set.

mod decision;
mod node;
mod plan;

#[cfg(test)]
pub(super) use self::decision::wanted;
pub(super) use self::{
    node::needs_drain,
    plan::{kept, marked, recorded},
};
