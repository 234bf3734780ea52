//! The objects of `refused.yaml`, for the tests of the webhooks and for a scenario.

#![allow(clippy::unwrap_used, reason = "a test may")]

use serde_json::{Value, json};

pub(crate) const ROLE: &str = "machineconfiguration.openshift.io/role";
pub(crate) const WORKER: &str = "worker";

pub(crate) fn refused() -> Vec<Value> {
    serde_saphyr::from_str(include_str!("refused.yaml")).unwrap()
}

/// The object of a row. A MachineConfig is of this role; a KubeletConfig is for the pools whose label `kubelet` is the name.
pub(crate) fn object(row: &Value, name: &str, role: &str) -> Value {
    let mut spec = row["spec"].clone();
    if let Some(ignition) = row["ignition"].as_object() {
        spec = json!({"config": {"ignition": {"version": "3.5.0"}}});
        spec["config"].as_object_mut().unwrap().extend(ignition.clone());
    }
    if row["worker"] == true {
        spec["machineConfigSelector"] = json!({"matchLabels": {ROLE: WORKER}});
    }
    if row["kind"] == "KubeletConfig" && row["unselective"] != true {
        spec["machineConfigPoolSelector"] = json!({"matchLabels": {"kubelet": name}});
    }
    let name = format!("{name}{}", row["suffix"].as_str().unwrap_or_default());
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": row["kind"],
        "metadata": {"name": name, "labels": {ROLE: role}}, "spec": spec})
}
