//! machine-controller-manager's unit tables on the preservation of machines, as data (`mcm_preservation.json`), and what differs.

use std::{cell::OnceCell, collections::BTreeSet};

use nodewright_api::{annotations, stored::Preserve};
use serde::Deserialize;

use super::{preserve::Life, *};
use crate::{
    machine::{
        decision::{self, Decision},
        partial_plan::PartialPlan,
        preserve::{kept, marked, recorded, wanted},
    },
    shared::node::Node,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tables {
    manage_machine_preservation: Vec<Row>,
    get_effective_preservation_annotations: Vec<Row>,
    preserve_machine: Vec<Row>,
    stop_preservation_if_active: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    given: Value,
    expect: Value,
}

fn tables() -> Tables {
    serde_json::from_str(include_str!("mcm_preservation.json")).unwrap()
}

/// These differ, as decision record 0034 has it: the taint stays on the Node of a failed machine that is about to be deleted.
const TAINT_STAYS: [&str; 2] = [
    "when machine is annotated with preserve=when-failed and preservation times out, should stop preservation, and remove",
    "when preserved machine with preserve=when-failed has expired preservation while in Failed phase, should stop \
     preservation and untaint node",
];

/// A Machine and its Node as a row has them.
fn life(given: &Value, asks: &Value) -> Life {
    let phase = given["phase"].as_str().unwrap();
    let ready = if phase == "Failed" { "Unknown" } else { READY };
    let mut life = Life::of(linked(phase), ready);
    let set = |object: &mut Value, key: &str, value: &Value| {
        if !value.is_null() {
            object["metadata"]["annotations"][key] = value.clone();
        }
    };
    set(&mut life.machine, annotations::PRESERVE, asks);
    set(&mut life.machine, annotations::LAST_APPLIED_NODE_PRESERVE_VALUE, &given["lastApplied"]);
    if let Some(expiry) = given["expiry"].as_str() {
        let expiry = if expiry == "past" { "2026-06-01T11:00:00Z" } else { "2026-06-02T12:00:00Z" };
        life.machine["status"]["currentStatus"]["preserveExpiryTime"] = expiry.into();
    }
    let node = life.node.as_mut().unwrap();
    set(node, annotations::PRESERVE, &given["node"]);
    for (field, key) in [
        ("scaleDownDisabled", annotations::SCALE_DOWN_DISABLED),
        ("scaleDownDisabledByMcm", annotations::SCALE_DOWN_DISABLED_BY_MCM),
    ] {
        if given[field] == true {
            node["metadata"]["annotations"][key] = "true".into();
        }
    }
    if given["tainted"] == true {
        node["spec"]["taints"] = json!([{"key": nodewright_api::taints::PRESERVED, "effect": "NoSchedule"}]);
    }
    if given["unschedulable"] == true {
        node["spec"]["unschedulable"] = true.into();
    }
    if let Some(condition) = given["condition"].as_object() {
        let mut condition = condition.clone();
        condition.insert("type".to_owned(), "Preserved".into());
        condition.retain(|_, value| !value.is_null());
        node["status"]["conditions"].as_array_mut().unwrap().push(condition.into());
    }
    if given["hasNode"] == false {
        life.node = None;
    }
    life
}

/// Carries out what a preservation alone plans until nothing is left to do.
fn settle(life: &mut Life) {
    for _ in 0..9 {
        let fixture = life.fixture();
        let context = fixture.moment();
        let request = OnceCell::new();
        let scope = &Scope::of(&fixture.snapshot, &context, &request);
        let mut part = recorded(scope);
        if part.is_over {
            part = match decision::decide(scope) {
                Decision::Preserve(until) => kept(scope, until),
                _ => PartialPlan::default(),
            };
            part = marked(scope, part);
        }
        if part.plan.is_idle() {
            return;
        }
        let steps: Vec<_> = part.plan.steps().map(|planned| planned.step.clone()).collect();
        for step in &steps {
            life.carry_out(step);
        }
    }
    panic!("it does not settle");
}

fn outcome(life: &Life) -> Value {
    let (condition, tainted, [disabled, _]) = life.node.as_ref().map_or((None, false, [None; 2]), |_| life.marks());
    let condition = condition.map(|[status, reason, message]| json!([status, reason, message]));
    let [machine, applied, node] = life.requests();
    let unschedulable = life.node.as_ref().is_some_and(|node| node["spec"]["unschedulable"] == true);
    json!({
        "expirySet": life.expiry().is_some(), "machine": machine, "lastApplied": applied, "node": node, "tainted": tainted,
        "scaleDownDisabled": disabled == Some("true"), "unschedulable": unschedulable, "condition": condition,
    })
}

/// The asserted fields in which an outcome is another than expected.
fn differing(expect: &Value, outcome: &Value) -> Vec<String> {
    let is_same = |field: &str| {
        let (expected, is) = (&expect[field], &outcome[field]);
        let contains =
            |at: usize, text: &Value| text.as_str().is_none_or(|text| is[at].as_str().unwrap().contains(text));
        match field {
            // Of a former annotation, only its value is asserted.
            "machine" | "node" | "lastApplied" => expected.as_str().unwrap_or("") == is.as_str().unwrap_or(""),
            "condition" if expected.is_null() => is.is_null(),
            "condition" => {
                !is.is_null()
                    && is[0] == expected["status"]
                    && contains(1, &expected["reason"])
                    && contains(2, &expected["messageContains"])
            }
            _ => expected == is,
        }
    };
    let asserted = expect["asserts"].as_array().unwrap().iter().map(|field| field.as_str().unwrap());
    asserted.filter(|field| *field != "error" && !is_same(field)).map(str::to_owned).collect()
}

fn check(rows: &[Row], play: impl Fn(&Row) -> Life, is_left_out: impl Fn(&Row, &str) -> bool) {
    let mut wrong = vec![];
    for row in rows {
        let mut life = play(row);
        settle(&mut life);
        let (outcome, mut expected) = (outcome(&life), row.expect.clone());
        let asserts = expected["asserts"].as_array_mut().unwrap();
        asserts.retain(|field| !is_left_out(row, field.as_str().unwrap()));
        let differing = differing(&expected, &outcome);
        let known = TAINT_STAYS.iter().any(|name| row.name.starts_with(name));
        let expected = if known { vec!["tainted".to_owned()] } else { vec![] };
        if differing != expected {
            wrong.push(format!("{}: {differing:?} of {outcome}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn manage_machine_preservation() {
    check(
        &tables().manage_machine_preservation,
        |row| life(&row.given, &row.given["machine"]),
        // The taint of a Node that is not there.
        |row, field| row.given["hasNode"] == false && field == "tainted",
    );
}

#[test]
fn preserve_machine() {
    check(&tables().preserve_machine, |row| life(&row.given, &row.given["value"]), |_, _| false);
}

/// The table calls the end itself. Here something causes it: the time is over, or the Node's annotation is `false`.
#[test]
fn stop_preservation_if_active() {
    let ending = |row: &Row| {
        let mut given = row.given.clone();
        if given["forgets"] == true && !given["expiry"].is_null() {
            given["expiry"] = "past".into();
        } else if given["hasNode"] == true {
            given["node"] = "false".into();
        }
        life(&given, &given["machine"])
    };
    check(&tables().stop_preservation_if_active, ending, |row, field| field == "node" && row.given["forgets"] != true);
}

#[test]
fn get_effective_preservation_annotations() {
    // The table has values without a meaning.
    let meaning = |value: &Value| match value.as_str() {
        Some("A") => "now".into(),
        Some("B") => "when-failed".into(),
        _ => value.clone(),
    };
    let mut names = BTreeSet::new();
    for row in tables().get_effective_preservation_annotations {
        let given = &row.given;
        let mut machine = machine("m");
        for (field, key) in
            [("machine", annotations::PRESERVE), ("lastApplied", annotations::LAST_APPLIED_NODE_PRESERVE_VALUE)]
        {
            machine = machine.annotation(key, meaning(&given[field]).as_str().unwrap_or_default());
        }
        let node = json!({"metadata": {"name": "n", "annotations": {annotations::PRESERVE: meaning(&given["node"])}}});
        let node: Node = serde_json::from_value(node).unwrap();
        let value = wanted(&machine.build(), Some(&node).filter(|_| given["nodeFound"] == true));
        let expected = meaning(&row.expect["value"]);
        assert_eq!(value.map_or("", Preserve::as_str), expected.as_str().unwrap_or_default(), "{}", row.name);
        names.insert(row.name);
    }
    assert_eq!(names.len(), 7);
}
