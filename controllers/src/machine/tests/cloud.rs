//! What a Node gets from its provider, and what becomes of it when its VM is stopped or gone: the unit tables of Kubernetes'
//! cloud-provider as data in `tables/`, and what is ours besides. What differs on purpose stands in `docs/tasks/cloud-node.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use jiff::SignedDuration;
use json_patch::Patch;
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{Code, Taint, annotations, finalizers, labels};
use nodewright_driver::{Instance, InstanceMetadata, Power};
use nodewright_runtime::{
    cache::{Store, Stores},
    plan::Step,
    without_managed_fields,
};
use serde_json::{Value, json};

use super::{
    super::{CloudNodeMode, CloudNodeSettings, MachineSettings, Outcome, Verb},
    Fixture, at, conditions, failed, fixture, linked, status_of, synced, tell,
    terminate::dying,
};
use crate::{
    machine::{
        memory::{Note, Plan},
        snapshot::Owner,
    },
    shared::{
        TARGET,
        cloud_manager::{self, CloudManager, NodeManagers},
        cloud_node,
        ledger::Ledger,
        node::Node,
    },
    testing::{MachineBuilder, NOW, machine_set},
};

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// The rows of a table, of which there must be so many.
fn rows(table: &str, count: usize) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine/tests/tables");
    let text = fs::read_to_string(folder.join(format!("ccm-{table}.yaml"))).unwrap();
    let table: Value = serde_saphyr::from_str(&text).unwrap();
    let rows = table["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), count);
    rows
}

