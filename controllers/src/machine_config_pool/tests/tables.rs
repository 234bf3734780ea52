//! The unit tables of machine-config-operator on the rollout of a pool, as data in `tables/`. Each test has the name of the table's own
//! test. What differs on purpose stands in `docs/reference/mco-tables.md`.

use std::{fs, path::Path, sync::Arc};

use jiff::Timestamp;
use nodewright_api::{
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
    stored::{Claim, Disruptions},
};
use nodewright_runtime::{
    object::{annotation, name as name_of, uid},
    plan::Step,
};
use serde_json::{Value, json};

use super::cluster_object;
use crate::{
    machine_config_pool::{
        members::Members,
        nodes, progress,
        progress::PoolView,
        rollout::{Rollout, Scope, decide},
    },
    shared::{
        disruption::{
            budget,
            node_state::{is_behind, is_ready, is_unavailable},
            order::rank,
        },
        node::Node,
        pools::Membership,
    },
    testing::NOW,
};

const PREFIX: &str = "machineconfiguration.openshift.io/";

/// The rows of a table, of which there must be so many.
fn rows(table: &str, count: usize) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine_config_pool/tests/tables");
    let table: Value =
        serde_saphyr::from_str(&fs::read_to_string(folder.join(format!("{table}.yaml"))).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), count);
    rows
}

/// A Node as a table has it.
fn node(row: &Value) -> Node {
    let mut node = cluster_object(row["name"].as_str().unwrap_or("node"));
    let keys = [
        ("current", "currentConfig"),
        ("desired", "desiredConfig"),
        ("state", "state"),
        ("image_current", "currentImage"),
        ("image_desired", "desiredImage"),
    ];
    for (field, key) in keys {
        if let Some(value) = row[field].as_str() {
            node = node.annotation(&format!("{PREFIX}{key}"), value);
        }
    }
    for (key, value) in row["annotations"].as_object().into_iter().flatten() {
        node = node.annotation(key, value.as_str().unwrap());
    }
    for (key, value) in row["labels"].as_object().into_iter().flatten() {
        node = node.label(key, value.as_str().unwrap());
    }
    let mut conditions: Vec<Value> = row["conditions"].as_array().cloned().unwrap_or_default();
    conditions.extend(row["ready"].as_str().map(|ready| json!({"type": "Ready", "status": ready})));
    let node =
        node.with("/spec/unschedulable", row["unschedulable"].clone()).with("/spec/taints", row["taints"].clone());
    node.with("/status/conditions", conditions).build()
}

fn node_list(row: &Value) -> Vec<Node> {
    row.as_array().unwrap().iter().map(node).collect()
}

fn pool(row: &Value) -> Arc<MachineConfigPool> {
    let selector = json!({"matchLabels": row["selects"]});
    Arc::new(cluster_object(row["name"].as_str().unwrap()).with("/spec/nodeSelector", selector).build())
}

/// The rollout to `cfg-1`.
fn scope<'a>(nodes: &'a [Node], claims: &'a Disruptions, budget: usize) -> Scope<'a> {
    Scope { target: "cfg-1", ..super::scope(nodes, claims, budget) }
}

fn rollout<'a>(nodes: &'a [Node], claims: &'a Disruptions, budget: usize) -> Rollout<'a> {
    decide(&scope(nodes, claims, budget))
}

fn names<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<&'a str> {
    nodes.into_iter().map(name_of).collect()
}

#[test]
fn test_get_primary_pool_for_node() {
    for row in rows("pool-primary", 8) {
        let pools: Vec<_> = row["pools"].as_array().unwrap().iter().map(pool).collect();
        let (found, is_error) = match Membership::among(&pools, &node(&row)) {
            Membership::None => (Value::Null, false),
            Membership::Of(pool) => (name_of(pool.as_ref()).into(), false),
            Membership::Ambiguous(_) => (Value::Null, true),
        };
        assert_eq!(json!({"pool": found, "error": is_error}), row["expect"], "{row}");
    }
}

#[test]
fn test_get_nodes_for_pool() {
    for row in rows("pool-nodes", 5) {
        let pools = [pool(&row["pool"])];
        let mut members = 0;
        for kind in row["nodes"].as_array().unwrap() {
            let is_member = matches!(Membership::among(&pools, &node(kind)), Membership::Of(_));
            members += if is_member { kind["count"].as_u64().unwrap() } else { 0 };
        }
        assert_eq!(members, row["expect"], "{row}");
    }
}

