//! Failed machines that users want to keep.

use jiff::{SignedDuration, Timestamp};

use nodewright_api::stored::Preserve;

use super::*;
use crate::{machine_set::memory::Plan, shared::preservation::requested};

/// A failed machine that asks to be kept, since this many hours.
fn failed_for(hours: i64, asks: &str) -> MachineBuilder {
    let set = machine_set("set", 1, Some(LEDGER));
    let failed = NOW.parse::<Timestamp>().unwrap() - SignedDuration::from_hours(hours);
    member(&set, 0)
        .phase("Failed")
        .annotation("node.machine.sapcloud.io/preserve", asks)
        .with("/status/currentStatus/lastUpdateTime", failed.to_string())
}

fn plan_of(machine: MachineBuilder) -> Plan {
    planned(&failing(i32::from(requested(&machine.clone().build()) == Some(Preserve::Auto)), vec![machine]))
}

#[test]
fn a_machine_that_users_keep_goes_when_mcm_would_let_it_go() {
    for asks in ["now", "when-failed", "auto-preserved"] {
        let kept = plan_of(failed_for(95, asks));
        assert_eq!(steps(&kept), Vec::<Vec<String>>::new(), "{asks}");
        assert_eq!(kept.wake, Some("2026-06-01T13:00:00Z".parse().unwrap()), "it is looked at when its time is over");
        assert_eq!(steps(&plan_of(failed_for(96, asks))).len(), 2, "{asks}: its time is over");
    }
    for asks in ["false", "yes"] {
        assert_eq!(steps(&plan_of(failed_for(0, asks))).len(), 2, "{asks}");
    }
}

#[test]
fn the_time_of_the_machine_and_an_expiry_in_its_status_come_first() {
    let own = |hours: i64| failed_for(hours, "now").with("/spec/machinePreserveTimeout", "2h");
    let goes = |machine| plan_of(machine).steps().any(|planned| matches!(planned.step, Step::Delete(_)));
    assert!(!goes(own(1)) && goes(own(2)));
    let expiry = |at: &str| failed_for(500, "now").with("/status/currentStatus/preserveExpiryTime", at);
    assert!(!goes(expiry("2026-06-01T12:00:01Z")) && goes(expiry("2026-06-01T11:59:59Z")));
}

#[test]
fn a_scale_down_takes_a_machine_that_runs_before_a_failed_one_that_users_keep() {
    let set = machine_set("set", 1, Some(LEDGER));
    let deleted = |asks: &str| {
        let machines = vec![failed_for(1, asks).build(), member(&set, 1).phase("Running").build()];
        let mut deleted = planned(&snapshot(set.clone(), machines)).steps().cloned().collect::<Vec<_>>();
        deleted.retain(|planned| matches!(planned.step, Step::Delete(_)));
        deleted.iter().map(|planned| planned.step.to_string()).collect::<Vec<_>>()
    };
    let (failed, running) = (member(&set, 0).build(), member(&set, 1).build());
    let is_of = |deleted: &[String], machine: &Machine| deleted.len() == 1 && deleted[0].contains(name(machine));
    for asks in ["now", "when-failed", "auto-preserved"] {
        assert!(is_of(&deleted(asks), &running), "{asks}: {:?}", deleted(asks));
    }
    assert!(is_of(&deleted("false"), &failed), "{:?}", deleted("false"));
}

/// A set of these failed machines, which asks for as many as this to be preserved.
fn failing(maximum: i32, machines: Vec<MachineBuilder>) -> Snapshot {
    let mut set = machine_set("set", i32::try_from(machines.len()).unwrap(), Some(LEDGER));
    set.spec.auto_preserve_failed_machine_max = maximum;
    snapshot(set, machines.into_iter().map(MachineBuilder::build).collect())
}

fn failed(index: usize, created: &str) -> MachineBuilder {
    let set = machine_set("set", 1, Some(LEDGER));
    member(&set, index).phase("Failed").created(created).with("/status/currentStatus/lastUpdateTime", NOW)
}

/// The indices of the machines that get the annotation or lose it, and of those that are deleted.
fn decided(snapshot: &Snapshot) -> (Vec<usize>, Vec<usize>) {
    let (mut edited, mut deleted) = (vec![], vec![]);
    for planned in planned(snapshot).steps() {
        let list = match &planned.step {
            Step::Edit { .. } => &mut edited,
            Step::Delete(_) => &mut deleted,
            _ => continue,
        };
        let key = planned.step.key().unwrap();
        list.push((0..9).find(|index| index_name(LEDGER, *index) == *key.name).unwrap());
    }
    (edited, deleted)
}

