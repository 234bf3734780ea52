//! When a Node without a Machine is initialized, and what it gets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{Code, Machine, MachineClass, labels, taints};
use nodewright_driver::{Class, DriverError, Instance, InstanceMetadata};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    effect::Outcomes,
    object::ObjectRef,
    plan::Step,
};
use serde_json::{Value, json};

use super::{
    call::{Describe, Outcome},
    memory::{Context, Plan},
    plan::plan,
    snapshot::Snapshot,
};
use crate::{
    shared::{
        CONTROL, TARGET,
        cloud_manager::{CloudManager, CloudNodeMode},
        driver::{DriverProperties, Provider},
        indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE},
        node::Node,
    },
    testing::{self, NOW, Uncalled, machine},
};

const ID: &str = "p:///zone/vm-1";
const ADDRESS: &str = "192.0.2.7";

/// A Node of a control plane that has existed for a minute at [`NOW`].
fn live(change: &Value) -> Value {
    let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7", "labels": {"kubernetes.io/hostname": "n"},
        "creationTimestamp": "2026-06-01T11:59:00Z"},
        "spec": {"providerID": ID, "taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
            {"key": taints::UNINITIALIZED, "effect": "NoSchedule", "value": "true"}]}, "status": {}});
    json_patch::merge(&mut node, change);
    node
}

fn snapshot_of(live: &Value, mode: CloudNodeMode) -> Snapshot {
    let class = |name: &str| Class { name: name.to_owned(), ..testing::class() };
    Snapshot {
        node: Arc::new(serde_json::from_value(live.clone()).unwrap()),
        is_unowned: true,
        is_described: true,
        classes: vec![class("a"), class("b")],
        error: None,
        scoped_watches: vec![],
        cloud_manager: CloudManager::take(&Stores::default(), mode, None),
        deadline: Duration::from_secs(30),
    }
}

fn on(change: &Value) -> Snapshot {
    snapshot_of(&live(change), CloudNodeMode::On)
}

