//! What a pool does with its Nodes, beside the tables.

use std::sync::Arc;

use nodewright_api::{
    ConditionStatus,
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
    stored::{Claim, Disruptions},
};
use nodewright_runtime::{
    cache::{Store, Stores},
    controller::Controller,
    object::name as name_of,
    plan::Step,
};
use nodewright_testing::ObjectBuilder;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{cluster_object, listed, scope, snapshot_of};
use crate::{
    machine_config_pool::{
        etcd::Etcd,
        members::{self, Members},
        progress::{PoolView, report},
        rollout::{Blocked, Rollout, Scope, decide, hold},
    },
    shared::{TARGET, disruption::budget, drain::BudgetView, node::Node},
    testing::NOW,
};

const PREFIX: &str = "machineconfiguration.openshift.io/";

/// A Node that runs a configuration, and is to run another one.
pub(super) fn node(name: &str, current: &str, desired: &str, state: &str) -> ObjectBuilder<Node> {
    let keys = [("currentConfig", current), ("desiredConfig", desired), ("state", state)];
    let node = cluster_object(name).with("/status/conditions", json!([{"type": "Ready", "status": "True"}]));
    keys.into_iter().fold(node, |node, (key, value)| node.annotation(&format!("{PREFIX}{key}"), value))
}

pub(super) fn old(name: &str) -> ObjectBuilder<Node> {
    node(name, "old", "old", "Done")
}

/// The rollout to `new`.
fn rolled<'a>(nodes: &'a [Node], claims: &'a Disruptions, budget: usize) -> Rollout<'a> {
    decide(&scope(nodes, claims, budget))
}

fn claimed(nodes: &[Node], budget: usize) -> Vec<String> {
    rolled(nodes, &Disruptions::default(), budget).claims.0.into_keys().collect()
}

/// The status of a pool with these Nodes.
fn status_of(members: Members, spec: &Value) -> MachineConfigPoolStatus {
    let mut all =
        json!({"configuration": {"name": "new"}, "machineConfigSelector": {"matchLabels": {super::ROLE: "worker"}}});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    let pool: MachineConfigPool = cluster_object("worker").with("/spec", all).build();
    let (snapshot, now) = (snapshot_of(pool, members), NOW.parse().unwrap());
    let mut status = MachineConfigPoolStatus::default();
    report(&mut status, now, &snapshot, &PoolView::of(&snapshot, now));
    status
}

fn status(nodes: Vec<ObjectBuilder<Node>>, spec: &Value) -> MachineConfigPoolStatus {
    let nodes = nodes.into_iter().map(|node| Arc::new(node.build())).collect();
    status_of(Members { nodes, ..listed() }, spec)
}

/// Status, reason and message of a condition.
fn condition(status: &MachineConfigPoolStatus, kind: &str) -> Option<(bool, String, String)> {
    let found = status.conditions.iter().find(|it| it.condition_type == kind)?;
    Some((found.status == ConditionStatus::True, found.reason.clone(), found.message.clone()))
}

#[test]
fn the_node_that_the_manager_runs_on_is_moved_last() {
    let first = |own_node: Option<&str>, nodes: &[&str]| {
        let nodes: Vec<Node> = nodes.iter().map(|name| old(name).build()).collect();
        decide(&Scope { own_node, ..scope(&nodes, &Disruptions::default(), 1) })
            .claims
            .0
            .into_keys()
            .collect::<Vec<_>>()
    };
    assert_eq!(first(None, &["a", "b"]), ["a"]);
    assert_eq!(first(Some("a"), &["a", "b"]), ["b"]);
    assert_eq!(first(Some("a"), &["a"]), ["a"], "it is moved all the same");
}