fn list(value: &Value) -> Vec<NodeAddress> {
    serde_json::from_value(value.clone()).unwrap()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn parsed(node: &Value) -> Node {
    serde_json::from_value(node.clone()).unwrap()
}

fn settings(mode: CloudNodeMode) -> MachineSettings {
    MachineSettings {
        cloud_node: CloudNodeSettings { mode, ..CloudNodeSettings::default() },
        ..MachineSettings::default()
    }
}

/// A fixture whose driver describes VMs.
fn describing(machine: MachineBuilder) -> Fixture {
    let mut fixture = fixture(machine);
    fixture.snapshot.driver.describes_instances = true;
    fixture.snapshot.settings = Arc::new(settings(CloudNodeMode::On));
    fixture
}

fn plan(fixture: &Fixture) -> Plan {
    fixture.plan_with(settings(CloudNodeMode::On))
}

fn steps(fixture: &Fixture) -> Vec<String> {
    plan(fixture).steps().map(|planned| tell(&planned.step)).collect()
}

fn pending() -> MachineBuilder {
    linked("Pending").created("2026-06-01T11:59:00Z")
}

/// A VM that the provider describes.
fn vm(addresses: &Value, power: Power) -> Outcome {
    let metadata = InstanceMetadata { zone: Some("zone-1a".to_owned()), ..InstanceMetadata::default() };
    Outcome::Instance(Instance {
        provider_id: "p:///1".into(),
        node_name: "n".into(),
        owner_uid: Some("uid-m".into()),
        addresses: list(addresses),
        metadata: Some(Box::new(metadata)),
        power,
        ..Instance::default()
    })
}

/// The patches of the Node, in their order.
fn patches(plan: &Plan) -> Vec<Patch> {
    let of_node = |step: &Step<super::Call>| match step {
        Step::Edit { at, patch, .. } if &*at.resource().kind == "Node" => Some(patch.clone()),
        _ => None,
    };
    plan.steps().filter_map(|planned| of_node(&planned.step)).collect()
}

/// The Node after the plan.
fn after(fixture: &Fixture, live: &Value) -> Value {
    let (mut live, was_uninitialized) = (live.clone(), parsed(live).is_uninitialized());
    for patch in patches(&plan(fixture)) {
        nodewright_testing::json_patch(&mut live, &patch).unwrap();
        let node = parsed(&live);
        let has_address = !was_uninitialized || !cloud_node::live_addresses(&node).is_empty();
        assert!(node.is_uninitialized() || has_address, "it is untainted without an address: {live}");
    }
    live
}

#[test]
fn test_node_addresses_change_detected() {
    for row in rows("addresses-changed", 5) {
        let node = parsed(&json!({"metadata": {"name": "n"}, "status": {"addresses": row["before"]}}));
        let patch = cloud_node::address_patch(&node, &list(&row["after"]));
        assert_eq!(!patch.0.is_empty(), row["expect"].as_bool().unwrap(), "{row}");
    }
}

#[test]
fn test_reconcile_node_labels() {
    for row in rows("beta-labels", 3) {
        let mut live = row["labels"].clone();
        let node = parsed(&json!({"metadata": {"name": "n", "labels": live}}));
        for (key, value) in cloud_node::labels_behind_twins(&node) {
            live[key] = value.into();
        }
        assert_eq!(live, row["expect"], "{row}");
    }
}

#[test]
fn test_get_node_addresses_from_node_ip() {
    for row in rows("node-ip", 14) {
        let annotations = json!({"alpha.kubernetes.io/provided-node-ip": row["provided_ip"]});
        let node = parsed(&json!({"metadata": {"name": "n", "annotations": annotations}}));
        let found = cloud_node::addresses(&node, &list(&row["cloud"])).ok();
        let expected = (row["expect"] != "error").then(|| list(&row["expect"]));
        assert_eq!(found, expected, "{row}");
    }
}

/// The rows in which ours differs: a Node keeps the taint while its VM has no address.
const KEPT: [u64; 2] = [12, 21];

#[test]
fn test_sync_node() {
    for row in rows("initialise", 22) {
        let (live, id) = tabled(&row["node"]);
        let machine = pending().with("/spec/providerID", id.as_str());
        let mut fixture = describing(machine).node(live.clone());
        let node: Value = live.clone();
        fixture.snapshot.node = Some(Arc::new(parsed(&node)));
        let fixture = fixture.answered(Verb::Describe, 0, answered(&row["cloud"], &id));
        let node = after(&fixture, &live);
        if KEPT.contains(&row["row"].as_u64().unwrap()) {
            assert!(parsed(&node).is_uninitialized(), "{row}");
            continue;
        }
        let expect = &row["expect"];
        let mut labels: BTreeMap<String, String> =
            serde_json::from_value(node["metadata"]["labels"].clone()).unwrap_or_default();
        labels.remove(labels::MACHINE_NAME);
        // The labels before are not in the table's result, unless they are.
        assert_eq!(json!(labels), expect["labels"], "{row}");
        let taints: Vec<Taint> = serde_json::from_value(node["spec"]["taints"].clone()).unwrap_or_default();
        assert_eq!(json!(taints), expect["taints"], "{row}");
        let addresses = node["status"]["addresses"].clone();
        assert_eq!(if addresses.is_null() { json!([]) } else { addresses }, expect["addresses"], "{row}");
        assert_eq!(node["spec"]["providerID"].as_str().unwrap_or_default(), expect["provider_id"], "{row}");
    }
}

/// The rows in which ours differs: a VM without an id is none, so that the Node keeps the taint.
const WITHOUT_ID: [u64; 1] = [5];

/// Kubernetes' looks for the id when a Node is to be deleted; here a Node gets it when it is initialized, from the answer about its
/// Machine's VM, or keeps the one that it has.
#[test]
fn test_get_provider_id() {
    let internal = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
    for row in rows("provider-id", 7) {
        let taint = json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
        let (live, id) = tabled(&json!({"taints": [taint], "provider_id": row["node"]["provider_id"]}));
        let cloud = &row["cloud"];
        let outcome = match (cloud["id_by_name"].as_str(), cloud["metadata_provider_id"].as_str()) {
            (Some("not-found"), _) => failed(Code::NotFound),
            (Some("error"), _) => failed(Code::Internal),
            (_, Some("")) => answered(&json!({"addresses": internal, "provider_id": "//"}), "//"),
            _ => answered(&json!({"addresses": internal}), &id),
        };
        let mut fixture = describing(pending().with("/spec/providerID", id.as_str()));
        fixture.snapshot.node = Some(Arc::new(parsed(&live)));
        let node = after(&fixture.answered(Verb::Describe, 0, outcome), &live);
        let has_failed = matches!(row["expect"].as_str(), Some("not-found" | "error"));
        let is_kept = has_failed || WITHOUT_ID.contains(&row["row"].as_u64().unwrap());
        let expected = if is_kept { "" } else { row["expect"].as_str().unwrap() };
        assert_eq!(node["spec"]["providerID"].as_str().unwrap_or_default(), expected, "{row}");
        assert_eq!(parsed(&node).is_uninitialized(), is_kept, "{row}");
    }
}

/// A Node of the table, and the id of its VM.
fn tabled(node: &Value) -> (Value, String) {
    let mut live = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7", "creationTimestamp": NOW},
        "spec": {}, "status": {}});
    for (field, pointer) in
        [("taints", "/spec"), ("provider_id", "/spec"), ("addresses", "/status"), ("labels", "/metadata")]
    {
        let key = if field == "provider_id" { "providerID" } else { field };
        if !node[field].is_null() && node[field] != json!([]) {
            live.pointer_mut(pointer).unwrap()[key] = node[field].clone();
        }
    }
    if let Some(ip) = node["provided_ip"].as_str() {
        live["metadata"]["annotations"] = json!({"alpha.kubernetes.io/provided-node-ip": ip});
    }
    (live, text(&node["provider_id"]).unwrap_or_else(|| "fake://12345".to_owned()))
}

