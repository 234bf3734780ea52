//! Is a Machine healthy, and when does it fail?
//!
//! An unhealthy Machine becomes `Unknown` and, after its health timeout, `Failed`; then its MachineSet replaces it. Reports
//! from before our connection to the API servers prove nothing at first: no kubelet could report while these were away.
//!
//! # Guarantees
//! * A Machine is Failed at the time that its condition `HealthTimeout` and its last operation name: the end of its health
//!   timeout, but, unless its Node was reported on since, no earlier than six minutes after this process began to lead or was
//!   connected again. A Running Machine becomes Unknown at most that much late, and once its Node has been unhealthy for
//!   ten seconds.
//! * Before that the Node is read from the API server. If it has changed, the Machine is evaluated again.
//!
//! # Caveats
//! * If its watch is a dead connection, a Node's report is seen up to four minutes late.
//! * The replacement budget ([`budget`](super::budget)), an unreadable Node, or a VM that is not proven to be the Machine's
//!   may hold a Machine back for longer; its status says so.

mod deadline;
mod decision;
mod node;
mod plan;
mod vm;

pub(super) use self::{
    node::{has_healthy_node, not_ready_since, unable_since, unhealthy_because},
    plan::checked,
    vm::{VmState, vm_state},
};