#[test]
fn a_control_plane_waits_for_room_in_the_disruption_budget_of_etcd() {
    let of = |pool: &str, budgets: Option<&[(&str, Value, i64, i64)]>| {
        let stores = Stores::default();
        let listed = Arc::new(Store::<BudgetView>::new(TARGET, ""));
        stores.add_scoped(&Etcd::watch(), listed.clone());
        if let Some(budgets) = budgets {
            listed.begin_list();
            for (at, selector, observed, allowed) in budgets {
                let (namespace, name) = at.split_once('/').unwrap();
                let budget = json!({"metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1",
                    "generation": 2}, "spec": {"selector": selector},
                    "status": {"observedGeneration": observed, "disruptionsAllowed": allowed}});
                listed.apply(serde_json::from_value(budget).unwrap());
            }
            listed.end_list(1, Instant::now());
        }
        Etcd::of(&stores, &cluster_object(pool).with("/spec", json!({})).build())
    };
    let (guard, etcd) = (json!({"matchLabels": {"app": "guard"}}), json!({"matchLabels": {"component": "etcd"}}));
    let full = |name: &str| Etcd::Full(format!("disruption budget {name} of etcd allows no disruption"));
    let openshift = |observed, allowed| [("openshift-etcd/etcd-guard-pdb", guard.clone(), observed, allowed)];
    let kubeadm = |allowed| [("kube-system/etcd", etcd.clone(), 2, allowed)];
    assert_eq!(of("worker", Some(&openshift(2, 0))), Etcd::Room, "not the control plane");
    assert_eq!(of("master", None), Etcd::Pending);
    assert_eq!(of("master", Some(&[])), Etcd::Room);
    assert_eq!(of("master", Some(&openshift(2, 1))), Etcd::Room);
    assert_eq!(of("master", Some(&openshift(2, 0))), full("openshift-etcd/etcd-guard-pdb"));
    assert_eq!(of("master", Some(&openshift(1, 1))), full("openshift-etcd/etcd-guard-pdb"), "an old status");
    assert_eq!(
        (of("master", Some(&kubeadm(1))), of("master", Some(&kubeadm(0)))),
        (Etcd::Room, full("kube-system/etcd"))
    );
    assert_eq!(of("master", Some(&[("kube-system/all", json!({}), 2, 0)])), Etcd::Room, "not etcd's alone");
    assert_eq!(of("master", Some(&[("kube-system/dns", guard.clone(), 2, 0)])), Etcd::Room, "not etcd's");

    let mut nodes = vec![old("a").build()];
    let rollout = |nodes: &[Node], etcd: &Etcd| {
        let none = Disruptions::default();
        let rollout = decide(&Scope { etcd, ..scope(nodes, &none, 1) });
        (rollout.claims.0.into_keys().collect::<Vec<_>>(), rollout.held)
    };
    for etcd in [Etcd::Pending, full("openshift-etcd/etcd-guard-pdb")] {
        assert_eq!(rollout(&nodes, &etcd), (vec![], Some(Blocked::Etcd(etcd))));
    }
    assert_eq!(rollout(&nodes, &Etcd::Room), (vec!["a".to_owned()], None));
    nodes.push(node("b", "old", "bad", "Degraded").build());
    let (claims, _) = rollout(&nodes, &Etcd::Full(String::new()));
    assert_eq!(claims, ["b"], "one that has failed may go back");
}

#[test]
fn nodes_without_an_agent_are_neither_moved_nor_complete() {
    let bare = |name: &str| cluster_object::<Node>(name);
    let nodes: Vec<_> = [bare("a"), bare("b")].into_iter().map(ObjectBuilder::build).collect();
    assert!(claimed(&nodes, 2).is_empty());
    let done = || node("c", "new", "new", "Done");
    let found = status(vec![bare("a"), bare("b"), done()], &json!({}));
    assert_eq!((found.machine_count, found.updated_machine_count, found.unavailable_machine_count), (3, 1, 0));
    let text = "2 of 3 nodes have no agent, which applies configurations".to_owned();
    assert_eq!(condition(&found, "Updated"), Some((false, "NoAgent".to_owned(), text.clone())));
    assert_eq!(condition(&found, "Updating"), Some((false, "NoAgent".to_owned(), text)));
    let behind = status(vec![bare("a"), done(), old("d")], &json!({}));
    let (is_updating, _, text) = condition(&behind, "Updating").unwrap();
    assert!(
        is_updating && text.starts_with("All nodes are updating to MachineConfig new; 1 of 3 are updated"),
        "{text}"
    );
    assert!(text.ends_with("1 of 3 nodes have no agent, which applies configurations"), "{text}");
}

