//! Objects on the wire. The Go types of machine-controller-manager v0.62.1 wrote those in `written_by_go`, with all fields set
//! and with none.

use kube::Resource;
use nodewright_api::{
    Machine, MachineClass, MachineClassStatus, MachineDeployment, MachineDeploymentCondition, MachinePhase, MachineSet,
    MachineSetCondition, MachineSetStatus, MachineStatus, OperationState, RawJson, StrategyType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

trait Kind: Resource + Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned {}
impl<T: Resource + Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned> Kind for T {}

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn written(object: &impl Serialize) -> Value {
    value(&serde_json::to_string(object).expect("writable"))
}

/// Reads an object of Go with all fields set, and writes the same.
fn round_trip<T: Kind>(text: &str) -> T {
    let object: T = serde_json::from_str(text).expect("readable");
    assert_eq!(written(&object), value(text));
    let from_value: T = serde_json::from_value(value(text)).expect("readable as a value");
    assert_eq!(written(&from_value), value(text));
    object
}

/// Reads an object of Go with no field set, and writes no null and no field less.
fn read_zero<T: Kind>(text: &str) -> T {
    let object: T = serde_json::from_str(text).expect("readable");
    let again = written(&object);
    assert_no_null(&again, "");
    assert_eq!(serde_json::from_value::<T>(again).expect("readable again"), object);
    object
}

fn assert_no_null(value: &Value, path: &str) {
    match value {
        Value::Null => unreachable!("{path} is null"),
        Value::Array(items) => items.iter().for_each(|item| assert_no_null(item, &format!("{path}[]"))),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| assert_no_null(field, &format!("{path}.{name}")));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a_machine_of_go_is_read_and_written_as_it_was() {
    let machine: Machine = round_trip(include_str!("written_by_go/machine.json"));
    assert_eq!(machine.phase(), &MachinePhase::InPlaceUpdateSuccessful);
    assert_eq!(machine.node_name(), Some("ip-10-0-0-1"));
    assert_eq!(machine.class_name(), "pool-z1-abc12");
    assert_eq!(machine.provider_id(), Some("aws:///eu-west-1/i-0123"));
    assert_eq!(machine.priority(), 1);
    assert!(!machine.is_deleting() && !machine.is_force_deletion());
    assert_eq!(machine.spec.drain_timeout.map(|timeout| timeout.to_std().as_secs()), Some(7_200));
}

#[test]
fn a_machine_set_of_go_is_read_and_written_as_it_was() {
    let set: MachineSet = round_trip(include_str!("written_by_go/machine-set.json"));
    assert!(set.is_frozen() && !set.is_deleting());
    assert_eq!(set.condition("Frozen").map(|condition| condition.reason.as_str()), Some("OverShootingReplicaCount"));
    let status = set.status.expect("a status");
    assert_eq!(status.failed_machines[0].last_operation.state, OperationState::Failed);
    assert_eq!(status.failed_machines[0].last_operation.error_code, "ResourceExhausted");
}

#[test]
fn a_machine_deployment_of_go_is_read_and_written_as_it_was() {
    let deployment: MachineDeployment = round_trip(include_str!("written_by_go/machine-deployment.json"));
    assert_eq!(deployment.spec.strategy.effective_type(), StrategyType::InPlaceUpdate);
    let bounds = deployment.update_bounds().expect("bounds");
    assert_eq!((bounds.max_surge, bounds.max_unavailable), (0, 2), "a user who selects machines wants no others");
    assert!(deployment.condition("Progressing").is_some_and(|condition| condition.last_update_time.is_some()));
}

#[test]
fn a_machine_class_of_go_is_read_and_written_as_it_was() {
    let class: MachineClass = round_trip(include_str!("written_by_go/machine-class.json"));
    assert_eq!(class.secret_names().collect::<Vec<_>>(), [("shoot", "user-data"), ("shoot", "cloud")]);
    let text = serde_json::to_string(&json!({"keep": 1})).expect("writable");
    let class = MachineClass { provider_spec: RawJson::from_text(text.clone()).expect("valid"), ..class };
    assert!(serde_json::to_string(&class).expect("writable").contains(&text));
}

#[test]
fn zero_values_of_go_are_absent() {
    let machine: Machine = read_zero(include_str!("written_by_go/machine-zero.json"));
    assert_eq!(machine.phase(), &MachinePhase::Unset);
    assert_eq!(written(&machine)["spec"], json!({}));
    let set: MachineSet = read_zero(include_str!("written_by_go/machine-set-zero.json"));
    assert!(set.status.is_some_and(|status| status.failed_machines.is_empty()));
    read_zero::<MachineDeployment>(include_str!("written_by_go/machine-deployment-zero.json"));
    let class: MachineClass = read_zero(include_str!("written_by_go/machine-class-zero.json"));
    assert_eq!(class.provider_spec, RawJson::default());
    assert!(class.node_template.is_some_and(|template| template.capacity.is_empty()));
}

#[test]
fn null_is_absent_everywhere() {
    let machine: Machine = serde_json::from_value(json!({
        "metadata": {"creationTimestamp": null, "labels": null},
        "spec": {"class": null, "providerID": null, "nodeTemplate": {"metadata": null, "spec": null}, "drainTimeout": null, "nodeConditions": null},
        "status": {"addresses": null, "conditions": null, "lastOperation": null, "currentStatus": {"phase": null, "timeoutActive": null}, "lastKnownState": null},
    }))
    .expect("readable");
    assert_eq!(written(&machine), written(&Machine { status: Some(MachineStatus::default()), ..Machine::default() }));
    let set: MachineSet = serde_json::from_value(json!({
        "metadata": {}, "spec": {"replicas": null, "selector": null, "template": null, "minReadySeconds": null},
        "status": {"replicas": null, "machineSetCondition": null, "failedMachines": null, "observedGeneration": null},
    }))
    .expect("readable");
    assert_eq!(set, MachineSet { status: Some(MachineSetStatus::default()), ..MachineSet::default() });
    let deployment: MachineDeployment = serde_json::from_value(json!({
        "metadata": {}, "spec": {"replicas": null, "template": null, "strategy": {"type": null, "rollingUpdate": null}, "paused": null, "rollbackTo": null},
        "status": null,
    }))
    .expect("readable");
    assert_eq!(deployment, MachineDeployment::default());
    let class: MachineClass = serde_json::from_value(json!({
        "metadata": null, "nodeTemplate": null, "provider": null, "providerSpec": null, "secretRef": null, "status": null,
    }))
    .expect("readable");
    assert_eq!(class, MachineClass::default());
}

#[test]
fn what_is_not_known_is_passed_over_and_unknown_values_are_kept() {
    let machine: Machine = serde_json::from_value(json!({
        "metadata": {"name": "m", "later": {"a": [1]}},
        "spec": {"class": {"name": "c", "later": true}, "later": {}},
        "status": {"currentStatus": {"phase": "Hibernated", "later": 1}, "lastOperation": {"type": "Hibernate"}, "later": []},
        "later": null,
    }))
    .expect("readable");
    assert_eq!(machine.phase(), &MachinePhase::Other("Hibernated".to_owned()));
    assert_eq!(
        written(&machine)["status"],
        json!({"currentStatus": {"phase": "Hibernated"}, "lastOperation": {"type": "Hibernate"}})
    );
}

#[test]
fn counts_are_written_though_they_are_zero() {
    let set = MachineSet { status: Some(MachineSetStatus::default()), ..MachineSet::default() };
    assert_eq!(written(&set)["spec"], json!({"replicas": 0}));
    assert_eq!(
        written(&set)["status"],
        json!({"replicas": 0, "fullyLabeledReplicas": 0, "readyReplicas": 0, "availableReplicas": 0}),
        "an apply that left them out would leave another manager's numbers"
    );
}

#[test]
fn conditions_have_the_form_of_their_kind() {
    let time = serde_json::from_value(json!("2026-04-01T12:30:15Z")).expect("a time");
    let of_deployment = MachineDeploymentCondition { last_update_time: Some(time), ..Default::default() };
    assert_eq!(
        written(&of_deployment),
        json!({"type": "", "status": "Unknown", "lastUpdateTime": "2026-04-01T12:30:15Z"})
    );
    assert_eq!(written(&MachineSetCondition::default()), json!({"type": "", "status": "Unknown"}));
}

#[test]
fn a_class_nested_without_end_is_read_and_written() {
    let levels = 9_000;
    let document = format!("{}{}", "{\"a\":".repeat(levels), "{}".to_owned() + &"}".repeat(levels));
    let text = format!(
        r#"{{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineClass","metadata":{{"name":"deep"}},"providerSpec":{document}}}"#
    );
    let class: MachineClass = serde_json::from_str(&text).expect("read without recursion");
    assert_eq!(class.provider_spec.text(), document);
    assert_eq!(serde_json::to_string(&class).expect("writable"), text);
    let class = MachineClass { status: Some(MachineClassStatus::default()), ..class };
    assert!(!format!("{class:?}").contains("{\"a\":"), "the document is not shown");
}

#[test]
fn a_deep_unknown_field_does_not_hide_a_machine() {
    let levels = 9_000;
    let text = format!(
        r#"{{"metadata":{{"name":"m"}},"spec":{{"providerID":"x","later":{}{}}}}}"#,
        "[".repeat(levels),
        "]".repeat(levels)
    );
    let machine: Machine = serde_json::from_str(&text).expect("read without recursion");
    assert_eq!(machine.provider_id(), Some("x"));
}

#[test]
fn an_invalid_duration_says_where_and_what() {
    let error = serde_json::from_value::<Machine>(json!({"metadata": {}, "spec": {"drainTimeout": "2 hours"}}))
        .expect_err("no duration");
    assert!(error.to_string().contains("\"2 hours\""), "{error}");
}
