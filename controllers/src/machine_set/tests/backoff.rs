//! Machines that never join, one after the other.

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::shared::fleet::CreationTimeouts;

const ROUND: &str = "nodewright.dev/creation-backoff";

fn ago(seconds: i64) -> String {
    (NOW.parse::<Timestamp>().unwrap() - SignedDuration::from_secs(seconds)).to_string()
}

/// The Machine of an index that failed to join, so many seconds ago.
fn failed(set: &MachineSet, index: usize, seconds: i64) -> Machine {
    member(set, index)
        .phase("Failed")
        .with("/status/currentStatus/lastUpdateTime", ago(seconds))
        .with("/status/lastOperation", json!({"type": "Create", "state": "Failed", "description": "no node"}))
        .build()
}

fn in_round(round: Option<&str>) -> MachineSet {
    let mut set = machine_set("set", 2, Some("k7f;0-1"));
    let all = set.metadata.annotations.get_or_insert_default();
    all.extend(round.map(|round| (ROUND.to_owned(), round.to_owned())));
    set
}

fn notes(ledger: &str, round: &str) -> String {
    let all = json!({"metadata": {"annotations": {ROUND: round, "nodewright.dev/ledger": ledger}}});
    format!("apply set {all}")
}

#[test]
fn the_first_failure_is_replaced_at_once_and_noted_with_its_name() {
    let set = in_round(None);
    let machines = vec![failed(&set, 2, 0), failed(&set, 3, 0)];
    let steps = steps(&planned(&snapshot(set, machines)));
    assert_eq!(steps[0], [notes("k7f;0-3", "1;4;2026-06-01T12:00:00Z")]);
    assert_eq!(steps[1].len(), 2);
}

#[test]
fn the_failure_of_a_replacement_waits_and_says_until_when() {
    let set = in_round(Some(&format!("2;2;{}", ago(30))));
    let machines = vec![failed(&set, 2, 5), failed(&set, 3, 5)];
    let snapshot = snapshot(set, machines);
    let plan = planned(&snapshot);
    assert_eq!(steps(&plan), Vec::<Vec<String>>::new());
    assert_eq!(plan.wake, Some("2026-06-01T12:00:15Z".parse().unwrap()), "twenty seconds after the failure");
    let wait = plan.waits.iter().find(|wait| wait.reason == "CreationBackoff").unwrap();
    assert!(wait.message.contains("3 times in a row") && wait.message.contains("at 2026-06-01T12:00:15Z"), "{wait:?}");
    let status = status_of(&snapshot).unwrap();
    let conditions = status["machineSetCondition"].as_array().unwrap();
    let condition = conditions.iter().find(|it| it["type"] == "ReplicaFailure").unwrap();
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("CreationBackoff"), &json!(wait.message)));
}

#[test]
fn after_the_pause_the_whole_round_goes_once() {
    let set = in_round(Some(&format!("2;2;{}", ago(60))));
    let machines = vec![failed(&set, 2, 20), failed(&set, 3, 5)];
    let steps = steps(&planned(&snapshot(set, machines)));
    assert_eq!(steps[0], [notes("k7f;0-2", "3;4;2026-06-01T12:00:00Z")]);
    assert_eq!(steps[1].len(), 1, "the other one failed later");
    // It is of an earlier round now: no other one begins.
    let mut set = in_round(Some("3;4;2026-06-01T12:00:00Z"));
    let ledger = set.metadata.annotations.as_mut().and_then(|all| all.get_mut("nodewright.dev/ledger")).unwrap();
    *ledger = "k7f;0-2".to_owned();
    let machines = vec![failed(&set, 3, 5)];
    let steps = self::steps(&planned(&snapshot(set, machines)));
    assert_eq!(steps[0], [notes("k7f;0-3", "3;4;2026-06-01T12:00:00Z")]);
}

#[test]
fn a_scale_down_takes_failed_machines_that_wait() {
    let mut set = in_round(Some(&format!("5;2;{}", ago(1))));
    set.spec.replicas = 1;
    let machines = vec![failed(&set, 2, 0), member(&set, 3).phase("Pending").build()];
    let failed = name(&machines[0]).to_owned();
    let steps = steps(&planned(&snapshot(set, machines)));
    assert_eq!(steps[1], [format!("delete {failed}")]);
}

#[test]
fn new_machines_have_the_time_that_has_grown_and_keep_it() {
    let set = in_round(Some(&format!("1;2;{}", ago(30))));
    let timeouts = CreationTimeouts { longest: SignedDuration::from_hours(2), ..CreationTimeouts::default() };
    let mut snapshot = snapshot(set, vec![]);
    assert_eq!(created(&snapshot)["metadata"]["annotations"][TIMEOUT], Value::Null, "by default it does not grow");
    snapshot.settings.fleet.creation_timeouts = timeouts;
    let new = created(&snapshot);
    assert_eq!(new["metadata"]["annotations"][TIMEOUT], "40m0s");
    // The template changes, and later nothing grows any more.
    let mut set = in_round(None);
    set.spec.template.spec.max_evict_retries = Some(5);
    let member = member(&set, 2).annotation(TIMEOUT, "40m0s").build();
    let plan = planned(&self::snapshot(set, vec![member]));
    let update = steps(&plan).into_iter().flatten().find(|step| step.starts_with("apply")).unwrap();
    assert!(update.contains("40m0s"), "{update}");
}

const TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";

fn created(snapshot: &Snapshot) -> Value {
    let plan = planned(snapshot);
    let body = plan.steps().find_map(|planned| match &planned.step {
        Step::Create { body, .. } => Some(body.clone()),
        _ => None,
    });
    serde_json::to_value(body.unwrap()).unwrap()
}

#[test]
fn the_time_grows_over_rounds_that_take_longer_than_a_series_is_remembered() {
    let timeouts = CreationTimeouts { longest: SignedDuration::from_hours(2), ..CreationTimeouts::default() };
    let (mut round, mut lasted, mut grown) = (None, 20 * 60, vec![]);
    for number in 0..5_u32 {
        // The Machine of this round fails now. The round began when its timeout did.
        let mut set = in_round(round.as_deref());
        set.spec.replicas = 1;
        let index = 2 + number as usize;
        *set.metadata.annotations.as_mut().unwrap().get_mut("nodewright.dev/ledger").unwrap() =
            format!("k7f;0-{}", index - 1);
        let mut machine = failed(&set, index, 700);
        if number > 0 {
            let all = machine.metadata.annotations.get_or_insert_default();
            all.insert(TIMEOUT.to_owned(), format!("{lasted}s"));
        }
        let mut before = snapshot(set, vec![machine]);
        before.settings.fleet.creation_timeouts = timeouts;
        let noted = steps(&planned(&before))[0][0].clone();
        let begun =
            noted.split(r#"creation-backoff":""#).nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        let mut after = in_round(Some(&begun));
        after.spec.replicas = 1;
        let mut after = snapshot(after, vec![]);
        after.settings.fleet.creation_timeouts = timeouts;
        let timeout = created(&after)["metadata"]["annotations"][TIMEOUT].as_str().unwrap().to_owned();
        let next: nodewright_api::GoDuration = timeout.parse().unwrap();
        lasted = next.to_std().as_secs();
        grown.push(timeout);
        // Now is the end of the next round.
        let (rounds, rest) = begun.split_once(';').unwrap();
        let first = rest.split(';').next().unwrap();
        round = Some(format!("{rounds};{first};{}", ago(i64::try_from(lasted).unwrap() + 700)));
    }
    assert_eq!(grown, ["40m0s", "1h20m0s", "2h0m0s", "2h0m0s", "2h0m0s"]);
}
