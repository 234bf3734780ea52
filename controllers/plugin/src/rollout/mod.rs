//! `rollout` of a MachineDeployment, with the words and exit codes of `kubectl rollout`.

mod change;
mod history;
mod status;

use nodewright_api::MachineDeployment;

pub(crate) use self::{
    change::{pause, restart, resume, undo},
    history::history,
    status::status,
};
use crate::{fault::Outcome, plan::decode, read::Scope, resources::DEPLOYMENTS};

/// A deployment as kubectl names it.
pub(crate) fn full_name(name: &str) -> String {
    format!("machinedeployment.{}/{name}", nodewright_api::GROUP)
}

pub(crate) async fn deployment(scope: &Scope, name: &str) -> Outcome<MachineDeployment> {
    decode(DEPLOYMENTS.kind, &scope.control.get(DEPLOYMENTS, scope.namespace.as_deref(), name).await?)
}