#[test]
fn candidates_come_in_order() {
    let zone = |node: ObjectBuilder<Node>, zone: &str| node.label("topology.kubernetes.io/zone", zone);
    let nodes: Vec<Node> = [
        zone(old("a"), "z2"),
        zone(old("b"), "z1"),
        old("c"),
        zone(old("d").annotation("nodewright.dev/update-priority", "7"), "z3"),
        zone(old("e").annotation("nodewright.dev/update-priority", "-7"), "z1"),
        node("f", "old", "other", "Degraded"),
    ]
    .into_iter()
    .map(ObjectBuilder::build)
    .collect();
    let mut order = vec![];
    for budget in 1..=6 {
        let chosen = claimed(&nodes, budget);
        order.extend(chosen.into_iter().filter(|name| !order.contains(name)).collect::<Vec<_>>());
    }
    assert_eq!(order, ["f", "d", "b", "a", "c", "e"], "failing, then by priority, zone and age");
}

#[test]
fn nodes_that_are_about_to_go_or_were_cordoned_are_left_out() {
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    let nodes: Vec<Node> = [
        old("a").with("/spec/taints", taint),
        old("b").with("/metadata/deletionTimestamp", NOW),
        old("c").with("/spec/unschedulable", true),
        old("d"),
    ]
    .into_iter()
    .map(ObjectBuilder::build)
    .collect();
    // The one that is cordoned takes a part of the budget.
    assert_eq!(claimed(&nodes, 1), Vec::<String>::new());
    assert_eq!(claimed(&nodes, 4), ["d"]);
    let found = status(vec![old("c").with("/spec/unschedulable", true), old("d")], &json!({"maxUnavailable": 1}));
    let text = condition(&found, "Updating").unwrap().2;
    assert!(text.contains("1 wait for their turn: at most 1 may be unavailable"), "{text}");
    assert!(text.contains("node c is left out: it is cordoned"), "{text}");
}

/// A failed update has left it cordoned. It counts already, and may be the only way to get on.
#[test]
fn a_node_that_failed_after_its_drain_may_go_back_although_it_is_cordoned() {
    let failed = || node("a", "new", "bad", "Degraded").with("/spec/unschedulable", true);
    let by_us = failed().annotation("nodewright.dev/config-drain", "cordoned;drain-bad;2026-06-01T11:00:00Z");
    let by_others = failed().annotation(&format!("{PREFIX}lastAppliedDrain"), "drain-bad");
    let before = failed().annotation("nodewright.dev/config-drain", "closed;drain-bad;2026-06-01T11:00:00Z");
    for (node, goes) in [(by_us, true), (by_others, true), (before, false), (failed(), false)] {
        assert_eq!(claimed(&[node.build(), old("b").build()], 1), if goes { vec!["a"] } else { vec![] });
    }
}

#[test]
fn of_a_control_plane_one_node_moves_at_a_time() {
    let budget_of = |name: &str| {
        let pool: MachineConfigPool = cluster_object(name).with("/spec/maxUnavailable", json!("100%")).build();
        budget::of(&pool, 5).unwrap()
    };
    assert_eq!((budget_of("master"), budget_of("infra")), (1, 5));
}

