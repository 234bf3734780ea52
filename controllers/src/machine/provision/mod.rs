//! How a Machine gets its VM: class and Secrets exist → VM created → Machine linked to it → VM initialized.

mod decision;
mod link;
mod plan;

use nodewright_api::MachinePhase;

pub(super) use self::{
    decision::{ASK_OWNER, Provision, failed, foreign, not_own},
    plan::{carry_out, create, initialize, invalid, link},
};

pub(super) fn is_unprovisioned(phase: &MachinePhase) -> bool {
    matches!(phase, MachinePhase::Unset | MachinePhase::CrashLoopBackOff)
}
