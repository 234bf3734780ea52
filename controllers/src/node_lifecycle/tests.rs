//! Which Nodes go with their VMs. The tables of Kubernetes' cloud-node-lifecycle-controller are those of the Machine's tests.

use std::{fs, path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineClass, annotations, finalizers, labels};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Change, Store, Stores, Unreadable},
    effect::Outcomes,
    leadership::boot_clock,
    object::ObjectRef,
    plan::Step,
};
use serde_json::{Value, json};

use super::{
    Counters,
    brake::{Answer, Brake, DeletionRequest},
    memory::{Context, Plan},
    plan::plan,
    snapshot::{NODES_BY_ZONE, NOT_READY_BY_ZONE, Snapshot},
};
use crate::{
    shared::{
        CONTROL, TARGET,
        cloud_manager::CloudNodeMode,
        indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE},
        node::Node,
    },
    testing::{MachineBuilder, NOW, machine},
};

const ID: &str = "p:///1";

/// A cluster of Nodes and Machines.
struct Cluster {
    stores: Stores,
    nodes: Arc<Store<Node>>,
    machines: Arc<Store<Machine>>,
}

fn cluster() -> Cluster {
    let (nodes, machines) =
        (Arc::new(Store::<Node>::new(TARGET, "")), Arc::new(Store::<Machine>::new(CONTROL, "default")));
    for index in [NODES_BY_ZONE, NOT_READY_BY_ZONE, NODE_BY_INSTANCE] {
        nodes.add_index(index);
    }
    for index in [MACHINE_BY_INSTANCE, MACHINE_BY_NODE] {
        machines.add_index(index);
    }
    let class = json!({"metadata": {"name": "class", "namespace": "default", "uid": "u"}});
    let stores = Stores::default().with(CONTROL, serde_json::from_value::<MachineClass>(class).unwrap());
    stores.add(nodes.clone());
    stores.add(machines.clone());
    Cluster { stores, nodes, machines }
}

/// A Node `n` that is an hour old, with the label and the finalizer of Machine `m`.
fn node(ready: Option<&str>, change: &Value) -> Node {
    let conditions: Vec<_> = ready.map(|ready| json!({"type": "Ready", "status": ready})).into_iter().collect();
    let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7", "finalizers": [finalizers::NODE],
        "creationTimestamp": "2026-06-01T11:00:00Z", "labels": {labels::MACHINE_NAME: "m"}},
        "spec": {"providerID": ID}, "status": {"conditions": conditions}});
    json_patch::merge(&mut node, change);
    serde_json::from_value(node).unwrap()
}

/// Machine `m`, whose VM the provider does not know.
fn without_vm(id: &str) -> MachineBuilder {
    let conditions = json!([
        {"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": ID},
        {"type": "InstanceExists", "status": "False", "reason": "VMNotFound", "message": id}]);
    machine("m").with("/spec/providerID", ID).label("node", "n").with("/status/conditions", conditions)
}

impl Cluster {
    fn with(self, node: Node, machine: MachineBuilder) -> Self {
        self.nodes.apply(node);
        self.machines.apply(machine.build());
        self
    }

    /// The zone of the Node has so many others, of which some are not ready.
    fn beside(self, others: usize, not_ready: usize) -> Self {
        for at in 0..others {
            let name = format!("other-{at}");
            let ready = if at < not_ready { "False" } else { "True" };
            let own = json!({"metadata": {"name": name, "uid": name, "labels": null}, "spec": {"providerID": name}});
            self.nodes.apply(node(Some(ready), &own));
        }
        self
    }

    fn plan_at(&self, outcomes: &Outcomes<DeletionRequest>, since: SignedDuration) -> Plan {
        let now: Timestamp = NOW.parse().unwrap();
        let key = ObjectRef::new(TARGET, "", "n");
        let snapshot = Snapshot::take(&self.stores, &key, (CloudNodeMode::On, Duration::from_mins(5)), 55).unwrap();
        plan(&Context { now, ..Context::new(now - since, outcomes) }, &snapshot)
    }

    fn plan(&self, outcomes: &Outcomes<DeletionRequest>) -> Plan {
        self.plan_at(outcomes, SignedDuration::from_hours(1))
    }

    /// The question whether the Node may go.
    fn asked(&self, outcomes: &Outcomes<DeletionRequest>) -> Option<DeletionRequest> {
        let plan = self.plan(outcomes);
        match plan.steps().map(|planned| &planned.step).next() {
            Some(Step::Call(permit)) => Some(permit.clone()),
            _ => None,
        }
    }

