//! The objects of a large fleet at rest.

use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet};
use nodewright_controllers::shared::CONTROL;
use nodewright_runtime::{cache::Stores, object::Kind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::TestResult;

/// Names are as long as Gardener's.
pub(crate) const NAMESPACE: &str = "shoot--garden--production";
const CLASS: &str = "shoot--garden--production-worker-z1-5f7b9";
/// Machines of a deployment. It has a set with them, and one of a former template without.
const OF_DEPLOYMENT: usize = 50;
/// Those of the kubelet, of Gardener's node-problem-detector, and of the controller.
const CONDITIONS: [&str; 15] = [
    "Ready",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "CorruptDockerOverlay2",
    "FrequentKubeletRestart",
    "FrequentContainerdRestart",
    "FrequentUnregisterNetDevice",
    "ClusterNetworkProblem",
    "ConfigurationValid",
    "InstanceProvisioned",
    "NodeJoined",
];

/// Puts so many Machines into the caches, with their class, sets and deployments.
pub(crate) fn fill(stores: &Stores, machines: usize) -> TestResult {
    let template = json!({"instanceType": "m5.xlarge", "zone": "z1", "region": "r", "capacity": {}});
    let class = json!({"provider": "AWS", "providerSpec": {}, "nodeTemplate": template});
    add::<MachineClass>(stores, CLASS, None, class)?;
    for number in 0..machines.div_ceil(OF_DEPLOYMENT) {
        let first = number * OF_DEPLOYMENT;
        let set = deployment(stores, number)?;
        for number in first..machines.min(first + OF_DEPLOYMENT) {
            machine(stores, &set, number)?;
        }
    }
    Ok(())
}

/// A deployment with its sets. Returns the name of the current one.
fn deployment(stores: &Stores, number: usize) -> TestResult<String> {
    let name = format!("shoot--garden--production-worker-{number:03}-z1");
    let template = json!({"spec": {"class": {"kind": "MachineClass", "name": CLASS}}});
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let spec = json!({"replicas": OF_DEPLOYMENT, "template": template, "minReadySeconds": 500, "strategy": strategy});
    let conditions = ["Available", "Progressing"].map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"replicas": OF_DEPLOYMENT, "readyReplicas": OF_DEPLOYMENT, "conditions": conditions});
    add::<MachineDeployment>(stores, &name, None, json!({"spec": spec, "status": status}))?;
    for (hash, replicas) in [("6c8d4", 0), ("5f7b9", OF_DEPLOYMENT)] {
        let fields = json!({"spec": {"replicas": replicas, "template": template}, "status": {"replicas": replicas}});
        add::<MachineSet>(stores, &format!("{name}-{hash}"), Some(("MachineDeployment", &name)), fields)?;
    }
    Ok(format!("{name}-5f7b9"))
}

fn machine(stores: &Stores, set: &str, number: usize) -> TestResult {
    let node = format!("ip-10-250-{}-{}.eu-west-1.compute.internal", number / 256, number % 256);
    let conditions =
        CONDITIONS.map(|kind| json!({"type": kind, "status": if kind == "Ready" { "True" } else { "False" }}));
    let class = json!({"apiGroup": "machine.sapcloud.io", "kind": "MachineClass", "name": CLASS});
    let fields = json!({
        "metadata": {"labels": {"node": node}},
        "spec": {"class": class, "providerID": format!("aws:///eu-west-1/i-0123456789ab{number:05}")},
        "status": {"node": node, "conditions": conditions, "currentStatus": {"phase": "Running"}},
    });
    add::<Machine>(stores, &format!("{set}-{number:05}"), Some(("MachineSet", set)), fields)
}

fn add<K: Kind + DeserializeOwned>(
    stores: &Stores,
    name: &str,
    owner: Option<(&str, &str)>,
    fields: Value,
) -> TestResult {
    let mut object = fields;
    let metadata = &mut object["metadata"];
    metadata["name"] = name.into();
    metadata["namespace"] = NAMESPACE.into();
    metadata["uid"] = format!("uid-{name}").into();
    metadata["resourceVersion"] = "1".into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    if let Some((kind, owner)) = owner {
        let (version, uid) = ("machine.sapcloud.io/v1alpha1", format!("uid-{owner}"));
        metadata["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": owner, "uid": uid, "controller": true}]);
    }
    stores.of::<K>(CONTROL).apply(serde_json::from_value(object)?);
    Ok(())
}