/// What the provider of the table answers.
fn answered(cloud: &Value, id: &str) -> Outcome {
    match cloud {
        Value::String(said) if said == "error" => failed(Code::Internal),
        Value::String(_) => Outcome::Instance(Instance { provider_id: id.to_owned(), ..Instance::default() }),
        cloud => Outcome::Instance(Instance {
            // A driver always says the id: it is that of the Machine's VM.
            provider_id: text(&cloud["provider_id"]).unwrap_or_else(|| id.to_owned()).replace("not-implemented", id),
            addresses: list(&cloud["addresses"]),
            metadata: Some(Box::new(InstanceMetadata {
                instance_type: None,
                zone: text(&cloud["zone"]),
                region: text(&cloud["region"]),
                labels: serde_json::from_value(cloud["labels"].clone()).unwrap_or_default(),
            })),
            ..Instance::default()
        }),
    }
}

/// A tainted Node without addresses, which registered so many seconds ago.
fn tainted(seconds: i64) -> Value {
    let created = at(NOW) - SignedDuration::from_secs(seconds);
    let mut node = synced("True");
    json_patch::merge(
        &mut node,
        &json!({"metadata": {"creationTimestamp": created.to_string()},
            "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
            "status": {"addresses": [{"type": "Hostname", "address": "n"}]}}),
    );
    // A fixture takes it away.
    node["spec"]["providerID"] = Value::Null;
    node
}

fn condition(plan: &Plan, kind: &str) -> Option<(String, String)> {
    let status = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    })?;
    let found = status["conditions"].as_array()?.iter().find(|it| it["type"] == kind)?.clone();
    Some((found["status"].as_str()?.to_owned(), found["reason"].as_str()?.to_owned()))
}

#[test]
fn a_machine_joins_once_its_node_has_addresses_and_labels_and_no_taint() {
    let internal = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
    let new = || describing(pending()).node(tainted(1));
    assert_eq!(steps(&new()), ["call Describe", "status Pending"], "nothing is known yet");
    assert!(!steps(&new().running(Verb::Describe)).contains(&"call Describe".to_owned()));
    let known = new().answered(Verb::Create, 1, vm(&internal, Power::Running));
    let steps_of = steps(&known);
    assert_eq!(steps_of.iter().filter(|step| step.starts_with("edit Node")).count(), 2, "{steps_of:?}");
    assert!(!steps_of.contains(&"status Running".to_owned()), "it has not joined before");
    let node = serde_json::to_value(tainted(1)).unwrap();
    let mut live = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {}});
    json_patch::merge(&mut live, &node);
    let live = after(&known, &live);
    assert_eq!(live["spec"]["taints"], json!([]));
    assert_eq!(
        (&live["spec"]["providerID"], &live["metadata"]["labels"][labels::ZONE]),
        (&json!("p:///1"), &json!("zone-1a"))
    );
    // The next plan finds it initialized.
    let mut joined = describing(pending());
    joined.snapshot.node = Some(Arc::new(parsed(&live)));
    assert!(steps(&joined).contains(&"status Running".to_owned()), "{:?}", steps(&joined));
}

