//! `rollout` of a MachineDeployment, with the words and exit codes of `kubectl rollout`.

mod change;
mod history;
mod status;

use nodewright_api::MachineDeployment;
use serde_json::Value;

pub(crate) use self::{
    change::{pause, restart, resume, undo},
    history::history,
    status::status,
};
use crate::{
    fault::{Fault, Outcome},
    read::Scope,
    resources::DEPLOYMENTS,
};

/// A deployment as kubectl names it.
pub(crate) fn full_name(name: &str) -> String {
    format!("machinedeployment.{}/{name}", nodewright_api::GROUP)
}

pub(crate) async fn deployment(scope: &Scope, name: &str) -> Outcome<MachineDeployment> {
    decoded(&scope.control.get(DEPLOYMENTS, scope.namespace.as_deref(), name).await?)
}

fn decoded(object: &Value) -> Outcome<MachineDeployment> {
    let text = object.to_string();
    serde_json::from_str(&text).map_err(|error| {
        let field = nodewright_api::failed_field(&text, &error);
        Fault::Message(format!("the MachineDeployment cannot be decoded: field {field}"))
    })
}
