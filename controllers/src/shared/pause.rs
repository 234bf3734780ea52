//! What `spec.paused` does. A paused deployment replaces no Machine; it can still be scaled. A paused pool updates no Node.
//!
//! | | while it is paused |
//! |---|---|
//! | sets of former templates | stay; scaled in, all sets shrink in proportion; scaled out, the newest grows |
//! | set of a new template | is not created |
//! | marks on Nodes of former templates | are removed, except those of an update in place that has begun (`rollout_node`) |
//! | `spec.rollbackTo` | waits |
//! | surplus revisions | are deleted although the rollout is not complete |
//! | condition `Progressing` | `Unknown` with the reason `DeploymentPaused`; its deadline stops |
//! | condition `Reconciling` | only while Machines are missing, unavailable or too many |
//!
//! As in Kubernetes' Deployments and machine-controller-manager, except that those scale out in proportion, too.

use nodewright_api::{MachineDeployment, machine_config::MachineConfigPool, reasons::machine_deployment as reasons};

/// Whether Machines of former templates may be replaced, a first set is created, and `spec.rollbackTo` is done.
pub(crate) fn permits_rollout(deployment: &MachineDeployment) -> bool {
    !deployment.spec.paused
}

/// Whether Nodes of a pool are updated.
pub(crate) fn permits_updates(pool: &MachineConfigPool) -> bool {
    !pool.spec.paused
}

/// Whether surplus revisions are deleted.
pub(crate) fn permits_cleanup(deployment: &MachineDeployment, is_complete: bool) -> bool {
    is_complete || deployment.spec.paused
}

/// What `Progressing` says of a paused deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// That it is paused.
    Due,
    /// What it says already.
    Stays,
}

/// `reason`: the one that the condition has now. `None` if the deployment is not paused.
pub(crate) fn announcement(deployment: &MachineDeployment, reason: Option<&str>) -> Option<Announcement> {
    let stays = [Some(reasons::PAUSED), Some(reasons::PROGRESS_DEADLINE_EXCEEDED)].contains(&reason);
    deployment.spec.paused.then_some(if stays { Announcement::Stays } else { Announcement::Due })
}

/// Whether a paused deployment with these numbers of Machines has nothing left to scale. `None` if it is not paused.
pub(crate) fn is_settled(deployment: &MachineDeployment, replicas: i32, available: i32) -> Option<bool> {
    let desired = deployment.spec.replicas.max(0);
    deployment.spec.paused.then_some(replicas == desired && available == desired)
}