    /// Whether the Node goes, if the brake permits it.
    fn goes(&self) -> bool {
        let Some(permit) = self.asked(&Outcomes::default()) else { return false };
        let now: Timestamp = NOW.parse().unwrap();
        let answer = Brake::register(&Metrics::new(), boot_clock()).answer(&permit, now);
        let plan = self.plan(&answered(&permit, now, answer.clone()));
        if answer != Answer::Granted {
            assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["NodeDeletionBlocked"]);
            assert!(plan.steps().next().is_none() && plan.wake.is_some(), "{plan}");
            return false;
        }
        let deletion = plan.steps().find_map(|planned| match &planned.step {
            Step::Delete(at) => Some((at.uid().to_owned(), at.version().map(|version| version.to_string()))),
            _ => None,
        });
        assert_eq!(deletion, Some(("uid-n".to_owned(), Some("7".to_owned()))), "by UID and version");
        assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["DeletingNode"]);
        true
    }
}

fn answered(permit: &DeletionRequest, at: Timestamp, answer: Answer) -> Outcomes<DeletionRequest> {
    let mut outcomes = Outcomes::default();
    assert!(outcomes.begin(permit, at));
    outcomes.finish(permit, at, answer);
    outcomes
}

fn rows(table: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine/tests/tables");
    let text = fs::read_to_string(folder.join(format!("ccm-{table}.yaml"))).unwrap();
    serde_saphyr::from_str::<Value>(&text).unwrap()["rows"].as_array().unwrap().clone()
}

/// After two answers; that one and failures do not lead to the condition is tested with the Machine. A Node without a providerID gets it
/// when it is initialized.
#[test]
fn test_nodes_deleted_and_test_nodes_shutdown() {
    let rows = [rows("node-deleted"), rows("node-shutdown")].concat();
    assert_eq!(rows.len(), 12 + 9);
    for row in rows {
        let ready = row["node"]["ready"].as_str();
        let cloud = &row["cloud"];
        let is_gone = cloud["exists"] == false || cloud["id_by_name"] == "not-found";
        let machine = if is_gone { without_vm(ID) } else { without_vm("") };
        let cluster = cluster().with(node(ready, &json!({})), machine).beside(9, 0);
        assert_eq!(cluster.goes(), row["expect"] == "deleted", "{row}");
    }
}

#[test]
fn only_the_node_of_the_missing_vm_goes() {
    let not_ready = || node(Some("False"), &json!({}));
    let changed = |change: Value| node(Some("False"), &change);
    let claims = |name: &str| machine(name).with("/spec/providerID", "other:///1");
    let table = [
        (not_ready(), without_vm(ID), None, true, "all is as it should be"),
        (not_ready(), without_vm("p:///2"), None, false, "another VM is missing"),
        (changed(json!({"spec": {"providerID": "p:///2"}})), without_vm(ID), None, false, "a namesake"),
        (changed(json!({"spec": {"providerID": "other:///1"}})), without_vm(ID), None, false, "another provider's"),
        (changed(json!({"spec": {"providerID": null}})), without_vm(ID), None, false, "of no VM"),
        (changed(json!({"metadata": {"labels": null}})), without_vm(ID), None, false, "without the label"),
        (
            changed(json!({"metadata": {"labels": {labels::MACHINE_NAME: "x"}}})),
            without_vm(ID),
            None,
            false,
            "of another machine",
        ),
        (not_ready(), without_vm(ID), Some(claims("other")), false, "two machines claim the VM"),
        (not_ready(), without_vm(ID), Some(machine("other").label("node", "n")), false, "two machines claim the node"),
    ];
    for (node, machine, other, goes, case) in table {
        let cluster = cluster().with(node, machine).beside(9, 0);
        if let Some(other) = other {
            cluster.machines.apply(other.build());
        }
        assert_eq!(cluster.goes(), goes, "{case}");
    }
    let cluster = cluster().with(not_ready(), without_vm(ID)).beside(9, 0);
    cluster.machines.add_unreadable(Unreadable::named("default", "x", "u"));
    assert!(!cluster.goes(), "a machine that cannot be read may have it");
}

