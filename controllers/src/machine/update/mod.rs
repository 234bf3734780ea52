//! An update in place: the Machine keeps its VM, whose Node is drained and updated by a program on it.
//!
//! The protocol is machine-controller-manager's (GEP-31): the Node's label `selected-for-update` asks for the update, which the
//! deployment sets, or a user; its condition `InPlaceUpdate` says how far it is, and permits the program on the Node to begin; the
//! label `update-result` is the program's answer.
//!
//! ```text
//! label ─► decision ─┬─ the Node is selected: it is closed to Pods, and drained, while its health still counts
//!                    ├─ it is drained: phase InPlaceUpdating, then the condition that permits the update
//!                    └─ the answer, or its absence: phase Running or InPlaceUpdateFailed
//! ```
//!
//! # Guarantees
//! * The program is permitted to begin only once the Machine has the phase `InPlaceUpdating`: until then the health of its Node counts.
//! * An answer that was there before the program was asked does not count.
//! * A Node whose labels are taken back before that is never permitted: the write of the permission tests for them.
//!
//! # Caveats
//! * A Machine whose update has failed is replaced after its health timeout, although its Node may be healthy.

mod decision;
mod plan;

pub(super) use self::{
    decision::{failure, needs_drain},
    plan::{Part, awaiting_components, part},
};
