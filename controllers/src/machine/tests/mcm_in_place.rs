//! machine-controller-manager's unit tables on updates in place, as data (`mcm_in_place.json`), and what differs.

use std::collections::BTreeSet;

use nodewright_api::labels;
use serde::Deserialize;

use super::{preserve::Life, *};

#[derive(Deserialize)]
struct Row {
    test: String,
    name: String,
    machine: Value,
    node: Value,
    settings: Value,
    expected: Value,
}

fn rows(test: &str) -> Vec<Row> {
    let all: Vec<Row> = serde_json::from_str(include_str!("mcm_in_place.json")).unwrap();
    let found: Vec<_> = all.into_iter().filter(|row| row.test == test).collect();
    assert!(!found.is_empty());
    found
}

/// The reasons that are not written here, and where the Node of the row ends instead: nothing is on it that has to leave.
fn ends_with(reason: &str) -> Option<&str> {
    match reason {
        "CandidateForUpdate" => None,
        "SelectedForUpdate" | "DrainSuccessful" => Some("ReadyForUpdate"),
        other => Some(other),
    }
}

/// A Machine and its Node as a row has them. `selected`: in MCM these steps do not look at the labels that lead to them.
fn life(row: &Row, selected: bool) -> Life {
    let phase = row.machine["phase"].as_str().filter(|phase| !phase.is_empty()).unwrap_or("Running");
    let mut life = Life::of(linked(phase), READY);
    let ago = |seconds: &Value| (life.now - SignedDuration::from_secs(seconds.as_i64().unwrap_or(0))).to_string();
    life.machine["status"]["currentStatus"]["lastUpdateTime"] = ago(&row.machine["lastUpdateSecondsAgo"]).into();
    if row.machine["disableHealthTimeout"] == true {
        life.machine["spec"]["disableHealthTimeout"] = true.into();
    }
    for (key, field) in [("inPlaceUpdateTimeout", "inPlaceUpdateTimeout"), ("healthTimeout", "healthTimeout")] {
        if let Some(seconds) = row.settings[key].as_i64() {
            life.machine["spec"][field] = format!("{seconds}s").into();
        }
    }
    if row.node.is_null() {
        life.node = None;
        return life;
    }
    let mut conditions = row.node["conditions"].as_array().cloned().unwrap_or_default();
    for condition in &mut conditions {
        condition["lastTransitionTime"] = ago(&condition["lastTransitionSecondsAgo"]).into();
        condition.as_object_mut().unwrap().remove("lastTransitionSecondsAgo");
    }
    if !conditions.iter().any(|condition| condition["type"] == "Ready") {
        conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": NOW}));
    }
    let node = life.node.as_mut().unwrap();
    json_patch::merge(&mut node["metadata"]["labels"], &row.node["labels"]);
    json_patch::merge(&mut node["metadata"]["annotations"], &row.node["annotations"]);
    if selected {
        for key in [labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE] {
            node["metadata"]["labels"][key] = "true".into();
        }
    }
    node["status"]["conditions"] = conditions.into();
    life
}

fn condition(life: &Life) -> Option<(String, String)> {
    let all = life.node.as_ref()?["status"]["conditions"].as_array()?;
    let condition = all.iter().find(|it| it["type"] == "InPlaceUpdate")?;
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

/// Carries out what is planned, until nothing is left to do or the health of the Node counts.
fn settle(life: &mut Life) {
    for _ in 0..9 {
        let plan = life.fixture().plan();
        let steps: Vec<_> = plan.steps().map(|planned| planned.step.clone()).collect();
        if steps.is_empty() || steps.iter().any(|step| matches!(step, Step::Call(_) | Step::ConfirmUnchanged(_))) {
            return;
        }
        for step in &steps {
            life.carry_out(step);
        }
    }
    panic!("it does not settle");
}

#[test]
fn update_node_condition_based_on_label() {
    for row in rows("updateNodeConditionBasedOnLabel") {
        let mut life = life(&row, false);
        let before = condition(&life);
        settle(&mut life);
        let expected = row.expected["condition"]["reason"].as_str().and_then(ends_with);
        let found = condition(&life);
        match expected {
            // The condition of an earlier update stays, and nothing is written.
            None => assert_eq!(found, before, "{}", row.name),
            Some(reason) => assert_eq!(found.unwrap().0, reason, "{}", row.name),
        }
    }
}

#[test]
fn in_place_update_and_drain_node_for_in_place() {
    let table = ["inPlaceUpdate", "drainNodeForInPlace"].into_iter().flat_map(rows);
    for row in table {
        // Without the condition, nothing is asked for in these tables.
        let is_asked = row.expected["condition"].is_object();
        let mut life = life(&row, is_asked);
        settle(&mut life);
        let expected = row.expected["condition"]["reason"].as_str().and_then(ends_with);
        assert_eq!(condition(&life).map(|(reason, _)| reason).as_deref(), expected, "{}", row.name);
        if is_asked {
            assert_eq!(life.machine["status"]["currentStatus"]["phase"], "InPlaceUpdating", "{}", row.name);
        }
    }
}

/// The one that counts as a failure here is replaced with its deployment's label, too.
#[test]
fn reconcile_machine_health() {
    let mut seen = BTreeSet::new();
    for row in rows("reconcileMachineHealth") {
        let mut life = life(&row, true);
        // The program on the Node was asked, or its answer would not count.
        let since = life.machine["status"]["currentStatus"]["lastUpdateTime"].clone();
        let asked =
            json!({"type": "InPlaceUpdate", "status": "True", "reason": "ReadyForUpdate", "lastTransitionTime": since});
        life.node.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap().push(asked);
        settle(&mut life);
        let phase = life.machine["status"]["currentStatus"]["phase"].as_str().unwrap().to_owned();
        let expected = row.expected["phase"].as_str().unwrap();
        if expected == "Failed" {
            let steps = life.fixture().steps();
            assert!(steps.contains(&"confirm Node n".to_owned()), "it is about to fail: {steps:?}");
        } else if row.machine["phase"] == "InPlaceUpdating" && expected == "InPlaceUpdateSuccessful" {
            // Its node is not ready: health goes on from there.
            assert!(["InPlaceUpdateSuccessful", "Unknown"].contains(&phase.as_str()), "{}: {phase}", row.name);
        } else {
            assert_eq!(phase, expected, "{}", row.name);
        }
        seen.insert(expected.to_owned());
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// What wakes a Machine. One label differs: without the label of a candidate the others mean nothing, there as well as here.
#[test]
fn in_place_update_labels_changed() {
    use crate::shared::in_place::gist;
    let node =
        |value: &Value| (!value.is_null()).then(|| json!({"metadata": {"name": "n", "labels": value["labels"]}}));
    let all: Vec<Value> = serde_json::from_str(include_str!("mcm_in_place.json")).unwrap();
    let table = all.iter().filter(|row| row["test"] == "inPlaceUpdateLabelsChanged");
    let mut differ = vec![];
    for row in table {
        let (Some(old), Some(new)) = (node(&row["oldNode"]), node(&row["node"])) else { continue };
        let of = |node: Value| gist(&serde_json::from_value::<Node>(node).unwrap());
        if (of(old) != of(new)) != row["expected"]["changed"].as_bool().unwrap() {
            differ.push(row["name"].as_str().unwrap());
        }
    }
    assert_eq!(
        differ,
        ["LabelKeyNodeSelectedForUpdate added", "LabelKeyNodeUpdateResult added", "LabelKeyNodeUpdateResult changed"]
    );
}