#[test]
fn what_somebody_has_chosen_by_hand_is_finished_first() {
    let nodes = [node("a", "old", "mine", "Working").build(), old("b").build()];
    let none = Disruptions::default();
    let first = rolled(&nodes, &none, 1);
    assert!(first.claims.0.is_empty(), "it counts: {:?}", first.claims);
    // The same of one that is claimed, and was given the target.
    let mut claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    let given = |desired: &str, state: &str| {
        let current = if state == "Done" { desired } else { "old" };
        [node("a", current, desired, state).annotation("nodewright.dev/config-given", "1").build()]
    };
    let by_hand = given("mine", "Working");
    let going = rolled(&by_hand, &claims, 1);
    assert!(going.targets.is_empty() && going.claims == claims);
    let done = given("mine", "Done");
    let over = rolled(&done, &claims, 1);
    assert!(over.targets.is_empty(), "it is claimed again first");
    claims = over.claims;
    assert_eq!(claims.0["a"].given, 1);
    assert_eq!(rolled(&done, &claims, 1).targets.len(), 1);
}

#[test]
fn a_claim_is_not_used_once_its_node_was_cordoned() {
    let claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    let nodes = [old("a").with("/spec/unschedulable", true).build()];
    let waiting = rolled(&nodes, &claims, 1);
    assert!(waiting.targets.is_empty() && waiting.claims == claims);
    let mut other = old("a").build();
    other.metadata.uid = Some("another".to_owned());
    let gone = [other];
    let again = rolled(&gone, &claims, 1);
    assert!(again.targets.is_empty() && again.claims.0["a"].uid == "another", "created again under its name");
}

#[test]
fn a_paused_pool_and_one_that_is_invalid_move_nothing_and_say_so() {
    let paused = status(vec![old("a")], &json!({"paused": true}));
    assert_eq!(condition(&paused, "Updating").unwrap().2, "Pool is paused; will not update to MachineConfig new");
    let invalid = status(vec![old("a")], &json!({"maxUnavailable": "half"}));
    let (_, _, text) = condition(&invalid, "Updating").unwrap();
    assert!(text.contains("no node is moved: spec.maxUnavailable: Invalid value"), "{text}");
    assert!(condition(&invalid, "Stalled").unwrap().0);
}

#[test]
fn nodes_of_two_pools_and_unreadable_ones_are_named() {
    let nodes = vec![Arc::new(node("a", "new", "new", "Done").build())];
    let (ambiguous, unreadable) = (vec!["b (gpu, infra)".to_owned()], vec!["Node c cannot be read".to_owned()]);
    let found = status_of(Members { nodes, ambiguous, unreadable, ..listed() }, &json!({}));
    let text = condition(&found, "Updating").unwrap().2;
    assert!(text.contains("nodes that several pools select are in none: b (gpu, infra)"), "{text}");
    assert!(text.contains("Node c cannot be read"), "{text}");
    assert_eq!((found.machine_count, found.unavailable_machine_count), (2, 1));
}

#[test]
fn a_node_that_drifted_or_failed_is_named_with_its_reason() {
    let drifted = node("a", "new", "new", "Degraded").annotation(&format!("{PREFIX}reason"), "file /etc/motd");
    let found = status(vec![drifted, node("b", "new", "new", "Done")], &json!({}));
    let expected = "1 nodes are reporting degraded status on sync: Node a is reporting: \"file /etc/motd\"".to_owned();
    assert_eq!(condition(&found, "NodeDegraded"), Some((true, "NodesDegraded".to_owned(), expected)));
    assert_eq!((found.degraded_machine_count, found.unavailable_machine_count), (1, 1), "it blocks the pool");
    assert!(found.configuration.name.is_none(), "not all run the target");
    assert!(condition(&found, "Stalled").unwrap().0 && condition(&found, "Reconciling").is_none());
    let others = status(vec![node("a", "old", "new", "Degraded"), old("b")], &json!({"maxUnavailable": 2}));
    assert!(condition(&others, "Stalled").is_none() && condition(&others, "Reconciling").unwrap().0, "one gets on");
}

#[test]
fn a_list_of_claims_that_would_be_too_long_waits() {
    let long = "n".repeat(250);
    let nodes: Vec<_> = (1_000..1_500).map(|at| old(&format!("{long}-{at}")).build()).collect();
    let none = Disruptions::default();
    let rollout = rolled(&nodes, &none, 500);
    assert!(rollout.held == Some(Blocked::Full) && rollout.claims.to_string().len() < 200 * 1024);
    assert!(!rollout.waiting.is_empty() && rollout.waiting.len() < nodes.len());
    assert!(rollout.waiting.iter().all(|node| !rollout.claims.0.contains_key(name_of(*node))));
}