#[test]
fn a_set_preserves_as_many_failed_machines_as_it_is_asked_to_the_newest_first() {
    let young = || failed(0, "2026-06-01T11:00:00Z");
    let old = || failed(1, "2026-06-01T10:00:00Z");
    let is_auto = |machine: MachineBuilder| machine.annotation("node.machine.sapcloud.io/preserve", "auto-preserved");
    let asks = |machine: MachineBuilder, value: &str| machine.annotation("node.machine.sapcloud.io/preserve", value);
    let by_node = |value| young().annotation("node.machine.sapcloud.io/last-applied-node-preserve-value", value);
    let cases = [
        ("none is asked for", failing(0, vec![young(), old()]), (vec![], vec![0, 1])),
        ("the newest", failing(1, vec![young(), old()]), (vec![0], vec![1])),
        ("both", failing(2, vec![young(), old()]), (vec![0, 1], vec![])),
        ("there is one already", failing(1, vec![young(), is_auto(old())]), (vec![], vec![0])),
        ("a user asks for it: that does not count", failing(1, vec![asks(young(), "now"), old()]), (vec![1], vec![])),
        ("a user does not want it", failing(2, vec![asks(young(), "false"), old()]), (vec![1], vec![0])),
        ("nor on the node", failing(2, vec![by_node("false"), old()]), (vec![1], vec![0])),
        ("the node asks for it", failing(0, vec![by_node("when-failed")]), (vec![], vec![])),
        ("a value that is none", failing(1, vec![asks(young(), "yes")]), (vec![0], vec![])),
        ("fewer than before", failing(1, vec![is_auto(young()), is_auto(old())]), (vec![1], vec![])),
        ("none any more", failing(0, vec![is_auto(young()), asks(old(), "now")]), (vec![0], vec![])),
    ];
    for (case, snapshot, expected) in cases {
        let (edited, mut deleted) = decided(&snapshot);
        deleted.sort_unstable();
        assert_eq!((edited, deleted), expected, "{case}");
    }
}

#[test]
fn machines_that_fail_after_a_change_of_the_number_go_by_the_earlier_expiry() {
    let auto = |index, expiry: &str| {
        let machine =
            failed(index, "2026-06-01T10:00:00Z").annotation("node.machine.sapcloud.io/preserve", "auto-preserved");
        machine.preserved_until(expiry)
    };
    let machines =
        vec![auto(0, "2026-06-05T00:00:00Z"), auto(1, "2026-06-03T00:00:00Z"), auto(2, "2026-06-04T00:00:00Z")];
    assert_eq!(decided(&failing(1, machines)).0, [1, 2]);
}

#[test]
fn a_machine_whose_annotation_is_refused_is_deleted() {
    let snapshot = failing(1, vec![failed(0, "2026-06-01T10:00:00Z")]);
    let outcomes = Outcomes::default();
    let is_deleted_after = |class: FailureClass| {
        let key = ObjectRef::new(CONTROL, "default", index_name(LEDGER, 0));
        let failed = Failure::of::<Machine>(StepVerb::Patch, key, class, "no");
        let at = Context::new("2026-06-01T09:00:00Z".parse().unwrap(), &outcomes);
        let at = Context { now: NOW.parse().unwrap(), attempt: 1, failure: Some(&failed), ..at };
        plan(&at, &snapshot).steps().any(|planned| matches!(planned.step, Step::Delete(_)))
    };
    assert!(is_deleted_after(FailureClass::Forbidden) && is_deleted_after(FailureClass::Invalid));
    for class in
        [FailureClass::Unknown, FailureClass::Unreachable, FailureClass::Unauthorized, FailureClass::TooManyRequests]
    {
        assert!(!is_deleted_after(class), "{class:?}: the API server has refused nothing");
    }
}

#[test]
fn the_status_counts_preserved_machines_apart_and_does_not_list_them_as_failed() {
    let preserved = failed(0, "2026-06-01T10:00:00Z").preserved_until("2026-06-05T00:00:00Z");
    let preserved = preserved.annotation("node.machine.sapcloud.io/preserve", "auto-preserved");
    let operation = json!({"type": "HealthCheck", "state": "Failed", "description": "d"});
    let status = status_of(&failing(1, vec![preserved.with("/status/lastOperation", operation)])).unwrap();
    assert_eq!(
        [&status["preservedFailedReplicas"], &status["autoPreserveFailedMachineCount"], &status["failedMachines"]],
        [&json!(1), &json!(1), &json!(null)]
    );
}