#[test]
fn a_node_without_a_machine_goes_if_lists_have_marked_it() {
    let marked_of = |class: &str, id: &str| json!({"metadata": {"annotations": {annotations::VM_MISSING: id, annotations::MACHINE_CLASS: class}}});
    let mark = |id: &str| marked_of("default/class/u", id);
    let goes = |ready: &str, change: &Value, machine: MachineBuilder| {
        cluster().with(node(Some(ready), change), machine).beside(9, 0).goes()
    };
    let other = || machine("other").with("/spec/providerID", "other:///9");
    let without_id = |mut change: Value| {
        change["spec"] = json!({"providerID": null});
        change
    };
    assert!(goes("Unknown", &mark(ID), other()));
    assert!(goes("Unknown", &without_id(mark("")), other()), "it never had an id");
    assert!(!goes("Unknown", &json!({}), other()), "no list has marked it");
    assert!(!goes("Unknown", &without_id(json!({})), other()), "no list has marked one without an id");
    assert!(!goes("Unknown", &marked_of("other/class/u", ID), other()), "another manager has marked it");
    let mut unlabelled = mark(ID);
    unlabelled["metadata"]["labels"] = Value::Null;
    for (ready, change, machine, case) in [
        ("True", mark(ID), other(), "it is ready"),
        ("Unknown", mark("p:///2"), other(), "another VM is missing"),
        ("Unknown", mark(""), other(), "it has got an id since"),
        ("Unknown", without_id(mark(ID)), other(), "the mark is about an id"),
        ("Unknown", without_id(mark("")), machine("m"), "it has its machine again, and no id"),
        ("Unknown", unlabelled, other(), "it never had a machine"),
        ("Unknown", mark(ID), machine("m"), "it has its machine again"),
        ("Unknown", mark(ID), machine("x").with("/spec/providerID", ID), "its VM has a machine"),
    ] {
        let cluster = cluster().with(node(Some(ready), &change), machine).beside(9, 0);
        let plan = cluster.plan(&Outcomes::default());
        let steps: Vec<_> = plan.steps().map(|planned| &planned.step).collect();
        assert!(matches!(steps[..], [Step::Edit { .. }]), "{case}: it loses the mark: {plan}");
    }
    assert!(goes("Unknown", &mark(ID), without_vm(ID)), "its machine, which is about to go, has marked it");
    assert!(goes("Unknown", &marked_of("default/gone/u", ID), other()), "its class may be gone");
    let cluster = cluster().with(node(Some("Unknown"), &mark(ID)), other()).beside(9, 0);
    cluster.machines.add_unreadable(Unreadable::named("default", "x", "u"));
    assert!(!cluster.goes(), "a machine that cannot be read may have it");
}

#[test]
fn a_permit_is_good_for_five_minutes() {
    let cluster = cluster().with(node(Some("False"), &json!({})), without_vm(ID)).beside(9, 0);
    let permit = cluster.asked(&Outcomes::default()).unwrap();
    let deletes = |seconds: i64| {
        let at = NOW.parse::<Timestamp>().unwrap() - SignedDuration::from_secs(seconds);
        let plan = cluster.plan(&answered(&permit, at, Answer::Granted));
        matches!(plan.steps().map(|planned| &planned.step).next(), Some(Step::Delete(_)))
    };
    assert!(deletes(299) && !deletes(300));
    let of_former = DeletionRequest { node_uid: "uid-former".to_owned(), ..permit.clone() };
    let plan = cluster.plan(&answered(&of_former, NOW.parse().unwrap(), Answer::Granted));
    assert!(
        matches!(plan.steps().map(|planned| &planned.step).next(), Some(Step::Call(_))),
        "it is another node's: {plan}"
    );
}

#[test]
fn a_permit_is_void_once_the_zone_is_cut_off() {
    let beside = |not_ready| cluster().with(node(Some("False"), &json!({})), without_vm(ID)).beside(9, not_ready);
    let permit = beside(0).asked(&Outcomes::default()).unwrap();
    let granted = answered(&permit, NOW.parse().unwrap(), Answer::Granted);
    assert_eq!(beside(9).asked(&granted).map(|permit| permit.most), Some(0));
}

