//! Machines that the ledger retires although the set needs them: an edited ledger.

use super::*;

fn ledger(retired: &str) -> String {
    format!("{LEDGER}{retired}")
}

/// A set that wants `replicas`, whose ledger retires the first `retired` of its machines; these have these phases.
fn edited(replicas: i32, retired: usize, phases: &[&str]) -> Snapshot {
    let text = if retired == 0 { ledger("") } else { ledger(&format!("0-{}", retired - 1)) };
    let set = machine_set("set", replicas, Some(&text));
    let machines = phases.iter().enumerate().map(|(at, phase)| member(&set, at).phase(phase).build()).collect();
    snapshot(set, machines)
}

/// How many Machines a plan creates and deletes.
pub(super) fn moves(snapshot: &Snapshot) -> (usize, usize) {
    let plan = planned(snapshot);
    let count = |is: fn(&Step<Never>) -> bool| plan.steps().filter(|planned| is(&planned.step)).count();
    (count(|step| matches!(step, Step::Create { .. })), count(|step| matches!(step, Step::Delete(_))))
}

#[test]
fn machines_that_work_are_replaced_one_by_one() {
    // Replicas, how many are retired, all phases; how many are created and deleted.
    type Row<'a> = (i32, usize, &'a [&'a str], (usize, usize));
    let running = "Running";
    let table: [Row<'_>; 9] = [
        (3, 3, &[running; 3], (1, 0)),
        (3, 3, &[running, running, running, "Pending"], (0, 0)),
        (3, 3, &[running; 4], (0, 1)),
        (3, 1, &[running; 4], (0, 1)),
        (3, 1, &[running; 3], (1, 0)),
        // What does not work goes at once; so does what nobody needs.
        (3, 3, &[running, "Failed", "Pending"], (0, 2)),
        (3, 3, &["", "", ""], (0, 3)),
        (1, 2, &[running; 3], (0, 2)),
        (0, 3, &[running; 3], (0, 3)),
    ];
    for (replicas, retired, phases, expected) in table {
        assert_eq!(moves(&edited(replicas, retired, phases)), expected, "{replicas} {retired} {phases:?}");
    }
}

#[test]
fn the_bounds_of_the_deployment_hold() {
    let with = |surge: u32, unavailable: u32| {
        let strategy = json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        let mut deployment = crate::testing::machine_deployment(4, &strategy);
        deployment["status"] = json!({"observedGeneration": 1});
        let deployment = Some(Arc::new(serde_json::from_value(deployment).unwrap()));
        moves(&Snapshot { deployment, ..edited(4, 4, &["Running"; 4]) })
    };
    assert_eq!(with(2, 0), (2, 0));
    assert_eq!(with(0, 1), (0, 1));
    assert_eq!(with(1, 2), (0, 2), "the plan after that creates");
}

/// As after a rollout that is taken back: the set retires what it shrinks by, and grows again before the Machines are deleted.
#[test]
fn the_surge_is_that_of_all_sets_together() {
    let with = |others: usize, (surge, unavailable): (u32, u32)| {
        let strategy = json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        let mut deployment = crate::testing::machine_deployment(4, &strategy);
        deployment["status"] = json!({"observedGeneration": 1});
        let deployment = Some(Arc::new(serde_json::from_value(deployment).unwrap()));
        let own = edited(4, 1, &["Running"; 3]);
        let population = Population { deployment: own.machines.len() + others, ..own.population };
        moves(&Snapshot { deployment, population, ..own })
    };
    assert_eq!(with(0, (1, 1)), (2, 0));
    assert_eq!(with(1, (1, 1)), (1, 0), "another set has the surge");
    assert_eq!(with(1, (2, 0)), (2, 0));
    assert_eq!(with(2, (1, 0)), (1, 0));
}

#[test]
fn an_edited_ledger_is_named_in_the_status_and_in_an_event_once() {
    let mut snapshot = edited(3, 3, &["Running"; 3]);
    let plan = planned(&snapshot);
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("InvalidLedger", "InvalidLedger"));
    let status = status_of(&snapshot).unwrap();
    let reported = &status["machineSetCondition"][0];
    let message = reported["message"].as_str().unwrap();
    assert_eq!((&reported["type"], &reported["reason"]), (&json!("ReplicaFailure"), &json!("InvalidLedger")));
    for part in ["nodewright.dev/ledger", "k7f;0-2", "retires 3 machines", "take their ordinals out of it"] {
        assert!(message.contains(part), "{message}");
    }
    Arc::make_mut(&mut snapshot.set).status = serde_json::from_value(status).unwrap();
    assert!(!planned(&snapshot).events.iter().any(|event| event.reason == "InvalidLedger"));
}

#[test]
fn a_ledger_without_an_ordinal_left_stops_the_set() {
    let snapshot = {
        let set = machine_set("set", 3, Some(&ledger("0-14348906")));
        let member = member(&set, 0).build();
        snapshot(set, vec![member])
    };
    let plan = planned(&snapshot);
    assert!(steps(&plan).is_empty(), "{:?}", steps(&plan));
    let status = status_of(&snapshot).unwrap();
    let message = status["machineSetCondition"][0]["message"].as_str().unwrap();
    assert!(message.contains("retires all ordinals, so that no name is left"), "{message}");
}