/// Nodes are looked up by their roles, and compared with the whole selector.
#[test]
fn a_pool_has_the_nodes_that_it_selects_whatever_it_selects_by() {
    let (worker, gpu) = ("node-role.kubernetes.io/worker", "node-role.kubernetes.io/gpu");
    let nodes = [
        cluster_object::<Node>("a").label(worker, ""),
        cluster_object("b").label(worker, "").label(gpu, ""),
        cluster_object("c").label(gpu, "").label("disk", "fast"),
        cluster_object("d").label("disk", "fast"),
    ];
    let mut fixture = super::Fixture::new([]);
    fixture.nodes = nodes.into_iter().map(ObjectBuilder::build).collect();
    let members = |fixture: &super::Fixture| -> Vec<String> {
        let members = Members::of(&fixture.stores(), &fixture.pool);
        members.nodes.iter().map(|node| name_of(node.as_ref()).to_owned()).collect()
    };
    let mut found = |selector: Value| {
        fixture.pool = super::pool(&json!({"nodeSelector": selector}));
        members(&fixture)
    };
    assert_eq!(found(json!({"matchLabels": {worker: ""}})), ["a", "b"]);
    assert_eq!(found(json!({"matchLabels": {gpu: "", worker: ""}})), ["b"]);
    assert_eq!(found(json!({"matchLabels": {"disk": "fast"}})), ["c", "d"]);
    assert_eq!(found(json!({"matchExpressions": [{"key": gpu, "operator": "Exists"}]})), ["b", "c"]);
    assert_eq!(found(json!({})), Vec::<String>::new());
}

/// The cache is older than the loss: it does not show that a Node has been given another configuration.
#[test]
fn a_list_that_is_lost_is_written_again_once_the_nodes_were_read_again() {
    let worker = "node-role.kubernetes.io/worker";
    let at = |name: &str, desired: &str, version: &str| {
        let node = node(name, "old", desired, "Done").label(worker, "");
        node.with("/metadata/resourceVersion", version)
    };
    let given = |node: ObjectBuilder<Node>, count: &str| node.annotation("nodewright.dev/config-given", count).build();
    let moved = || given(at("a", "new", "7"), "3");
    let selector = json!({"matchLabels": {worker: ""}});
    let target = super::targeting("new", &[]);
    for lost in [None, Some("{\"a\": 1}")] {
        let mut fixture = super::Fixture::new([]);
        let mut pool = super::pool(&target);
        pool.spec.node_selector = serde_json::from_value(selector.clone()).unwrap();
        pool.metadata.annotations =
            lost.map(|text| [("nodewright.dev/disruptions".to_owned(), text.to_owned())].into());
        fixture.pool = pool;
        fixture.put(super::config("new", json!({})));
        fixture.nodes = vec![given(at("a", "old", "5"), "2"), at("b", "old", "6").build()];
        let stores = fixture.stores();
        let plan = |stores: &Stores| {
            let snapshot = fixture.controller.snapshot(stores, &super::target_ref("worker")).unwrap();
            fixture.plan_of(&snapshot)
        };
        let waits = plan(&stores);
        let reads = waits.scoped_watches.iter().any(|watch| watch.selector().starts_with("metadata.name!="));
        assert!(reads && waits.waits.iter().any(|wait| wait.reason == "ReadingNodes"), "{lost:?}: {:?}", waits.waits);
        assert!(!waits.steps().any(|it| it.step.key() == Some(&super::target_ref("worker"))), "nothing is written");

        let listed = Arc::new(Store::<Node>::new(TARGET, ""));
        stores.add_scoped(&members::watch(&fixture.pool), listed.clone());
        listed.begin_list();
        listed.apply(moved());
        listed.apply(at("b", "old", "6").build());
        listed.end_list(7, Instant::now());
        let snapshot = fixture.controller.snapshot(&stores, &super::target_ref("worker")).unwrap();
        let progress = PoolView::of(&snapshot, NOW.parse().unwrap());
        let claims = progress.rollout.claims.to_string();
        assert!(claims.starts_with("{\"a\":{\"given\":2,\"since\":\"2026"), "a is being updated: {claims}");
        assert_eq!(progress.rollout.claims.0.len(), 1, "and takes the budget");
        let plan = plan(&stores);
        let of_pool = plan.steps().find(|it| it.step.key() == Some(&super::target_ref("worker"))).unwrap();
        let Step::Edit { patch, .. } = &of_pool.step else { panic!("{of_pool:?}") };
        let mut pool = serde_json::to_value(&fixture.pool).unwrap();
        nodewright_testing::json_patch(&mut pool, patch).unwrap();
        assert_eq!(pool["metadata"]["annotations"]["nodewright.dev/disruptions"], claims, "{lost:?}");

        // The cache is as old as before, and the Nodes are not read any more.
        fixture.pool = serde_json::from_value(pool).unwrap();
        let stores = fixture.stores();
        let snapshot = fixture.controller.snapshot(&stores, &super::target_ref("worker")).unwrap();
        let rollout = PoolView::of(&snapshot, NOW.parse().unwrap()).rollout;
        assert_eq!(rollout.claims.to_string(), claims, "b is not claimed");
        // A write to a tests the count that the cache has, and fails.
        assert!(rollout.targets.iter().all(|node| name_of(*node) == "a"));
    }
}

