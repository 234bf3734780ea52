//! What tools for GitOps make of our objects: Flux and others by kstatus' rules, Argo CD by the health checks in
//! `config/argocd`, run by the version of Lua that it has.

use jiff::SignedDuration;
use mlua::{Lua, LuaSerdeExt};
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::testing::{machine_deployment, rolling};

const ARGOCD: &str = include_str!("../../../../config/argocd/argocd-cm.yaml");

/// The rules of kstatus for a kind that it does not know (`checkGenericProperties` in `kstatus/status/generic.go`).
fn kstatus(object: &Value) -> &'static str {
    if object["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating";
    }
    let observed = &object["status"]["observedGeneration"];
    if !observed.is_null() && *observed != object["metadata"]["generation"] {
        return "InProgress";
    }
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        match (condition["type"].as_str(), condition["status"].as_str()) {
            (Some("Reconciling"), Some("True")) => return "InProgress",
            (Some("Stalled"), Some("True")) => return "Failed",
            (Some("Ready"), Some("False" | "Unknown")) => return "InProgress",
            _ => {}
        }
    }
    "Current"
}

/// The verdict of Argo CD: status and message.
fn argocd(kind: &str, object: &Value) -> (String, String) {
    let config: Value = serde_saphyr::from_str(ARGOCD).unwrap();
    let script = config["data"][format!("resource.customizations.health.machine.sapcloud.io_{kind}")].as_str().unwrap();
    let lua = Lua::new();
    let options = mlua::serde::SerializeOptions::new().serialize_none_to_null(false).serialize_unit_to_null(false);
    lua.globals().set("obj", lua.to_value_with(object, options).unwrap()).unwrap();
    let health: Value = lua.from_value(lua.load(script).eval().unwrap()).unwrap();
    let text = |key: &str| health[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// A pool of three that has settled, and a change.
fn after(change: impl FnOnce(&mut Cluster)) -> Value {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    change(&mut cluster);
    (*cluster.live()).clone()
}

fn acts(cluster: &mut Cluster) {
    while cluster.act() {}
}

#[test]
fn every_state_of_a_deployment_is_read_as_it_is() {
    let class = |cluster: &mut Cluster, class: &str| cluster.change("/spec/template/spec/class/name", json!(class));
    let mut young = Cluster::of(machine_deployment(3, &rolling(1, 0)));
    let unseen = (*young.live()).clone();
    acts(&mut young);
    let in_place = json!({"type": "InPlaceUpdate", "inPlaceUpdate":
        {"maxSurge": 1, "maxUnavailable": 0, "orchestrationType": "Auto"}});
    let table = [
        // A tool that looks before the first status sees nothing that would tell.
        ("not seen yet", unseen, "Current", "Progressing"),
        ("its machines are made", (*young.live()).clone(), "InProgress", "Progressing"),
        ("settled", after(|_| {}), "Current", "Healthy"),
        ("changed and not seen yet", after(|cluster| class(cluster, "v2")), "InProgress", "Progressing"),
        (
            "rolled",
            after(|cluster| {
                class(cluster, "v2");
                acts(cluster)
            }),
            "InProgress",
            "Progressing",
        ),
        (
            "scaled",
            after(|cluster| {
                cluster.change("/spec/replicas", json!(5));
                acts(cluster)
            }),
            "InProgress",
            "Progressing",
        ),
        (
            "scaled to nothing",
            after(|cluster| {
                cluster.change("/spec/replicas", json!(0));
                cluster.settle()
            }),
            "Current",
            "Healthy",
        ),
        (
            "paused",
            after(|cluster| {
                cluster.edit(|live| live["spec"]["paused"] = true.into());
                cluster.settle()
            }),
            "Current",
            "Suspended",
        ),
        (
            "invalid",
            after(|cluster| {
                cluster.change("/spec/selector", json!({}));
                acts(cluster)
            }),
            "Failed",
            "Degraded",
        ),
        (
            "late",
            after(|cluster| {
                cluster.edit(|live| live["spec"]["progressDeadlineSeconds"] = 600.into());
                class(cluster, "v2");
                acts(cluster);
                cluster.set_now(cluster.now() + SignedDuration::from_secs(700));
                acts(cluster);
            }),
            "Failed",
            "Degraded",
        ),
        (
            "not to be updated in place",
            after(|cluster| {
                cluster.change("/spec/strategy", in_place);
                class(cluster, "v2");
                acts(cluster);
            }),
            "Failed",
            "Degraded",
        ),
        (
            "refused by the API server",
            after(|cluster| {
                let condition =
                    json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"});
                cluster.edit_sets(|set| set["status"]["machineSetCondition"] = json!([condition]));
                cluster.change("/spec/replicas", json!(5));
                acts(cluster);
            }),
            "InProgress",
            "Degraded",
        ),
        (
            "deleted",
            after(|cluster| {
                cluster.delete("machinedeployments", "pool");
                acts(cluster)
            }),
            "Terminating",
            "Progressing",
        ),
    ];
    for (state, object, by_kstatus, by_argocd) in table {
        assert_eq!(kstatus(&object), by_kstatus, "{state}: {:#}", object["status"]);
        let (health, message) = argocd("MachineDeployment", &object);
        assert_eq!(health, by_argocd, "{state}: {:#}", object["status"]);
        assert!(!message.is_empty(), "{state}");
    }
}

#[test]
fn argocd_reads_the_other_kinds() {
    let set = |status: Value| json!({"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status});
    let failure = json!([{"type": "ReplicaFailure", "status": "True", "message": "quota"}]);
    let machine = |status: Value| json!({"metadata": {"generation": 1}, "spec": {}, "status": status});
    let phase =
        |phase: &str| machine(json!({"currentStatus": {"phase": phase}, "lastOperation": {"description": "x"}}));
    let no_class = json!([{"type": "ConfigurationValid", "status": "False", "message": "no class"}]);
    let class = |kind: &str, status: &str| json!({"metadata": {}, "status": {"conditions": [{"type": kind, "status": status, "message": "m"}]}});
    let table = [
        ("MachineSet", set(json!({"observedGeneration": 2, "replicas": 2, "availableReplicas": 2})), "Healthy"),
        ("MachineSet", set(json!({"observedGeneration": 1, "replicas": 2, "availableReplicas": 2})), "Progressing"),
        ("MachineSet", set(json!({"observedGeneration": 2, "replicas": 3, "availableReplicas": 2})), "Progressing"),
        ("MachineSet", set(json!({"observedGeneration": 2, "machineSetCondition": failure})), "Degraded"),
        ("MachineSet", json!({"metadata": {"generation": 1}, "spec": {}}), "Progressing"),
        ("Machine", phase("Running"), "Healthy"),
        ("Machine", phase("Available"), "Healthy"),
        ("Machine", phase("Pending"), "Progressing"),
        ("Machine", phase("Terminating"), "Progressing"),
        ("Machine", phase("Unknown"), "Degraded"),
        ("Machine", phase("Failed"), "Degraded"),
        ("Machine", phase("CrashLoopBackOff"), "Degraded"),
        ("Machine", machine(json!({"conditions": no_class})), "Degraded"),
        ("Machine", json!({"metadata": {}, "spec": {}}), "Progressing"),
        ("MachineClass", class("SecretsFound", "True"), "Healthy"),
        ("MachineClass", class("SecretsFound", "False"), "Degraded"),
        ("MachineClass", class("ProviderSpecValid", "False"), "Degraded"),
        ("MachineClass", json!({"metadata": {}}), "Healthy"),
    ];
    for (kind, object, expected) in table {
        assert_eq!(argocd(kind, &object).0, expected, "{kind} {object:#}");
    }
}
