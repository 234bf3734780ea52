//! What `spec.paused` does. A paused deployment replaces no Machine; it can still be scaled.
//!
//! | | while it is paused |
//! |---|---|
//! | sets of former templates | keep their share; all sets are scaled in proportion |
//! | first set of the deployment | is not created |
//! | `spec.rollbackTo` | waits |
//! | surplus revisions | are deleted although the rollout is not complete |
//! | condition `Progressing` | `Unknown` with the reason `DeploymentPaused`; its deadline stops |
//! | condition `Reconciling` | only while Machines are missing, unavailable or too many |
//!
//! The same as in Kubernetes' Deployments and machine-controller-manager.

use nodewright_api::{ConditionStatus::Unknown, MachineDeployment, reasons::machine_deployment as reasons};

use super::status::Finding;

/// Whether Machines of former templates may be replaced, and a first set created.
pub(super) fn permits_rollout(deployment: &MachineDeployment) -> bool {
    !deployment.spec.paused
}

/// Whether `spec.rollbackTo` is done now.
pub(super) fn permits_rollback(deployment: &MachineDeployment) -> bool {
    !deployment.spec.paused
}

/// Whether surplus revisions are deleted.
pub(super) fn permits_cleanup(deployment: &MachineDeployment, is_complete: bool) -> bool {
    is_complete || deployment.spec.paused
}

/// What `Progressing` says of a paused deployment whose condition has this reason now: `Some(None)` if that stays. `None` if the
/// deployment is not paused.
pub(super) fn progress(deployment: &MachineDeployment, reason: Option<&str>) -> Option<Option<Finding>> {
    let stays = [Some(reasons::PAUSED), Some(reasons::PROGRESS_DEADLINE_EXCEEDED)].contains(&reason);
    let paused = || (Unknown, reasons::PAUSED, "Deployment is paused".to_owned());
    deployment.spec.paused.then(|| (!stays).then(paused))
}

/// Whether a paused deployment with these numbers of Machines has nothing left to scale. `None` if it is not paused.
pub(super) fn is_settled(deployment: &MachineDeployment, replicas: i32, available: i32) -> Option<bool> {
    let desired = deployment.spec.replicas.max(0);
    deployment.spec.paused.then_some(replicas == desired && available == desired)
}
