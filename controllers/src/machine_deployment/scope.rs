//! The common input of all decisions about one MachineDeployment.

use nodewright_api::MachineDeployment;
use nodewright_runtime::{effect::Never, plan::Context};

use super::{rollout::Goal, snapshot::Snapshot};

/// The input of every decision of one plan.
pub(super) struct Scope<'a> {
    pub(super) context: &'a Context<'a, Never>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) deployment: &'a MachineDeployment,
    pub(super) goal: Goal,
    pub(super) full_schema: bool,
}