/// machine-controller-manager's unit tables, as data.
fn rows(table: &str) -> Vec<Value> {
    let text = include_str!("../../machine/tests/mcm_preservation.json");
    serde_json::from_str::<Value>(text).unwrap()[table].as_array().unwrap().clone()
}

/// The table has a number in the status that no machine accounts for: here machines do.
#[test]
fn mcm_table_manage_auto_preservation_of_failed_machines() {
    for row in rows("manageAutoPreservationOfFailedMachines") {
        let given = &row["given"];
        let mut machines = vec![];
        for (index, it) in given["machines"].as_array().unwrap().iter().enumerate() {
            let created = if it["created"] == "-1h" { "2026-06-01T11:00:00Z" } else { "2026-06-01T10:00:00Z" };
            let machine = failed(index, created).phase(it["phase"].as_str().unwrap());
            let asks = it["machine"].as_str();
            machines.push(
                asks.map_or(machine.clone(), |asks| machine.annotation("node.machine.sapcloud.io/preserve", asks)),
            );
        }
        let is_auto = |it: &Value| it["machine"] == "auto-preserved";
        let known = given["machines"].as_array().unwrap().iter().filter(|it| is_auto(it)).count();
        let counted = usize::try_from(given["count"].as_u64().unwrap()).unwrap();
        for index in known..counted {
            let other = failed(machines.len() + index, "2026-06-01T09:00:00Z");
            machines.push(other.annotation("node.machine.sapcloud.io/preserve", "auto-preserved"));
        }
        let snapshot = failing(i32::try_from(given["maximum"].as_i64().unwrap()).unwrap(), machines);
        let (edited, _) = decided(&snapshot);
        let before = known.max(counted);
        let is_ended = |index: &usize| requested(&snapshot.machines[*index]) == Some(Preserve::Auto);
        let (ended, begun): (Vec<usize>, Vec<usize>) = edited.into_iter().partition(is_ended);
        let after = before + begun.len() - ended.len() - (counted - known.min(counted)).min(before);
        assert_eq!(after as u64, row["expect"]["autoPreserved"].as_u64().unwrap(), "{}", row["name"]);
    }
}

/// A set does not read Nodes: the Machine bears what its Node asks for before it fails, and no longer once it was seen that the Node
/// asks for nothing.
#[test]
fn mcm_table_should_failed_machine_be_terminated() {
    for row in rows("shouldFailedMachineBeTerminated") {
        let given = &row["given"];
        let mut machine = failed(0, "2026-06-01T10:00:00Z");
        let [own, node, applied] =
            ["machine", "node", "lastApplied"].map(|key| given[key].as_str().unwrap_or_default());
        let (own, applied) = match (node, applied) {
            ("", "") => (own, ""),
            ("", _) => ("", ""),
            (node, _) => ("", node),
        };
        for (key, value) in [("preserve", own), ("last-applied-node-preserve-value", applied)] {
            machine = machine.annotation(&format!("node.machine.sapcloud.io/{key}"), value);
        }
        let expiry = given["expiry"].as_str();
        let at = |expiry: &str| if expiry == "past" { "2026-06-01T11:00:00Z" } else { "2026-06-05T00:00:00Z" };
        if let Some(expiry) = expiry {
            machine = machine.preserved_until(at(expiry));
        }
        let (_, deleted) = decided(&failing(0, vec![machine]));
        assert_eq!(!deleted.is_empty(), row["expect"]["terminated"] == true, "{}", row["name"]);
    }
}

#[test]
fn a_machine_that_failed_under_another_manager_may_be_asked_for_by_its_node_at_first() {
    let snapshot = failing(0, vec![failed(0, "2026-06-01T10:00:00Z")]);
    for (led, deletes) in [("2026-06-01T11:59:51Z", false), ("2026-06-01T11:59:50Z", true)] {
        let outcomes = Outcomes::default();
        let at = Context { now: NOW.parse().unwrap(), ..Context::new(led.parse().unwrap(), &outcomes) };
        let plan = plan(&at, &snapshot);
        assert_eq!(plan.steps().any(|planned| matches!(planned.step, Step::Delete(_))), deletes, "{led}");
        assert!(deletes || plan.wake == Some("2026-06-01T12:00:01Z".parse().unwrap()), "{:?}", plan.wake);
    }
}
