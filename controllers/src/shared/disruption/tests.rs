use std::cmp::Ordering;

use json_patch::Patch;
use nodewright_api::{
    machine_config::{CURRENT_CONFIG, DEGRADED, DESIRED_CONFIG, STATE},
    stored::Claim,
};
use nodewright_runtime::{effect::Never, plan::Step};
use nodewright_testing::{ObjectBuilder, object};
use serde_json::{Value, json};

use super::{
    patches::{claimed as claim_step, used},
    *,
};
use crate::testing::NOW;

fn cluster_object<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(name: &str) -> ObjectBuilder<K> {
    object(name).with("/metadata/namespace", Value::Null)
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A Node that a rollout replaces, and whose Machine is being deleted.
fn going(name: &str) -> ObjectBuilder<Node> {
    let conditions = json!([{"type": "Ready", "status": "True"}, {"type": "Terminating", "status": "True"}]);
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    working(name).with("/status/conditions", conditions).with("/spec/taints", taint)
}

fn working(name: &str) -> ObjectBuilder<Node> {
    let node = cluster_object(name).with("/metadata/uid", name).annotation("a", "b");
    node.with("/status/conditions", json!([{"type": "Ready", "status": "True"}]))
}

fn claim(node: &str, target: &str, given: u32) -> (String, Claim) {
    (node.to_owned(), Claim { uid: node.to_owned(), target: target.to_owned(), given, from: None, since: now() })
}

/// A pool with this budget and these Nodes and claims.
fn shared(budget: usize, nodes: &[Node], claims: &[(String, Claim)]) -> SharedBudget {
    let spec = json!({"configuration": {"name": "new"}, "maxUnavailable": budget});
    let claims = Disruptions(claims.iter().cloned().collect());
    let pool = cluster_object("worker").with("/metadata/resourceVersion", "5").with("/spec", spec);
    let pool = pool.annotation(annotations::DISRUPTIONS, &claims.to_string()).build();
    SharedBudget::with(pool, nodes.iter().cloned())
}

/// The claims of the pool after the write for the Node `a`.
fn written(shared: &SharedBudget, decision: DisruptionDecision) -> Disruptions {
    let DisruptionDecision::Claim(claim) = decision else { panic!("{decision:?}") };
    let node = shared.nodes().find(|node| name(*node) == "a").unwrap();
    let Some(Step::<Never>::Edit { patch, .. }) = claim_step(shared, node, claim, now()) else { panic!() };
    let mut pool = serde_json::to_value(shared.pool()).unwrap();
    nodewright_testing::json_patch(&mut pool, &patch).unwrap();
    let pool: MachineConfigPool = serde_json::from_value(pool).unwrap();
    DISRUPTIONS.of(&pool).unwrap()
}

/// The same, as `node=target/given`.
fn claimed(shared: &SharedBudget, decision: DisruptionDecision) -> Vec<String> {
    let claims = written(shared, decision).0;
    claims.into_iter().map(|(node, claim)| format!("{node}={}/{}", claim.target, claim.given)).collect()
}

#[test]
fn a_node_is_claimed_while_there_is_room() {
    let nodes = [going("a").build(), working("b").build(), working("c").build()];
    let free = shared(1, &nodes, &[]);
    assert_eq!(claimed(&free, free.deletion(&nodes[0])), ["a=machine/0"]);
    let taken = shared(1, &nodes, &[claim("b", "new", 0)]);
    let text = "at most 1 nodes of pool worker may be unavailable; it waits for b".to_owned();
    assert_eq!(taken.deletion(&nodes[0]), DisruptionDecision::Wait(text));
    let larger = shared(2, &nodes, &[claim("b", "new", 0)]);
    assert_eq!(claimed(&larger, larger.deletion(&nodes[0])), ["a=machine/0", "b=new/0"]);
    let broken = [nodes[0].clone(), working("b").with("/spec/unschedulable", true).build()];
    assert!(
        matches!(shared(1, &broken, &[]).deletion(&broken[0]), DisruptionDecision::Wait(text) if text.ends_with(" b"))
    );
    let unreadable = SharedBudget { unreadable: 1, ..shared(1, &nodes, &[]) };
    assert!(matches!(unreadable.deletion(&nodes[0]), DisruptionDecision::Wait(_)));
}

#[test]
fn a_list_that_is_lost_permits_nothing() {
    let nodes = [going("a").build(), working("b").build()];
    let pool = || cluster_object("worker").with("/metadata/resourceVersion", "5").with("/spec", json!({}));
    let text = "pool worker has yet to list the nodes that it disrupts".to_owned();
    for pool in [pool().build(), pool().annotation(annotations::DISRUPTIONS, "{\"a\":1}").build()] {
        let lost = SharedBudget::with(pool, nodes.iter().cloned());
        assert_eq!(lost.deletion(&nodes[0]), DisruptionDecision::Wait(text.clone()));
        assert_eq!(lost.update(&nodes[1]), DisruptionDecision::Wait(text.clone()));
    }
}

#[test]
fn of_nodes_that_wait_the_first_is_claimed() {
    let nodes = ["a", "b", "c"].map(|name| going(name).build());
    let shared = shared(2, &nodes, &[]);
    let is_claimed = |node: &Node| matches!(shared.deletion(node), DisruptionDecision::Claim(_));
    assert_eq!(nodes.each_ref().map(is_claimed), [true, true, false]);
}

#[test]
fn a_claim_is_used_once_and_by_its_count() {
    let counted = |count: &str| [going("a").annotation(annotations::CONFIG_GIVEN, count).build()];
    for (seen, expected) in [("3", Ordering::Equal), ("4", Ordering::Greater), ("2", Ordering::Less)] {
        let nodes = counted(seen);
        let shared = shared(1, &nodes, &[claim("a", Claim::MACHINE, 3)]);
        match (expected, shared.deletion(&nodes[0])) {
            (Ordering::Equal, DisruptionDecision::Granted) => {
                let used = used(&nodes[0]);
                let mut node = json!({"metadata": {"resourceVersion": nodes[0].metadata.resource_version,
                    "annotations": nodes[0].metadata.annotations}});
                nodewright_testing::json_patch(&mut node, &Patch(used.clone())).unwrap();
                assert_eq!(node["metadata"]["annotations"][annotations::CONFIG_GIVEN], "4");
                let refused = nodewright_testing::json_patch(&mut node, &Patch(used));
                assert!(refused.is_err(), "it was used: {node}");
            }
            (Ordering::Greater, decision) => {
                assert_eq!(claimed(&shared, decision), ["a=machine/4"], "it may be about to go");
            }
            (Ordering::Less, DisruptionDecision::Wait(text)) => assert!(text.contains("newer"), "{text}"),
            (_, decision) => panic!("{seen}: {decision:?}"),
        }
    }
    let wiped = [going("a").build()];
    let shared = shared(1, &wiped, &[claim("a", Claim::MACHINE, 3)]);
    assert_eq!(claimed(&shared, shared.deletion(&wiped[0])), ["a=machine/0"], "it is counted again");
}

/// A Node that is being given a configuration is disrupted already: its Machine may go, and it is not updated in place.
#[test]
fn a_claim_for_a_configuration_becomes_one_for_the_machine_that_goes() {
    let nodes = [going("a").annotation(annotations::CONFIG_GIVEN, "4").build(), working("b").build()];
    let shared = shared(1, &nodes, &[claim("a", "new", 3)]);
    assert_eq!(claimed(&shared, shared.deletion(&nodes[0])), ["a=machine/4"]);
    let text = "the node is being given a configuration by pool worker".to_owned();
    assert_eq!(shared.update(&nodes[0]), DisruptionDecision::Wait(text));
    assert!(matches!(shared.update(&nodes[1]), DisruptionDecision::Wait(_)), "there is no room");
}

#[test]
fn a_claim_begins_with_its_write_and_one_that_is_taken_over_keeps_its_time() {
    let earlier: Timestamp = "2026-05-01T00:00:00Z".parse().unwrap();
    let nodes = [going("a").build()];
    let (of_node, mut of_config) = (claim("a", Claim::MACHINE, 0), claim("a", "new", 0));
    of_config.1.since = earlier;
    for (claims, since, begins) in [(vec![], Claim::SINCE_NOW, now()), (vec![of_config], earlier, earlier)] {
        let shared = shared(1, &nodes, &claims);
        let decision = shared.deletion(&nodes[0]);
        assert_eq!(decision, DisruptionDecision::Claim(Claim { since, ..of_node.1.clone() }));
        assert_eq!(written(&shared, decision).0["a"].since, begins);
    }
}

/// It may work again before it is updated.
#[test]
fn a_disrupted_node_is_claimed_for_its_update_and_takes_nothing_more() {
    let broken = |name: &str| working(name).with("/status/conditions", json!([{"type": "Ready", "status": "False"}]));
    let nodes = [broken("a").build(), working("b").build()];
    let alone = shared(1, &nodes, &[]);
    assert_eq!(claimed(&alone, alone.update(&nodes[0])), ["a=machine/0"]);
    assert!(matches!(alone.update(&nodes[1]), DisruptionDecision::Wait(text) if text.ends_with(" a")));
    let two = [nodes[0].clone(), broken("c").build()];
    assert!(matches!(shared(1, &two, &[]).update(&two[0]), DisruptionDecision::Wait(_)), "more are broken than may be");
}

/// They run Pods, and are disrupted as the pool counts.
#[test]
fn nodes_that_have_drifted_go_one_after_the_other() {
    let drifted = |name: &str| {
        let node = going(name).annotation(CURRENT_CONFIG, "new").annotation(DESIRED_CONFIG, "new");
        node.annotation(STATE, DEGRADED).build()
    };
    let nodes = ["a", "b", "c"].map(drifted);
    let all = shared(1, &nodes, &[]);
    assert!(matches!(all.deletion(&nodes[0]), DisruptionDecision::Wait(_)));
    assert!(matches!(all.update(&nodes[0]), DisruptionDecision::Wait(_)));
    let one = shared(1, &nodes[..1], &[]);
    assert_eq!(claimed(&one, one.deletion(&nodes[0])), ["a=machine/0"], "it does not wait for itself");
}

#[test]
fn an_update_waits_for_a_configuration_that_is_being_given() {
    let closed = working("a").with("/spec/unschedulable", true).annotation(annotations::CONFIG_GIVEN, "4");
    let nodes = [closed.build()];
    let used = shared(1, &nodes, &[claim("a", "new", 3)]);
    assert!(matches!(used.update(&nodes[0]), DisruptionDecision::Wait(text) if text.contains("being given")));
    let unused = shared(1, &nodes, &[claim("a", "new", 4)]);
    assert_eq!(claimed(&unused, unused.update(&nodes[0])), ["a=machine/4"], "a closed node is given none");
}

#[test]
fn a_node_that_was_deleted_and_made_again_has_no_claim() {
    let nodes = [going("a").with("/metadata/uid", "other").build()];
    let shared = shared(1, &nodes, &[claim("a", Claim::MACHINE, 0)]);
    assert!(matches!(shared.deletion(&nodes[0]), DisruptionDecision::Wait(_)), "until the former one's claim is gone");
}

#[test]
fn the_count_of_a_node_without_annotations_follows_another_annotation() {
    let node: Node = cluster_object("a").with("/metadata/resourceVersion", "5").build();
    let mut seen = json!({"metadata": node.metadata});
    let mark = nodewright_runtime::annotations::set(&node.metadata, annotations::CORDONED, Some("true"));
    let operations = [mark.0, used(&node)].concat();
    nodewright_testing::json_patch(&mut seen, &Patch(operations)).unwrap();
    assert_eq!(seen["metadata"]["annotations"], json!({annotations::CORDONED: "true", annotations::CONFIG_GIVEN: "1"}));
}
