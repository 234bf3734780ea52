//! machine-controller-manager's unit tables on the selection of machines for an update in place, as data (`mcm_in_place.json`), and what
//! differs. Those on single steps of its move between sets have no counterpart here: a plan moves or counts, and `in_place` has the steps.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_api::{MachineDeployment, MachineSet, labels};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::testing::{MachineExt, machine, machine_deployment};

#[derive(Deserialize)]
struct Row {
    test: String,
    name: String,
    deployment: Value,
    #[serde(default)]
    arguments: Value,
    sets: Vec<Set>,
    expected: Value,
    #[serde(default)]
    follows: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Set {
    is: String,
    name: String,
    replicas: i64,
    #[serde(default)]
    available_replicas: Option<usize>,
    machines: Vec<Value>,
}

/// Here a machine is selected whether or not its Node has the label of a candidate, which the same controllers set.
const SELECTED_AT_ONCE: &str = "because there is no machines with candidate for update label";

fn rows(test: &str) -> Vec<Row> {
    let all: Vec<Value> = serde_json::from_str(include_str!("mcm_in_place.json")).unwrap();
    let found = all.into_iter().filter(|row| row["test"] == test).map(|row| serde_json::from_value(row).unwrap());
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty());
    found
}

fn deployment(row: &Row) -> Value {
    let given = &row.deployment;
    let by = given["orchestrationType"].as_str().unwrap_or("Auto");
    let bounds =
        json!({"maxSurge": given["maxSurge"], "maxUnavailable": given["maxUnavailable"], "orchestrationType": by});
    let replicas = i32::try_from(given["replicas"].as_i64().unwrap()).unwrap();
    machine_deployment(replicas, &json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds}))
}

/// The sets, Machines and Nodes of a row, with notes that say that they were sized for the deployment.
fn given(row: &Row) -> Cluster {
    let mut cluster = Cluster::of(deployment(row));
    let pool = cluster.live();
    let mut nodes = BTreeMap::new();
    for set in &row.sets {
        let is_old = set.is == "old";
        let mut template = pool["spec"]["template"].clone();
        template["metadata"]["labels"][labels::MACHINE_TEMPLATE_HASH] = set.name.as_str().into();
        if is_old {
            template["spec"]["class"]["name"] = "former".into();
        }
        let label = if is_old { json!({labels::SCALE_UP_DISABLED: "true"}) } else { json!({}) };
        let mut all = template["metadata"]["labels"].clone();
        json_patch::merge(&mut all, &label);
        cluster.add::<MachineSet>(json!({
            "metadata": {"name": set.name, "generation": 1, "labels": all,
                "creationTimestamp": if is_old { "2026-06-01T10:00:00Z" } else { "2026-06-01T11:00:00Z" },
                "annotations": {"deployment.kubernetes.io/desired-replicas": pool["spec"]["replicas"].to_string()},
                "ownerReferences": [{"apiVersion": pool["apiVersion"], "kind": "MachineDeployment", "name": "pool",
                    "uid": pool["metadata"]["uid"], "controller": true}]},
            "spec": {"replicas": set.replicas, "template": template,
                "selector": {"matchLabels": template["metadata"]["labels"]}},
            "status": {"observedGeneration": 1},
        }));
        let owner: MachineSet = serde_json::from_value(Value::clone(&cluster.sets()[&set.name])).unwrap();
        for (at, given) in set.machines.iter().enumerate() {
            let name = given["name"].as_str().unwrap();
            let phase = if at < set.available_replicas.unwrap_or(usize::MAX) { "Running" } else { "Unknown" };
            let all = template["metadata"]["labels"].clone();
            let built = machine(name).owned_by(&owner).with("/metadata/labels", all).phase(phase).build();
            cluster.add::<nodewright_api::Machine>(serde_json::to_value(built).unwrap());
            if !given["node"].is_null() {
                nodes.insert(name.to_owned(), json!({"metadata": {"name": name, "labels": given["node"]["labels"]}}));
            }
        }
    }
    // How many are being updated is an argument there.
    let updating = row.arguments["oldMachinesUndergoingUpdate"].as_u64().unwrap_or(0);
    for node in nodes.values_mut().take(usize::try_from(updating).unwrap()) {
        node["metadata"]["labels"] = json!({labels::CANDIDATE_FOR_UPDATE: "true", labels::SELECTED_FOR_UPDATE: "true"});
    }
    cluster.nodes = Some(nodes);
    cluster
}

/// The Machines that are selected in addition to those whose Nodes are.
fn selected(cluster: &Cluster) -> usize {
    let nodes = cluster.nodes.as_ref().unwrap();
    let is_new = |name: &&String| nodes[*name]["metadata"]["labels"][labels::SELECTED_FOR_UPDATE].is_null();
    cluster.listed().iter().filter(is_new).collect::<BTreeSet<_>>().len()
}

fn play(row: &Row) -> Cluster {
    let mut cluster = given(row);
    for _ in 0..2 {
        for _ in 0..9 {
            if !cluster.act() {
                break;
            }
        }
        cluster.let_time_pass();
    }
    cluster
}

#[test]
fn reconcile_old_machine_sets_in_place_and_select_num_of_machine_for_update() {
    for row in ["reconcileOldMachineSetsInPlace", "selectNumOfMachineForUpdate"].into_iter().flat_map(rows) {
        let cluster = play(&row);
        let expected = row.expected["selected"].as_u64().or(row.follows["selected"].as_u64()).unwrap();
        let expected = if row.name.contains(SELECTED_AT_ONCE) { 1 } else { expected };
        assert_eq!(selected(&cluster) as u64, expected, "{}: {}", row.test, row.name);
        for (set, replicas) in row.follows["replicas"].as_object().into_iter().flatten() {
            assert_eq!(cluster.sets()[set]["spec"]["replicas"], *replicas, "{}: {set}", row.name);
        }
    }
}

#[test]
fn reconcile_new_machine_set_in_place() {
    for row in rows("reconcileNewMachineSetInPlace") {
        let is_moved = row.name.contains("by transferring");
        let cluster = play(&row);
        let replicas = cluster.sets();
        let new = row.sets.iter().find(|set| set.is == "new").unwrap();
        // The move itself has its own tests: there the Node has to have been asked.
        let expected = if is_moved { json!(1) } else { row.follows["replicas"][&new.name].clone() };
        assert_eq!(replicas[&new.name]["spec"]["replicas"], expected, "{}", row.name);
    }
}

#[test]
fn max_unavailable() {
    for row in rows("MaxUnavailable") {
        let deployment: MachineDeployment = serde_json::from_value(deployment(&row)).unwrap();
        let bounds = deployment.update_bounds().unwrap();
        let most = bounds.max_unavailable.min(deployment.spec.replicas);
        assert_eq!(i64::from(most), row.expected["maxUnavailable"].as_i64().unwrap(), "{}", row.name);
    }
}
