//! The metrics of sets and deployments that machine-controller-manager has.

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::cache::{Change, Store, Stores};
use serde_json::{Value, json};

use crate::{
    machine_deployment,
    machine_set::StaleMachines,
    shared::{CONTROL, indexes::SET_BY_UID},
    testing::{MachineExt, machine, machine_deployment as deployment, machine_set},
};

fn series(metrics: &Metrics) -> Vec<String> {
    let text = metrics.encode().unwrap();
    text.lines().filter(|line| line.starts_with("mcm_machine_")).map(str::to_owned).collect()
}

fn failed() -> Value {
    json!([{"name": "m", "providerID": "x:///i-1", "ownerRef": "set",
        "lastOperation": {"type": "HealthCheck", "state": "Failed"}}])
}

const FAILED: &str = r#"failed_machine_name="m",failed_machine_provider_id="x:///i-1",failed_machine_owner_ref="set",failed_machine_last_operation_state="Failed",failed_machine_last_operation_machine_operation_type="HealthCheck""#;

/// machine-controller-manager has the ready replicas of sets as their replicas, and 0 for a percentage.
#[test]
fn mcm_defect_18_percentages_and_replicas_are_numbers() {
    let (metrics, stores) = (Metrics::new(), Stores::default());
    let (deployments, sets) = (Arc::new(Store::new(CONTROL, "default")), Arc::new(Store::new(CONTROL, "default")));
    stores.add(deployments.clone());
    stores.add(sets.clone());
    machine_deployment::register_metrics(&metrics, stores.clone());
    StaleMachines::register(&metrics, stores);
    let bounds = json!({"maxSurge": "25%", "maxUnavailable": "50%"});
    let mut pool = deployment(5, &json!({"type": "RollingUpdate", "rollingUpdate": bounds}));
    let available = json!([{"type": "Available", "status": "True"}]);
    pool["status"] = json!({"replicas": 4, "failedMachines": failed(), "conditions": available});
    deployments.apply(serde_json::from_value::<MachineDeployment>(pool).unwrap());
    let mut set = serde_json::to_value(machine_set("set", 3, None)).unwrap();
    set["status"] = json!({"replicas": 3, "readyReplicas": 2, "failedMachines": failed()});
    sets.apply(serde_json::from_value::<MachineSet>(set).unwrap());
    let all = series(&metrics);
    let expect = |family: &str, labels: &str, value: i64| {
        let line = format!("mcm_machine_{family}{{{labels}}} {value}");
        assert!(all.contains(&line), "{line} is not in {all:#?}");
    };
    let (pool, set) = (r#"name="pool",namespace="default""#, r#"name="set",namespace="default""#);
    expect("deployment_info_spec_rolling_update_max_surge", pool, 2);
    expect("deployment_info_spec_rolling_update_max_unavailable", pool, 2);
    expect("deployment_info_spec_replicas", pool, 5);
    expect("deployment_info_spec_min_ready_seconds", pool, 500);
    expect("deployment_status_replicas", pool, 4);
    expect("deployment_status_condition", &format!(r#"{pool},condition="Available""#), 1);
    expect("deployment_failed_machines", &format!("{pool},{FAILED}"), 1);
    expect("deployment_info", &format!(r#"{pool},createdAt="0",spec_strategy_type="RollingUpdate""#), 1);
    expect("set_status_replicas", set, 3);
    expect("set_status_ready_replicas", set, 2);
    expect("set_failed_machines", &format!("{set},{FAILED}"), 1);
    assert!(!all.iter().any(|line| line.contains("progress_deadline")), "it has none");
    deployments.remove("default", "pool", 100);
    sets.remove("default", "set", 100);
    let left =
        ["mcm_machine_stale_machines_total 0", "mcm_machine_deployment_items_total 0", "mcm_machine_set_items_total 0"];
    assert_eq!(series(&metrics), left, "what is gone has no series");
}

#[test]
fn what_a_set_deletes_because_it_was_unhealthy_is_counted() {
    let (metrics, stores) = (Metrics::new(), Stores::default());
    let sets = Arc::new(Store::new(CONTROL, "default"));
    sets.add_index(SET_BY_UID);
    stores.add(sets.clone());
    let set = machine_set("set", 3, None);
    sets.apply(set.clone());
    let stale = StaleMachines::register(&metrics, stores.clone());
    let sick = || machine("m").owned_by(&set).phase("Failed").with("/status/lastOperation/type", "HealthCheck");
    let late = || machine("m").owned_by(&set).phase("Failed").with("/status/lastOperation/type", "Create");
    let deleted = |machine: &dyn Fn() -> crate::testing::MachineBuilder| {
        let (old, new): (Machine, Machine) = (machine().build(), machine().deleting().build());
        stale.count(&Change { old: Some(Arc::new(old)), new: Some(Arc::new(new)) }, &stores);
    };
    deleted(&sick);
    deleted(&late);
    assert!(series(&metrics).contains(&"mcm_machine_stale_machines_total 1".to_owned()));
    sets.remove("default", "set", 100);
    deleted(&sick);
    assert!(series(&metrics).contains(&"mcm_machine_stale_machines_total 1".to_owned()), "its set is gone");
}
