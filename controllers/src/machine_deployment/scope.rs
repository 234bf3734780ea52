//! What a decision about one MachineDeployment may know.

use nodewright_api::MachineDeployment;
use nodewright_runtime::{effect::Never, plan::Moment};

use super::{rollout::Goal, snapshot::World};

/// What every decision of one plan is made from.
pub(super) struct Scope<'a> {
    pub(super) context: &'a Moment<'a, Never>,
    pub(super) snapshot: &'a World,
    pub(super) deployment: &'a MachineDeployment,
    pub(super) goal: Goal,
    pub(super) full_schema: bool,
}