/// Their agents report failures outside of an update: each counts, and is a candidate as well.
#[test]
fn nodes_that_drifted_move_within_the_budget_alone() {
    let drifted = |name: &str| node(name, "old", "old", "Degraded").build();
    let nodes: Vec<_> = ["a", "b", "c"].map(drifted).into();
    assert_eq!(claimed(&nodes, 2), Vec::<String>::new(), "more are disrupted than may be");
    assert_eq!(claimed(&nodes, 3), ["a", "b", "c"]);
    let down = old("d").with("/status/conditions", json!([{"type": "Ready", "status": "False"}])).build();
    assert_eq!(claimed(&[drifted("a"), down], 1), Vec::<String>::new());
}

#[test]
fn a_claim_is_not_used_while_more_are_disrupted_than_may_be() {
    let both = [old("a").build(), old("b").build()];
    let claims = rolled(&both, &Disruptions::default(), 1).claims;
    assert_eq!(claims.0.keys().collect::<Vec<_>>(), ["a"]);
    let down =
        [old("a").build(), old("b").with("/status/conditions", json!([{"type": "Ready", "status": "False"}])).build()];
    let held = rolled(&down, &claims, 1);
    assert!(held.targets.is_empty() && held.releases.is_empty() && held.claims == claims);
    assert_eq!(rolled(&both, &claims, 1).targets.len(), 1);
}

#[test]
fn an_old_cache_of_a_node_ends_no_claim() {
    let mut claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    claims.0.get_mut("a").unwrap().given = 3;
    // It was given something twice before, and the cache shows it as it was after the first time.
    let nodes = [old("a").annotation("nodewright.dev/config-given", "2").build(), old("b").build()];
    let found = rolled(&nodes, &claims, 1);
    assert!(found.targets.is_empty() && found.claims == claims, "{found:?}");
}

#[test]
fn a_claimed_node_that_failed_on_another_configuration_is_given_the_target() {
    let claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    let nodes = [node("a", "old", "mine", "Degraded").annotation("nodewright.dev/config-given", "1").build()];
    let renewed = rolled(&nodes, &claims, 1).claims;
    assert_eq!(renewed.0["a"].given, 1);
    assert_eq!(rolled(&nodes, &renewed, 1).targets.len(), 1);
}

