//! Asks the API server which other Machines have a Machine's name, in all namespaces.

use nodewright_api::Code;
use nodewright_driver::{DriverError, MachineRequest};
use nodewright_runtime::request::{Call, Connection, FailureClass};
use serde::Deserialize;

use crate::shared::lists::{items, machines_named};

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
}

/// The other Machines of the name, each as `namespace/name`.
pub(super) async fn look_up(control: &Connection, machine: &MachineRequest) -> Result<Vec<String>, DriverError> {
    let answer = control.send(Call::get(machines_named(&machine.name))).await.map_err(|error| {
        if error.class == FailureClass::Forbidden {
            let text = "the manager may not list machines in all namespaces: allow it, as the ClusterRole nodewright-machines does";
            return DriverError::new(Code::PermissionDenied, text);
        }
        DriverError::new(Code::Unavailable, format!("failed to list machines named {}: {error}", machine.name))
    })?;
    let Ok(Some(machines)) = items::<Item>(answer.body()) else {
        return Err(DriverError::new(Code::Unavailable, "the API server's answer is no list of machines"));
    };
    let others = machines.into_iter().map(|item| item.metadata).filter(|other| other.uid != machine.uid);
    Ok(others.map(|other| format!("{}/{}", other.namespace, other.name)).collect())
}
