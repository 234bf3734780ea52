//! When a Node loses the finalizer, and when it keeps it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, finalizers, labels};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    effect::Outcomes,
    plan::{Context, Plan, Step},
};
use serde_json::{Value, json};

use super::{MachineSearch, Snapshot, lookup::Found, plan::plan};
use crate::{
    shared::{
        CONTROL,
        indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE},
        node::Node,
        node_claims::is_claimed,
    },
    testing::{MachineBuilder, NOW, machine},
};

const MARK: &str = "node.machine.sapcloud.io/not-managed-by-mcm";

/// A Node with our finalizer, created an hour before [`NOW`].
fn node(change: &Value) -> Arc<Node> {
    Arc::new(serde_json::from_value(live(change)).unwrap())
}

fn live(change: &Value) -> Value {
    let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7",
        "finalizers": ["other/one", finalizers::NODE], "labels": {labels::MACHINE_NAME: "m"}},
        "spec": {"providerID": "p:///1"}});
    json_patch::merge(&mut node, change);
    node
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": NOW}})
}

fn orphan(node: Arc<Node>) -> Snapshot {
    Snapshot { node, is_claimed: false, unreadable: None, grace: SignedDuration::from_mins(5) }
}

/// The plan at this number of minutes after [`NOW`].
fn planned(snapshot: &Snapshot, outcomes: &Outcomes<MachineSearch>, minutes: i64) -> Plan<MachineSearch> {
    let start: Timestamp = NOW.parse().unwrap();
    let at = Context { now: start + SignedDuration::from_mins(minutes), ..Context::new(start, outcomes) };
    plan(&at, snapshot)
}

/// Answers the call of a plan.
fn answer(plan: &Plan<MachineSearch>, outcomes: &mut Outcomes<MachineSearch>, minutes: i64, found: Found) {
    let Some(Step::Call(lookup)) = plan.steps().map(|planned| &planned.step).next() else { panic!("{plan}") };
    let when = NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes);
    assert!(outcomes.begin(lookup, when));
    outcomes.finish(lookup, when, found);
}

fn removes_finalizer(plan: &Plan<MachineSearch>) -> bool {
    plan.steps().any(|planned| matches!(&planned.step, Step::Edit { .. }))
}

#[test]
fn an_orphan_loses_the_finalizer_and_is_marked_after_two_looks_and_a_grace() {
    // One that is being deleted, one that lost the finalizer before, and one that another controller manager has marked.
    let marked = json!({"metadata": {"annotations": {MARK: "1"}}});
    let released = json!({"metadata": {"finalizers": ["other/one"]}});
    let orphans =
        [(deleting(), 5, None), (json!({}), 60, Some("1")), (released, 60, Some("1")), (marked, 60, Some("1"))];
    for (change, grace, mark) in orphans {
        let snapshot = orphan(node(&change));
        let mut outcomes = Outcomes::default();
        answer(&planned(&snapshot, &outcomes, 0), &mut outcomes, 0, Found::None);
        let waiting = planned(&snapshot, &outcomes, grace - 1);
        assert!(waiting.is_idle() && waiting.waits[0].reason == "Orphaned");
        assert_eq!(waiting.wake, Some(NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(grace)));
        answer(&planned(&snapshot, &outcomes, grace), &mut outcomes, grace, Found::None);
        let done = planned(&snapshot, &outcomes, grace);
        let Some(Step::Edit { patch, .. }) = done.steps().map(|planned| &planned.step).next() else { panic!("{done}") };
        let mut live = live(&change);
        nodewright_testing::json_patch(&mut live, patch).unwrap();
        assert_eq!(live["metadata"]["finalizers"], json!(["other/one"]));
        assert_eq!(live["metadata"]["annotations"][MARK].as_str(), mark);
        let node: Arc<Node> = Arc::new(serde_json::from_value(live).unwrap());
        assert!(planned(&orphan(node.clone()), &Outcomes::default(), 600).is_idle(), "once");
        let claimed = planned(&Snapshot { is_claimed: true, ..orphan(node) }, &Outcomes::default(), 600);
        assert_eq!(claimed.is_idle(), mark.is_none(), "the mark goes when a machine claims the node again");
    }
}

#[test]
fn what_may_have_a_machine_keeps_the_finalizer() {
    let mut outcomes = Outcomes::default();
    let claimed = Snapshot { is_claimed: true, ..orphan(node(&deleting())) };
    let plan = planned(&claimed, &outcomes, 600);
    assert!(plan.is_idle() && plan.forgets_outcomes && plan.wake.is_none());
    let unreadable =
        Snapshot { unreadable: Some("Machine default/x cannot be read".into()), ..orphan(node(&deleting())) };
    assert_eq!(planned(&unreadable, &outcomes, 600).waits[0].reason, "MachineUnreadable");
    let snapshot = orphan(node(&deleting()));
    for (minute, found) in [(0, Found::Machine), (60, Found::Failed("forbidden".into())), (70, Found::None)] {
        answer(&planned(&snapshot, &outcomes, minute), &mut outcomes, minute, found);
        assert!(planned(&snapshot, &outcomes, minute + 4).is_idle(), "it waits after minute {minute}");
    }
    answer(&planned(&snapshot, &outcomes, 75), &mut outcomes, 75, Found::Machine);
    assert!(!removes_finalizer(&planned(&snapshot, &outcomes, 76)), "the second look has found one");
    let unnamed = orphan(node(&json!({"metadata": {"deletionTimestamp": NOW, "labels": null}})));
    assert!(planned(&unnamed, &Outcomes::default(), 600).is_idle(), "there is no name to look up");
    let bare = orphan(node(&json!({"metadata": {"finalizers": null, "deletionTimestamp": NOW}})));
    assert!(planned(&bare, &Outcomes::default(), 600).is_idle());
}

#[test]
fn whatever_names_a_node_claims_it() {
    let is_claimed_by = |machine: MachineBuilder| {
        let stores = Stores::default();
        let machines = Store::<Machine>::new(CONTROL, "default");
        machines.add_index(MACHINE_BY_INSTANCE);
        machines.add_index(MACHINE_BY_NODE);
        machines.apply(machine.build());
        stores.add(Arc::new(machines));
        is_claimed(&stores, &node(&json!({})))
    };
    assert!(is_claimed_by(machine("a").with("/spec/providerID", json!("other:///1"))), "by providerID");
    assert!(is_claimed_by(machine("a").label("node", "n")), "by its label");
    assert!(is_claimed_by(machine("m")), "by the name that the node bears");
    assert!(!is_claimed_by(machine("a").label("node", "other").with("/spec/providerID", json!("p:///2"))));
    let stores = Stores::default();
    let machines = Store::<Machine>::new(CONTROL, "default");
    machines.add_unreadable(Unreadable::named("default", "m", "u"));
    stores.add(Arc::new(machines));
    assert!(is_claimed(&stores, &node(&json!({}))), "by one that cannot be read");
}