#[test]
fn a_node_keeps_the_taint_without_an_address_and_the_machine_says_why() {
    let nothing = vm(&json!([]), Power::Running);
    let table = [
        (tainted(1), nothing.clone(), None),
        (tainted(60), nothing, Some("NoAddresses")),
        (tainted(60), failed(Code::Unauthenticated), Some("NoAddresses")),
    ];
    for (node, answer, reason) in table {
        let fixture = describing(pending()).node(node).answered(Verb::Describe, 0, answer.clone());
        let plan = plan(&fixture);
        assert!(patches(&plan).is_empty(), "{answer:?}");
        assert_eq!(condition(&plan, "NodeInitialized").map(|(_, reason)| reason).as_deref(), reason, "{answer:?}");
        assert!(plan.wake.is_some(), "it is asked again");
    }
}

#[test]
fn where_it_is_off_or_the_driver_cannot_say_a_condition_names_what_is_missing() {
    for (age, reason) in [(299, None), (300, Some("NoCloudControllerManager"))] {
        let fixture = describing(linked("Running")).node(tainted(age));
        let plan = fixture.plan_with(settings(CloudNodeMode::Off));
        assert_eq!(condition(&plan, "NodeInitialized").map(|(_, reason)| reason).as_deref(), reason, "{age}");
        assert!(!plan.steps().any(|planned| matches!(planned.step, Step::Call(_))));
    }
    let mut fixture = describing(pending()).node(tainted(1));
    fixture.snapshot.driver.describes_instances = false;
    assert_eq!(condition(&plan(&fixture), "NodeInitialized").unwrap().1, "NotDescribed");
    assert!(joins(&plan(&fixture)), "as where it is off");
    let mut missing = unknown(failed(Code::NotFound), Some(31));
    missing.snapshot.driver.describes_instances = false;
    assert_eq!(condition(&plan(&missing), "InstanceExists"), None, "its nodes are left to others");
}

fn joins(plan: &Plan) -> bool {
    let is_running = |status: &Value| status["currentStatus"]["phase"] == "Running";
    plan.steps().any(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").is_some_and(is_running),
        _ => false,
    })
}

const TEN_MINUTES: CloudNodeMode = CloudNodeMode::Auto(Duration::from_mins(10));

/// The field managers of a Node that own its addresses.
fn managed(node: &str, version: &str, managers: &[&str]) -> NodeManagers {
    let entry = |manager: &&str| json!({"manager": manager, "fieldsV1": {"f:status": {"f:addresses": {}}}});
    let entries: Vec<_> = managers.iter().map(entry).collect();
    let metadata = json!({"name": node, "resourceVersion": version, "managedFields": entries});
    without_managed_fields::from_str(&json!({"metadata": metadata}).to_string()).unwrap()
}

/// With `--cloud-node=auto`: what the caches show of the Node `n`, and of others.
fn auto(mut fixture: Fixture, others: &[NodeManagers]) -> Fixture {
    let nodes = Arc::new(Store::<Node>::new(TARGET, ""));
    let managers = Arc::new(Store::<NodeManagers>::new(TARGET, ""));
    nodes.add_index(cloud_manager::UNINITIALIZED);
    managers.add_index(cloud_manager::BY_OTHER);
    managers.add_index(cloud_manager::BY_US);
    let node = fixture.snapshot.node.clone().unwrap();
    nodes.apply(node.as_ref().clone());
    for other in others {
        managers.apply(other.clone());
    }
    nodes.end_list(9, tokio::time::Instant::now());
    managers.end_list(9, tokio::time::Instant::now());
    let stores = Stores::default();
    stores.add(nodes);
    stores.add(managers);
    fixture.snapshot.cloud_manager = CloudManager::take(&stores, TEN_MINUTES, Some(&node));
    fixture
}

