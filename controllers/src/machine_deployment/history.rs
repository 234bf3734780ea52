//! Which machine sets of former templates are deleted: the empty ones beyond `spec.revisionHistoryLimit`, oldest first. Without a
//! limit all stay, as in machine-controller-manager.

use nodewright_api::{MachineDeploymentStatus, stored::UPDATING};

use super::{
    snapshot::{Scope, SetView},
    status::is_complete,
};
use crate::shared::pause;

/// The sets that no rollback needs. None until the rollout is complete, unless it is paused: `after` is the status after this plan.
pub(super) fn surplus_revisions<'a>(scope: &Scope<'a>, after: &MachineDeploymentStatus) -> Vec<&'a SetView> {
    let (snapshot, spec) = (scope.snapshot, &scope.deployment.spec);
    let is_quiet = pause::permits_cleanup(scope.deployment, is_complete(scope.goal.desired, after));
    let Some(limit) = spec.revision_history_limit else { return vec![] };
    if !is_quiet || snapshot.current().is_none() {
        return vec![];
    }
    let old: Vec<_> = snapshot.old().collect();
    let is_target = |view: &SetView| UPDATING.read(view.set.as_ref()).is_some();
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.into_iter().take(surplus).filter(|view| view.size().is_gone() && !is_target(view)).collect()
}
