//! Which marks a Node has to have.

use nodewright_api::{MachineDeployment, MachineSet, StrategyType};

use super::snapshot::Snapshot;
use crate::shared::{pause, preservation::preserve_expiry, template};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// No Machine that stays is known to be the Node's.
    Leave,
    /// A rollout replaces its Machine.
    Mark,
    /// No rollout replaces its Machine. The autoscaler's annotations stay on the Node of a preserved one.
    Unmark { is_preserved: bool },
}

pub(super) fn decide(snapshot: &Snapshot) -> Decision {
    let Some(machine) = &snapshot.machine else { return Decision::Leave };
    if snapshot.owners.as_ref().is_some_and(|(set, deployment)| is_replaced(set, deployment)) {
        return Decision::Mark;
    }
    Decision::Unmark { is_preserved: preserve_expiry(machine).is_some() }
}

/// Whether a rollout replaces the Machines of a set: it is one of a former template.
fn is_replaced(set: &MachineSet, deployment: &MachineDeployment) -> bool {
    let rolls = deployment.spec.strategy.effective_type() == StrategyType::RollingUpdate;
    let rolls = rolls && pause::permits_rollout(deployment) && !deployment.is_deleting();
    rolls && !template::is_same(&set.spec.template, &deployment.spec.template)
}