#[test]
fn test_max_unavailable() {
    for row in rows("pool-budget", 8) {
        let pool: MachineConfigPool =
            cluster_object("worker").with("/spec/maxUnavailable", row["max_unavailable"].clone()).build();
        let found = budget::of(&pool, usize::try_from(row["nodes"].as_u64().unwrap()).unwrap());
        assert_eq!(found.map_or("error".into(), Value::from), row["expect"], "{row}");
    }
}

#[test]
fn test_is_node_ready() {
    for row in rows("node-ready", 11) {
        assert_eq!(json!(is_ready(&node(&row))), row["expect"], "{row}");
    }
}

#[test]
fn test_get_unavailable_machines() {
    for row in rows("pool-unavailable", 8) {
        let nodes = node_list(&row["nodes"]);
        assert_eq!(json!(names(nodes.iter().filter(|node| is_unavailable(node)))), row["expect"], "{row}");
    }
}

#[test]
fn test_get_candidate_machines() {
    for row in rows("pool-candidates", 13) {
        let nodes = node_list(&row["nodes"]);
        let none = Disruptions::default();
        let budget = usize::try_from(row["max_unavailable"].as_u64().unwrap()).unwrap();
        let capacity = budget.saturating_sub(scope(&nodes, &none, budget).disrupted(&none));
        let rollout = rollout(&nodes, &none, budget);
        let now: Vec<_> = rollout.claims.0.keys().collect();
        // Without capacity there are no candidates upstream.
        let later = if capacity == 0 { vec![] } else { names(rollout.waiting.iter().copied()) };
        let found = json!({"now": now, "later": later, "capacity": capacity});
        assert_eq!(found, row["expect"], "{row}");
        assert!(rollout.targets.is_empty(), "claims come first");
    }
}

#[test]
fn test_sort_node_list() {
    for row in rows("pool-order", 1) {
        let nodes = row["nodes"].as_array().unwrap().iter().map(|row| {
            let created = Timestamp::from_second(row["created"].as_i64().unwrap()).unwrap().to_string();
            let mut node = cluster_object(row["name"].as_str().unwrap()).with("/metadata/creationTimestamp", created);
            if let Some(zone) = row["zone"].as_str() {
                node = node.label("topology.kubernetes.io/zone", zone);
            }
            node.build()
        });
        let mut nodes: Vec<Node> = nodes.collect();
        nodes.sort_by_cached_key(rank);
        assert_eq!(json!(names(&nodes)), row["expect"]);
    }
}

/// The claim of a Node for `cfg-1`, as a pool has it.
fn claimed(node: &Node) -> Disruptions {
    let (uid, since) = (uid(node).to_owned(), NOW.parse().unwrap());
    let claim = Claim { uid, target: "cfg-1".to_owned(), given: 0, from: None, since };
    Disruptions([(name_of(node).to_owned(), claim)].into())
}

/// What is written to a Node, and the Node afterwards.
fn written(nodes: &[Node], rollout: &Rollout<'_>) -> Vec<(String, Value)> {
    let steps = nodes::steps(&nodes.iter().collect::<Vec<_>>(), rollout, Some("cfg-1"));
    let written = steps.into_iter().map(|planned| {
        let Step::Edit { at, patch, .. } = planned.step else { panic!("{planned:?}") };
        let node = nodes.iter().find(|node| name_of(*node) == at.key().name.as_ref()).unwrap();
        let taints = if node.taints().is_empty() { Value::Null } else { json!(node.taints()) };
        let mut object = json!({"metadata": node.metadata, "spec": {"taints": taints}});
        nodewright_testing::json_patch(&mut object, &patch).unwrap();
        (name_of(node).to_owned(), object)
    });
    written.collect()
}

#[test]
fn test_update_candidates() {
    for row in rows("pool-targets", 9) {
        let nodes = [node(&row["node"])];
        // No controller claims a Node that has the target.
        let has_target = row["node"]["desired"] == "cfg-1" && row["node"]["image_desired"].is_null();
        let claims = if has_target { Disruptions::default() } else { claimed(&nodes[0]) };
        let mut rollout = rollout(&nodes, &claims, 1);
        // Rows 1 to 4 choose Nodes that none of the two controllers would choose.
        rollout.releases.clear();
        rollout.targets = nodes.iter().filter(|node| is_behind(node, "cfg-1")).collect();
        let written = written(&nodes, &rollout);
        assert_eq!(written.len() as u64, row["expect"]["patches"].as_u64().unwrap(), "{row}");
        let Some((_, object)) = written.first() else { continue };
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations[format!("{PREFIX}desiredConfig")], row["expect"]["set"]["desired"], "{row}");
        for key in row["expect"]["removed"].as_array().unwrap() {
            assert_eq!(
                (key.as_str(), &annotations[format!("{PREFIX}desiredImage")]),
                (Some("image_desired"), &Value::Null)
            );
        }
        for (key, value) in row["node"]["annotations"].as_object().into_iter().flatten() {
            assert_eq!(annotations[key], *value, "{row}");
        }
    }
}