#[test]
fn what_decides_itself_waits_for_a_taint_that_stays_and_for_nobody_elses_traces() {
    let own = managed("n", "7", &["kubelet"]);
    let (ours, theirs) = (managed("o", "8", &["nodewright-machine"]), managed("p", "8", &["aws"]));
    let with = |others: &[&NodeManagers]| [&[&own], others].concat().into_iter().cloned().collect::<Vec<_>>();
    // Age of the Node, since when the process leads, what the caches show, whether the provider is asked, and when it is looked at next.
    let table = [
        (299, 3600, with(&[]), false, Some(1)),
        (599, 3600, with(&[]), false, Some(1)),
        (600, 3600, with(&[]), true, None),
        // The taint is there for as long, and this process has not seen it.
        (3600, 300, with(&[]), false, Some(300)),
        // It has initialized a Node before, and leaves each to others for half a minute.
        (29, 1, with(&[&ours]), false, Some(1)),
        (30, 1, with(&[&ours]), true, None),
        (3600, 3600, with(&[&ours, &theirs]), false, None),
        (3600, 3600, with(&[&theirs]), false, None),
        // Who has written this version is yet to be seen.
        (3600, 3600, vec![managed("n", "6", &["kubelet"])], false, Some(1)),
        (3600, 3600, vec![], false, Some(1)),
    ];
    for (age, leads, others, asks, next) in table {
        let mut fixture = auto(describing(pending()).node(tainted(age)), &others);
        fixture.since = at(NOW) - SignedDuration::from_secs(leads);
        let plan = fixture.plan_with(settings(TEN_MINUTES));
        let is_asked = plan.steps().any(|planned| tell(&planned.step) == "call Describe");
        let is_left_to_others = others.iter().any(|of_node| of_node.metadata.name.as_deref() == Some("p"));
        assert_eq!(joins(&plan), is_left_to_others, "{age} {leads} {others:?}");
        assert_eq!(is_asked, asks, "{age} {leads} {others:?}");
        if let Some(next) = next {
            let due = at(NOW) + SignedDuration::from_secs(next);
            assert!(plan.wake.is_some_and(|wake| wake <= due), "{age} {leads} {others:?}: {:?}", plan.wake);
        }
    }
}

#[test]
fn a_condition_names_who_initializes_other_nodes() {
    let theirs = [managed("n", "7", &[]), managed("p", "8", &["aws"])];
    let fixture = auto(describing(linked("Running")).node(tainted(300)), &theirs);
    let plan = fixture.plan_with(settings(TEN_MINUTES));
    assert_eq!(condition(&plan, "NodeInitialized").unwrap().1, "NoCloudControllerManager");
    let text = format!("{plan:?}");
    assert!(text.contains("find out why aws does not, which has initialized node p"), "{text}");
}

/// What this manager has set, and another has changed, it leaves alone.
#[test]
fn addresses_that_others_change_are_left_to_them() {
    let wanted = json!([{"type": "InternalIP", "address": "10.0.0.2"}]);
    let live = json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}]);
    let table = [
        (managed("n", "7", &["nodewright-machine"]), true),
        (managed("n", "6", &["nodewright-machine"]), false),
        (managed("n", "7", &["nodewright-machine", "aws"]), false),
    ];
    for (managers, writes) in table {
        let fixture = running(&live).answered(Verb::Describe, 1, vm(&wanted, Power::Running));
        let plan = auto(fixture, std::slice::from_ref(&managers)).plan_with(settings(TEN_MINUTES));
        assert_eq!(!patches(&plan).is_empty(), writes, "{managers:?}");
    }
}

/// With `kubectl taint`, as before the installation of a cloud controller manager, the time begins again.
#[test]
fn a_taint_counts_from_when_it_was_written() {
    let tainted_at = |seconds: i64| {
        let entries = json!([{"manager": "kubectl-taint", "time": at(NOW) - SignedDuration::from_secs(seconds),
            "fieldsV1": {"f:spec": {"f:taints": {}}}}]);
        let metadata = json!({"name": "n", "resourceVersion": "7", "managedFields": entries});
        let managers: NodeManagers =
            without_managed_fields::from_str(&json!({"metadata": metadata}).to_string()).unwrap();
        let plan = auto(describing(pending()).node(tainted(86_400)), &[managers]).plan_with(settings(TEN_MINUTES));
        plan.steps().any(|planned| tell(&planned.step) == "call Describe")
    };
    assert_eq!((tainted_at(599), tainted_at(600)), (false, true));
}

/// A Running Machine with a Node that has these addresses.
fn running(addresses: &Value) -> Fixture {
    let mut node = synced("True");
    node["status"]["addresses"] = addresses.clone();
    let machine = linked("Running").with("/status/currentStatus/lastUpdateTime", "2026-06-01T10:00:00Z");
    describing(machine).node(node)
}