fn at(seconds: i64) -> Timestamp {
    NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn planned(snapshot: &Snapshot, outcomes: &Outcomes<Describe>, seconds: i64) -> Plan {
    plan(&Context::new(at(seconds), outcomes), snapshot)
}

/// The class with which a plan asks.
fn asks(plan: &Plan) -> Option<Describe> {
    plan.steps().find_map(|planned| match &planned.step {
        Step::Call(call) => Some(call.clone()),
        _ => None,
    })
}

/// Answers the question of a plan, and says with which class it was asked.
fn answer(snapshot: &Snapshot, outcomes: &mut Outcomes<Describe>, seconds: i64, outcome: Outcome) -> String {
    let call = asks(&planned(snapshot, outcomes, seconds)).expect("a question");
    assert!(outcomes.begin(&call, at(seconds)));
    assert!(asks(&planned(snapshot, outcomes, seconds)).is_none(), "one question at a time");
    outcomes.finish(&call, at(seconds), outcome);
    call.class.name
}

fn vm() -> Instance {
    let metadata = InstanceMetadata {
        instance_type: Some("large".to_owned()),
        zone: Some("z".to_owned()),
        region: Some("r".to_owned()),
        labels: BTreeMap::from([
            ("rack".to_owned(), "7".to_owned()),
            ("topology.kubernetes.io/zone".to_owned(), "x".to_owned()),
        ]),
    };
    Instance {
        // Providers differ in what stands before the id.
        provider_id: "p:///region/vm-1".to_owned(),
        addresses: vec![NodeAddress { type_: "InternalIP".to_owned(), address: ADDRESS.to_owned() }],
        metadata: Some(Box::new(metadata)),
        ..Instance::default()
    }
}

fn failed(code: Code) -> Outcome {
    Err(DriverError::new(code, "why"))
}

fn event(plan: &Plan) -> Option<&str> {
    plan.events.first().map(|event| event.message.as_ref())
}

#[test]
fn a_node_gets_its_addresses_before_its_labels_and_then_loses_the_taint() {
    let (snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
    assert_eq!(answer(&snapshot, &mut outcomes, 0, failed(Code::NotFound)), "a");
    assert_eq!(answer(&snapshot, &mut outcomes, 1, Ok(Arc::new(vm()))), "b");
    let plan = planned(&snapshot, &outcomes, 2);
    let mut node = live(&json!({}));
    let mut written = vec![];
    for step in plan.steps().map(|planned| &planned.step) {
        let Step::Edit { patch, subresource, .. } = step else { panic!("{plan}") };
        nodewright_testing::json_patch(&mut node, patch).unwrap();
        written.push(*subresource);
    }
    assert_eq!(written, ["status", ""]);
    assert_eq!(node["status"]["addresses"], json!([{"type": "InternalIP", "address": ADDRESS}]));
    assert_eq!(
        node["spec"]["taints"],
        json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
    );
    let wanted = [
        ("kubernetes.io/hostname", "n"),
        ("rack", "7"),
        (labels::ZONE, "z"),
        ("failure-domain.beta.kubernetes.io/zone", "z"),
        ("topology.kubernetes.io/region", "r"),
        ("failure-domain.beta.kubernetes.io/region", "r"),
        ("node.kubernetes.io/instance-type", "large"),
        ("beta.kubernetes.io/instance-type", "large"),
    ];
    assert_eq!(node["metadata"]["labels"], json!(BTreeMap::from(wanted)));
    let done = planned(&snapshot_of(&node, CloudNodeMode::On), &outcomes, 3);
    assert!(done.is_idle() && done.forgets_outcomes && done.wake.is_none());
}

#[test]
fn what_is_no_answer_about_its_vm_changes_nothing_and_is_asked_again() {
    let without = |change: fn(&mut Instance)| {
        let mut instance = vm();
        change(&mut instance);
        Ok(Arc::new(instance))
    };
    for (outcome, why) in [
        (failed(Code::NotFound), "code = [NotFound]"),
        (failed(Code::Unauthenticated), "code = [Unauthenticated]"),
        (without(|it| it.addresses.clear()), "its VM has no address yet"),
        (without(|it| it.metadata = None), "the driver has not described its VM"),
        (without(|it| it.provider_id = "p:///zone/vm-2".to_owned()), "p:///zone/vm-2 in place of p:///zone/vm-1"),
    ] {
        let (snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
        answer(&snapshot, &mut outcomes, 0, outcome);
        answer(&snapshot, &mut outcomes, 0, failed(Code::NotFound));
        let blocked = planned(&snapshot, &outcomes, 1);
        assert!(blocked.is_idle() && !blocked.forgets_outcomes);
        assert!(event(&blocked).unwrap().contains(why), "{:?}", event(&blocked));
        assert_eq!(blocked.wake, Some(at(60)));
        assert_eq!(answer(&snapshot, &mut outcomes, 60, Ok(Arc::new(vm()))), "a");
        assert_eq!(planned(&snapshot, &outcomes, 61).steps().count(), 2, "{why}");
    }
}

#[test]
fn an_old_node_is_asked_about_less_frequently() {
    let (snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
    for _ in 0..2 {
        answer(&snapshot, &mut outcomes, 400, failed(Code::NotFound));
    }
    assert_eq!(planned(&snapshot, &outcomes, 401).wake, Some(at(700)));
}

#[test]
fn a_vm_that_was_made_for_a_machine_is_left_to_the_machine() {
    let (snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
    assert_eq!(answer(&snapshot, &mut outcomes, 0, failed(Code::FailedPrecondition)), "a");
    let plan = planned(&snapshot, &outcomes, 1);
    assert!(plan.is_idle() && event(&plan).is_some(), "no other class is asked");
    // Of another class's cluster: the first one knows nothing of that.
    let (snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
    assert_eq!(answer(&snapshot, &mut outcomes, 0, Ok(Arc::new(vm()))), "a");
    assert_eq!(answer(&snapshot, &mut outcomes, 0, failed(Code::FailedPrecondition)), "b");
    assert!(planned(&snapshot, &outcomes, 1).is_idle());
}

#[test]
fn another_class_or_id_is_asked_about_at_once() {
    let (mut snapshot, mut outcomes) = (on(&json!({})), Outcomes::default());
    for _ in 0..2 {
        answer(&snapshot, &mut outcomes, 0, failed(Code::NotFound));
    }
    assert!(asks(&planned(&snapshot, &outcomes, 1)).is_none());
    snapshot.classes[1].revision = "another".to_owned();
    assert_eq!(asks(&planned(&snapshot, &outcomes, 1)).unwrap().class.name, "b");
    let other = on(&json!({"spec": {"providerID": "p:///zone/vm-9"}}));
    assert_eq!(asks(&planned(&other, &outcomes, 1)).unwrap().provider_id, "p:///zone/vm-9");
}

#[test]
fn nothing_is_asked_for_nodes_that_others_initialize() {
    let left = |snapshot: Snapshot| {
        let plan = planned(&snapshot, &Outcomes::default(), 0);
        plan.is_idle() && plan.forgets_outcomes && plan.wake.is_none()
    };
    assert!(left(Snapshot { is_unowned: false, ..on(&json!({})) }), "it has a machine");
    assert!(left(Snapshot { is_described: false, ..on(&json!({})) }), "the driver cannot");
    assert!(left(on(&json!({"metadata": {"deletionTimestamp": NOW}}))));
    assert!(left(on(&json!({"spec": {"taints": null}}))));
    assert!(left(snapshot_of(&live(&json!({})), CloudNodeMode::Off)));
    // It is open who does it.
    let open = snapshot_of(&live(&json!({})), CloudNodeMode::Auto(Duration::from_mins(10)));
    let plan = planned(&open, &Outcomes::default(), 0);
    assert!(plan.is_idle() && plan.wake.is_some());
}

#[test]
fn a_new_node_may_have_a_machine_yet() {
    let new = on(&json!({"metadata": {"creationTimestamp": NOW}}));
    let plan = planned(&new, &Outcomes::default(), 14);
    assert_eq!((plan.is_idle(), plan.wake, event(&plan)), (true, Some(at(15)), None));
    assert!(asks(&planned(&new, &Outcomes::default(), 15)).is_some());
}

#[test]
fn a_node_says_what_it_lacks_once_that_is_late() {
    let nameless =
        |created: &str| on(&json!({"metadata": {"creationTimestamp": created}, "spec": {"providerID": null}}));
    let late = planned(&nameless("2026-06-01T11:59:00Z"), &Outcomes::default(), 0);
    assert!(event(&late).unwrap().contains("--provider-id"), "{:?}", event(&late));
    let early = planned(&nameless("2026-06-01T11:59:45Z"), &Outcomes::default(), 0);
    assert_eq!((event(&early), early.wake), (None, Some(at(15))));
    let error = Some("Secret \"s\" does not exist".to_owned());
    let without = planned(&Snapshot { classes: vec![], error, ..on(&json!({})) }, &Outcomes::default(), 0);
    assert!(event(&without).unwrap().ends_with("Secret \"s\" does not exist"));
    let none = planned(&Snapshot { classes: vec![], ..on(&json!({})) }, &Outcomes::default(), 0);
    assert!(event(&none).unwrap().contains("no MachineClass"));
}

/// What the caches show of the Node beside these Machines.
fn taken(change: &Value, fill: impl Fn(&Store<Machine>)) -> Snapshot {
    let machines = Store::<Machine>::new(CONTROL, "default");
    for index in [MACHINE_BY_INSTANCE, MACHINE_BY_NODE] {
        machines.add_index(index);
    }
    fill(&machines);
    let class = |name: &str| -> MachineClass {
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        serde_json::from_value(json!({"metadata": metadata, "provider": "simulated", "providerSpec": {}})).unwrap()
    };
    let stores = Stores::default().with(CONTROL, class("second")).with(CONTROL, class("first"));
    let stores = stores.with(TARGET, serde_json::from_value::<Node>(live(change)).unwrap());
    stores.add(Arc::new(machines));
    Snapshot::take(
        &stores,
        &ObjectRef::new(TARGET, "", "n"),
        CloudNodeMode::On,
        (&Provider::of(&Uncalled), DriverProperties::of(&Uncalled)),
    )
    .unwrap()
}

#[test]
fn a_node_that_a_machine_may_have_is_not_looked_up() {
    let other = |machines: &Store<Machine>| {
        drop(machines.apply(machine("m").with("/spec/providerID", "p:///zone/vm-9").build()));
    };
    let alone = taken(&json!({}), other);
    let names: Vec<_> = alone.classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!((alone.is_unowned, names), (true, vec!["first"]), "one class of those that list the same VMs");
    let initialized = taken(&json!({"spec": {"taints": null}}), other);
    assert!(initialized.is_unowned && initialized.classes.is_empty(), "nothing is looked up for most Nodes");
    let by_id = |machines: &Store<Machine>| drop(machines.apply(machine("m").with("/spec/providerID", ID).build()));
    let by_name = |machines: &Store<Machine>| drop(machines.apply(machine("m").label("node", "n").build()));
    let unreadable =
        |machines: &Store<Machine>| assert!(machines.add_unreadable(Unreadable::named("default", "x", "u")));
    let labelled = json!({"metadata": {"labels": {labels::MACHINE_NAME: "gone"}}});
    assert!(!taken(&json!({}), by_id).is_unowned);
    assert!(!taken(&json!({}), by_name).is_unowned);
    assert!(!taken(&json!({}), unreadable).is_unowned, "it may be the Node's");
    assert!(!taken(&labelled, other).is_unowned, "it had a Machine");
}