#[test]
fn a_claim_on_a_node_that_is_about_to_go_is_taken_back() {
    let claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    let nodes = [old("a").with("/spec/taints", taint.clone()).build()];
    let found = rolled(&nodes, &claims, 1);
    assert!(found.targets.is_empty() && found.releases.len() == 1);
    let released = [old("a").with("/spec/taints", taint).annotation("nodewright.dev/config-given", "1").build()];
    assert!(rolled(&released, &claims, 1).claims.0.is_empty());
}

/// A claim of a rollout of machines, whose Node had this count.
fn of_machine(node: &str, given: u32) -> Disruptions {
    let uid = old(node).build().metadata.uid.unwrap_or_default();
    let claim = Claim { uid, target: Claim::MACHINE.to_owned(), given, from: None, since: NOW.parse().unwrap() };
    Disruptions([(node.to_owned(), claim)].into())
}

/// It is kept whatever the pool does, until its Node is gone.
#[test]
fn a_claim_of_a_machine_stays_until_its_node_is_gone() {
    let conditions = json!([{"type": "Ready", "status": "True"}, {"type": "Terminating", "status": "True"}]);
    let going = || old("a").with("/status/conditions", conditions.clone());
    let cordoned = || going().with("/spec/unschedulable", true).annotation("nodewright.dev/config-given", "1");
    let opened = || going().annotation("nodewright.dev/config-given", "1");
    let claims = of_machine("a", 0);
    for node in [going(), cordoned(), opened()] {
        let nodes = [node.build(), old("b").build()];
        let found = rolled(&nodes, &claims, 1);
        assert!(found.targets.is_empty() && found.releases.is_empty() && found.claims == claims, "{found:?}");
        assert_eq!(rolled(&nodes, &claims, 2).claims.0.keys().collect::<Vec<_>>(), ["a", "b"], "it takes one place");
    }
    let nodes = [old("b").build()];
    assert_eq!(rolled(&nodes, &claims, 1).claims.0.keys().collect::<Vec<_>>(), ["b"]);
}

/// The Node is selected, and not updated after all; or it was updated in place.
#[test]
fn a_claim_of_a_machine_that_needs_none_is_taken_back_before_it_goes() {
    let claims = of_machine("a", 0);
    let selected = old("a").label("node.machine.sapcloud.io/candidate-for-update", "true").build();
    assert!(rolled(&[selected], &claims, 1).releases.is_empty());
    let nodes = [old("a").build()];
    let found = rolled(&nodes, &claims, 1);
    assert!(found.releases.len() == 1 && found.claims == claims && found.targets.is_empty());
    let counted = [old("a").annotation("nodewright.dev/config-given", "1").build()];
    let free = rolled(&counted, &claims, 1);
    assert!(free.releases.is_empty() && free.claims.0["a"].target == "new", "the pool claims it for itself");
}

#[test]
fn a_pool_that_moves_no_nodes_keeps_the_claims_of_configurations_and_ends_those_of_machines() {
    let mut claims = rolled(&[old("a").build()], &Disruptions::default(), 1).claims;
    claims.0.extend(of_machine("b", 0).0);
    claims.0.extend(of_machine("c", 0).0);
    let nodes = [
        old("a").annotation("nodewright.dev/config-given", "1").build(),
        old("b").build(),
        old("c").annotation("nodewright.dev/config-given", "1").build(),
    ];
    let found = hold(&Scope { target: "", ..scope(&nodes, &claims, 1) });
    assert_eq!(found.claims.0.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(found.releases.iter().map(|node| name_of(*node)).collect::<Vec<_>>(), ["b"]);
    assert!(found.targets.is_empty() && found.waiting.is_empty());
}

/// Where machines are updated in place, the mark of a rollout does not mean that they go.
#[test]
fn a_candidate_for_an_update_in_place_is_given_a_configuration() {
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    let marked = || old("a").with("/spec/taints", taint.clone());
    assert!(claimed(&[marked().build()], 1).is_empty());
    assert_eq!(claimed(&[marked().label("node.machine.sapcloud.io/candidate-for-update", "true").build()], 1), ["a"]);
}