#[test]
fn addresses_are_refreshed_and_an_empty_list_or_a_failure_changes_nothing() {
    let before = json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}]);
    let (other, none) = (json!([{"type": "InternalIP", "address": "10.0.0.2"}]), json!([]));
    assert!(steps(&running(&before)).contains(&"call Describe".to_owned()), "never asked, two hours ago");
    for (answer, changes) in [
        (vm(&other, Power::Running), true),
        (vm(&none, Power::Running), false),
        (failed(Code::NotFound), false),
        (failed(Code::Unavailable), false),
    ] {
        let fixture = running(&before).answered(Verb::Describe, 1, answer.clone());
        let plan = plan(&fixture);
        assert_eq!(patches(&plan).len(), usize::from(changes), "{answer:?}");
        assert!(!steps(&fixture).contains(&"call Describe".to_owned()), "not again within five minutes: {answer:?}");
        let late = running(&before).answered(Verb::Describe, 300, answer);
        assert!(steps(&late).contains(&"call Describe".to_owned()));
    }
    let same = vm(&json!([{"type": "InternalIP", "address": "10.0.0.1"}]), Power::Running);
    assert!(patches(&plan(&running(&before).answered(Verb::Describe, 1, same))).is_empty());
}

/// An Unknown Machine whose Node is not ready, after this answer; `noted` seconds ago there was no VM for the first time.
fn unknown(answer: Outcome, noted: Option<i64>) -> Fixture {
    let since = "2026-06-01T11:58:00Z";
    let machine = linked("Unknown").with("/status/currentStatus/lastUpdateTime", since);
    let mut fixture = describing(machine).node(conditions("False"));
    let note = |seconds| (Note::NoVm(at(since)), at(NOW) - SignedDuration::from_secs(seconds));
    fixture.notes = noted.map(note).into_iter().collect();
    fixture.answered(Verb::Status, 1, answer)
}

#[test]
fn two_answers_without_a_vm_say_that_it_is_gone() {
    let gone = |answer, noted| condition(&plan(&unknown(answer, noted)), "InstanceExists");
    assert_eq!(gone(failed(Code::NotFound), None), None, "one look");
    assert_eq!(gone(failed(Code::NotFound), Some(30)), None, "within the grace");
    let missing = Some(("False".to_owned(), "VMNotFound".to_owned()));
    assert_eq!(gone(failed(Code::NotFound), Some(31)), missing);
    for other in [Code::Unauthenticated, Code::PermissionDenied, Code::Unavailable, Code::Internal] {
        assert_eq!(gone(failed(other), Some(600)), None, "{other:?} says nothing");
    }
    assert_eq!(gone(vm(&json!([]), Power::Running), Some(600)), None, "it is there again");
}

/// What becomes of a Machine and its Node after the provider's answer; [`node_lifecycle`](crate::node_lifecycle) deletes Nodes, and
/// has the row of the Node that is ready.
#[test]
fn test_nodes_shutdown() {
    let mut live =
        json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
    json_patch::merge(&mut live, &conditions("False"));
    for row in rows("node-shutdown", 9).into_iter().filter(|row| row["node"]["ready"] != "True") {
        let cloud = &row["cloud"];
        let answer = match (&cloud["id_by_name"], &cloud["exists"], &cloud["shutdown"]) {
            (id, ..) if id == "error" => failed(Code::Internal),
            (id, exists, _) if id == "not-found" || exists == false => failed(Code::NotFound),
            (.., shutdown) if shutdown == true => vm(&json!([]), Power::Stopped),
            _ => vm(&json!([]), Power::Running),
        };
        let fixture = unknown(answer, Some(31));
        let is_tainted = after(&fixture, &live)["spec"]["taints"].to_string().contains(SHUTDOWN);
        let is_missing = condition(&plan(&fixture), "InstanceExists").is_some();
        let expected = (row["expect"] == "tainted", row["expect"] == "deleted");
        assert_eq!((is_tainted, is_missing), expected, "{row}");
    }
}

