//! Asks the API server which other Machines have a Machine's name, in all namespaces.

use nodewright_api::{Code, Machine};
use nodewright_driver::{DriverError, MachineRequest};
use nodewright_runtime::{
    object::ResourceType,
    request::{Call, Connection, FailureClass},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
}

/// The other Machines of the name, each as `namespace/name`.
pub(super) async fn look_up(control: &Connection, machine: &MachineRequest) -> Result<Vec<String>, DriverError> {
    let machines = ResourceType::of::<Machine>().collection("");
    let path = format!("{machines}?fieldSelector=metadata.name%3D{}", machine.name);
    let answer = control.send(Call::get(path)).await.map_err(|error| {
        if error.class == FailureClass::Forbidden {
            let text = "the manager may not list machines in all namespaces: allow it, as the ClusterRole nodewright-machines does";
            return DriverError::new(Code::PermissionDenied, text);
        }
        DriverError::new(Code::Unavailable, format!("failed to list machines named {}: {error}", machine.name))
    })?;
    let list: Items = serde_json::from_slice(answer.body())
        .map_err(|_| DriverError::new(Code::Unavailable, "the API server's answer is no list of machines"))?;
    let others = list.items.into_iter().map(|item| item.metadata).filter(|other| other.uid != machine.uid);
    Ok(others.map(|other| format!("{}/{}", other.namespace, other.name)).collect())
}
