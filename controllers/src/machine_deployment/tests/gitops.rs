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
            (Some("Reconciling"), Some("True")) | (Some("Ready"), Some("False" | "Unknown")) => return "InProgress",
            (Some("Stalled"), Some("True")) => return "Failed",
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

/// What becomes of a pool of three that has settled: the state's name, what happens, and the verdicts of kstatus and Argo CD.
type Row = (&'static str, fn(&mut Cluster), &'static str, &'static str);

fn roll(cluster: &mut Cluster) {
    cluster.change("/spec/template/spec/class/name", json!("v2"));
}

fn scale(cluster: &mut Cluster, replicas: i32) {
    cluster.change("/spec/replicas", json!(replicas));
}

fn pause(cluster: &mut Cluster) {
    cluster.edit(|live| live["spec"]["paused"] = true.into());
}

fn miss_the_deadline(cluster: &mut Cluster) {
    cluster.edit(|live| live["spec"]["progressDeadlineSeconds"] = 600.into());
    roll(cluster);
    while cluster.act() {}
    cluster.set_now(cluster.now() + SignedDuration::from_secs(700));
}

fn update_in_place(cluster: &mut Cluster) {
    let bounds = json!({"maxSurge": 1, "maxUnavailable": 0, "orchestrationType": "Auto"});
    cluster.change("/spec/strategy", json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds}));
    roll(cluster);
}

fn be_refused(cluster: &mut Cluster) {
    let condition = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"});
    cluster.edit_sets(|set| set["status"]["machineSetCondition"] = json!([condition]));
    scale(cluster, 5);
}

fn expect(state: &str, object: &Value, by_kstatus: &str, by_argocd: &str) {
    assert_eq!(kstatus(object), by_kstatus, "{state}: {:#}", object["status"]);
    let (health, message) = argocd("MachineDeployment", object);
    assert_eq!(health, by_argocd, "{state}: {:#}", object["status"]);
    assert!(!message.is_empty(), "{state}");
}

#[test]
fn every_state_of_a_deployment_is_read_as_it_is() {
    let table: [Row; 9] = [
        ("settled", |_| {}, "Current", "Healthy"),
        ("rolled", roll, "InProgress", "Progressing"),
        ("scaled", |cluster| scale(cluster, 5), "InProgress", "Progressing"),
        ("paused", pause, "Current", "Suspended"),
        ("invalid", |cluster| cluster.change("/spec/selector", json!({})), "Failed", "Degraded"),
        ("late", miss_the_deadline, "Failed", "Degraded"),
        ("not to be updated in place", update_in_place, "Failed", "Degraded"),
        ("refused by the API server", be_refused, "InProgress", "Degraded"),
        ("deleted", |cluster| cluster.delete("machinedeployments", "pool"), "Terminating", "Progressing"),
    ];
    for (state, happens, by_kstatus, by_argocd) in table {
        let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
        happens(&mut cluster);
        if state != "settled" && state != "paused" && state != "deleted" {
            assert_eq!(kstatus(&cluster.live()), "InProgress", "{state}, and not seen yet");
        }
        while cluster.act() {}
        expect(state, &cluster.live(), by_kstatus, by_argocd);
    }
}

#[test]
fn a_deployment_is_young_and_then_done() {
    let mut cluster = Cluster::of(machine_deployment(3, &rolling(1, 0)));
    // A tool that looks before the first status sees nothing that would tell.
    expect("not seen yet", &cluster.live(), "Current", "Progressing");
    while cluster.act() {}
    expect("its machines are made", &cluster.live(), "InProgress", "Progressing");
    cluster.settle();
    expect("done", &cluster.live(), "Current", "Healthy");
    scale(&mut cluster, 0);
    cluster.settle();
    expect("scaled to nothing", &cluster.live(), "Current", "Healthy");
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