#[test]
fn a_stopped_vm_taints_its_node_until_it_is_ready_again() {
    let stopped = unknown(vm(&json!([]), Power::Stopped), None);
    assert_eq!(condition(&plan(&stopped), "InstanceRunning"), Some(("False".to_owned(), "VMStopped".to_owned())));
    let mut live =
        json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
    json_patch::merge(&mut live, &conditions("False"));
    let tainted = after(&stopped, &live);
    assert_eq!(tainted["spec"]["taints"], json!([{"key": SHUTDOWN, "effect": "NoSchedule"}]));
    let Outcome::Instance(instance) = vm(&json!([]), Power::Stopped) else { unreachable!() };
    let anothers = Instance { owner_uid: Some("uid-x".into()), provider_id: "p:///9".into(), ..instance };
    let anothers = unknown(Outcome::Instance(anothers), None);
    assert_eq!(condition(&plan(&anothers), "InstanceRunning"), None, "another's VM is stopped");
    for power in [Power::Running, Power::Unknown] {
        assert!(after(&unknown(vm(&json!([]), power), None), &live)["spec"]["taints"].is_null());
    }
    json_patch::merge(&mut live, &json!({"spec": {"taints": tainted["spec"]["taints"]}}));
    json_patch::merge(&mut live, &synced("True"));
    let mut ready = running(&json!([]));
    ready.snapshot.node = Some(Arc::new(parsed(&live)));
    assert_eq!(after(&ready, &live)["spec"]["taints"], json!([]));
    let reported = status_of(&plan(&stopped));
    assert_eq!(reported["currentStatus"]["phase"], "Unknown", "the machine fails for its health alone");
}

#[test]
fn a_stopped_vm_that_goes_is_missing_after_two_answers_of_its_own() {
    let status = status_of(&plan(&unknown(vm(&json!([]), Power::Stopped), None)));
    assert!(status.to_string().contains("InstanceRunning"));
    let then = |noted| {
        let mut fixture = unknown(failed(Code::NotFound), noted);
        fixture.snapshot.machine = Arc::new(linked("Unknown").with("/status", status.clone()).build());
        let plan = plan(&fixture);
        let is_written = plan.steps().any(|planned| matches!(planned.step, Step::Apply(_)));
        let after = if is_written { status_of(&plan) } else { status.clone() }.to_string();
        ["InstanceRunning", "InstanceExists"].map(|kind| after.contains(kind))
    };
    assert_eq!(then(None), [true, false], "one answer");
    assert_eq!(then(Some(31)), [false, true], "two, a grace apart");
}

/// So many Nodes may go at a time, and no replacement waits for that.
#[test]
fn the_node_of_a_vm_that_others_have_deleted_is_left_to_the_brake() {
    let node = |ready: &str, mark: &Value| {
        let mut node = synced(ready);
        let metadata =
            json!({"resourceVersion": "7", "finalizers": [finalizers::NODE, "other/one"], "annotations": mark});
        json_patch::merge(&mut node, &json!({"metadata": metadata}));
        node
    };
    let set = machine_set("set", 1, Some("k7f;0"));
    let ledger: Ledger = "k7f;".parse().unwrap();
    let name = ledger.name("set", ledger.lowest_free(&BTreeSet::new(), 1)[0]);
    let gone = |node: Value, is_node_left: bool| {
        let machine = dying().with("/metadata/name", json!(name)).owned_by(&set).annotation(annotations::INDEX, "0");
        let mut fixture = describing(machine).node(node).pods(&[]).set(set.clone());
        fixture.snapshot.is_node_left = is_node_left;
        fixture.answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound))
    };
    let before = node("Unknown", &json!({"a": "b"}));
    let fixture = gone(before.clone(), true);
    assert_eq!(steps(&fixture), ["edit Node n"]);
    let marked = after(&fixture, &before);
    assert_eq!(marked["metadata"]["annotations"], json!({"a": "b", annotations::VM_MISSING: "p:///1"}));
    assert_eq!(marked["metadata"]["finalizers"], json!(["other/one"]), "a user can delete it");
    assert_eq!(steps(&gone(marked, true)), [format!("edit Machine default/{name}")], "nothing else is waited for");
    assert_eq!(
        steps(&gone(before.clone(), false)),
        ["delete Node n"],
        "its VM is not known to be missing, or another has it"
    );
    assert_eq!(steps(&gone(node("True", &json!({"a": "b"})), true)), ["delete Node n"], "it would stay");
    let mut without_set = gone(before.clone(), true);
    without_set.snapshot.owner = Owner::None;
    assert_eq!(steps(&without_set), ["delete Node n"], "its name may be used again");
    let off = gone(before, true).plan_with(settings(CloudNodeMode::Off));
    assert_eq!(off.steps().map(|planned| tell(&planned.step)).collect::<Vec<_>>(), ["delete Node n"]);
}