#[test]
fn test_should_make_progress() {
    for row in rows("pool-taints", 4) {
        let other = json!({"name": "other", "current": "cfg-1", "desired": "cfg-1", "state": "Done"});
        let mut nodes = [node(&row["node"]), node(&other)];
        let (mut claims, mut count) = (Disruptions::default(), 0);
        for _ in 0..3 {
            let rollout = rollout(&nodes, &claims, 1);
            let written = written(&nodes, &rollout);
            count += written.len();
            let wanted = rollout.claims.clone();
            for (name, object) in written {
                let node = nodes.iter_mut().find(|node| name_of(*node) == name).unwrap();
                node.metadata = serde_json::from_value(object["metadata"].clone()).unwrap();
                node.spec = serde_json::from_value(object["spec"].clone()).unwrap();
            }
            claims = wanted;
        }
        let expect = &row["expect"];
        assert_eq!(annotation(&nodes[0], &format!("{PREFIX}desiredConfig")).unwrap(), expect["desired"], "{row}");
        // A Node that is given the target never has the taint: it goes, if it was there, with the patch that gives it.
        let is_targeted = row["node"]["desired"] != expect["desired"];
        let writes = expect["node_writes"].as_array().unwrap().iter().filter(|write| *write != "taint-added").count();
        let taints = if is_targeted { json!([]) } else { expect["taints"].clone() };
        assert_eq!((count, json!(nodes[0].taints())), (writes, taints), "{row}");
    }
}

/// The status of a pool with these Nodes, as another controller has left it or not.
fn status(row: &Value, before: MachineConfigPoolStatus) -> (MachineConfigPoolStatus, usize) {
    let spec = json!({"configuration": {"name": row["pool"]["target"]}, "paused": row["pool"]["paused"],
        "machineConfigSelector": {"matchLabels": {super::ROLE: "worker"}}, "maxUnavailable": row["pool"]["max_unavailable"]});
    let pool: MachineConfigPool = cluster_object("worker").with("/spec", spec).build();
    let nodes = node_list(&row["nodes"]);
    let members = Members { nodes: nodes.iter().cloned().map(Arc::new).collect(), ..super::listed() };
    let snapshot = super::snapshot_of(pool, members);
    let now = NOW.parse().unwrap();
    let progress = PoolView::of(&snapshot, now);
    let mut status = before;
    progress::report(&mut status, now, &snapshot, &progress);
    let target = progress.target.filter(|_| progress.moves);
    let writes = nodes::steps(&progress.nodes, &progress.rollout, target).len();
    (status, writes)
}

#[test]
fn test_calculate_status() {
    for row in rows("pool-status", 8) {
        let (status, _) = status(&row, MachineConfigPoolStatus::default());
        let counts = json!({"machines": status.machine_count, "updated": status.updated_machine_count,
            "ready": status.ready_machine_count, "unavailable": status.unavailable_machine_count,
            "degraded": status.degraded_machine_count});
        assert_eq!(counts, row["expect"]["counts"], "{row}");
        for (kind, expected) in row["expect"]["conditions"].as_object().unwrap() {
            // `Degraded` sums up, of what is here only `NodeDegraded`.
            let kind = if kind == "Degraded" { "NodeDegraded" } else { kind };
            let condition = status.conditions.iter().find(|it| it.condition_type == kind).unwrap();
            assert_eq!(json!(condition.status.as_str()), *expected, "{kind}: {row}");
        }
    }
}

/// Rows `paused` and those after it: which rounds write to Nodes, and that the same status is not written again.
#[test]
fn test_pool_sync() {
    for row in rows("pool-sync", 5) {
        let (first, writes) = status(&row, MachineConfigPoolStatus::default());
        assert_eq!(json!(writes), row["expect"]["node_writes"], "{row}");
        let (second, _) = status(&row, first.clone());
        assert_eq!(first, second, "{row}");
    }
}