#[test]
fn nodes_that_went_after_their_vm_are_counted() {
    let count = |before: Node, after: Option<Node>, machine: MachineBuilder| {
        let counters = Counters::default();
        let (old, new) = (Some(Arc::new(before)), after.map(Arc::new));
        counters.count(&Change { old, new }, &cluster().with(node(None, &json!({})), machine).stores);
        (counters.initialized.get(), counters.deleted.get())
    };
    let tainted = || {
        let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"});
        node(Some("True"), &json!({"spec": {"taints": [taint]}}))
    };
    let (ready, silent) = (|| node(Some("True"), &json!({})), || node(Some("Unknown"), &json!({})));
    assert_eq!(count(silent(), None, without_vm(ID)), (0, 1));
    assert_eq!(count(silent(), None, without_vm("")), (0, 0), "its VM exists");
    assert_eq!(count(ready(), None, without_vm(ID)), (0, 0), "somebody has deleted it");
    assert_eq!(count(silent(), Some(ready()), without_vm(ID)), (0, 0), "it is ready again");
    assert_eq!(count(tainted(), Some(ready()), without_vm("")), (1, 0));
    assert_eq!(count(tainted(), None, without_vm("")), (0, 0));
}

#[test]
fn a_young_node_that_has_said_nothing_is_kept() {
    let young = json!({"metadata": {"creationTimestamp": "2026-06-01T11:55:01Z"}});
    assert!(!cluster().with(node(None, &young), without_vm(ID)).beside(9, 0).goes());
    assert!(cluster().with(node(None, &json!({})), without_vm(ID)).beside(9, 0).goes());
}

#[test]
fn none_goes_while_most_of_the_zone_is_not_ready_or_the_process_is_young() {
    let gone = || node(Some("Unknown"), &json!({}));
    let kept = |others, not_ready| !cluster().with(gone(), without_vm(ID)).beside(others, not_ready).goes();
    assert!(!kept(19, 10), "55 % are not ready");
    assert!(kept(19, 11), "60 %");
    assert!(!kept(0, 0), "a zone of one, as one Node is no sign that it is cut off");
    assert!(!kept(1, 1), "two of two");
    assert!(kept(2, 2), "three of three");
    let cluster = cluster().with(gone(), without_vm(ID)).beside(9, 0);
    let young = cluster.plan_at(&Outcomes::default(), SignedDuration::from_secs(299));
    assert!(young.is_idle() && young.wake.is_some(), "{young}");
}

#[test]
fn a_node_that_is_being_deleted_is_released() {
    let deleting = json!({"metadata": {"deletionTimestamp": NOW}});
    let plan = cluster().with(node(Some("False"), &deleting), without_vm(ID)).plan(&Outcomes::default());
    assert!(matches!(plan.steps().next().map(|planned| &planned.step), Some(Step::Edit { .. })), "{plan}");
    let other = cluster().with(node(Some("False"), &deleting), without_vm("p:///2")).plan(&Outcomes::default());
    assert!(other.is_idle());
}

#[test]
fn answers_are_counted_from_zero() {
    let metrics = Metrics::new();
    let brake = Brake::register(&metrics, boot_clock());
    let counted = || {
        let text = metrics.encode().unwrap();
        ["permitted", "held"].map(|result| {
            let series = format!(r#"node_deletion_permits_total{{result="{result}"}} "#);
            text.lines().find_map(|line| line.strip_prefix(&series)).map(str::to_owned)
        })
    };
    assert_eq!(counted(), [Some("0".to_owned()), Some("0".to_owned())]);
    let permit = |most| DeletionRequest { node_uid: "a".to_owned(), zone: "z".to_owned(), most };
    brake.perform(&permit(0));
    brake.perform(&permit(0));
    brake.perform(&permit(1));
    assert_eq!(counted(), [Some("1".to_owned()), Some("2".to_owned())]);
}

#[test]
fn a_tenth_of_a_zone_goes_in_five_minutes() {
    let brake = Brake::register(&Metrics::new(), boot_clock());
    let now: Timestamp = NOW.parse().unwrap();
    let ask = |node: &str, zone: &str, seconds: i64| {
        let permit = DeletionRequest { node_uid: node.to_owned(), zone: zone.to_owned(), most: 2 };
        brake.answer(&permit, now + SignedDuration::from_secs(seconds)) == Answer::Granted
    };
    assert!(ask("a", "z", 0) && ask("b", "z", 1));
    assert!(!ask("c", "z", 2), "two of the zone have gone");
    assert!(ask("c", "other", 2), "another zone");
    assert!(ask("a", "z", 3), "it has its place");
    assert!(!ask("c", "z", 299) && ask("c", "z", 300) && !ask("d", "z", 300) && ask("d", "z", 301));
    assert!(ask("e", "z", -400), "a clock that was set back");
}
