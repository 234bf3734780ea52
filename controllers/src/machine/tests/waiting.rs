use nodewright_api::conditions::machine::WAITING;

use super::*;
use crate::{
    machine::MachineController,
    machine::memory::{Context, Plan},
    shared::CONTROL,
};

/// Checks for every plan of these tests that its waits show in the Machine's status once they have lasted for a minute: in a
/// condition or in the phase.
pub(super) fn is_reported_after_a_while(fixture: &Fixture, planned: &Snapshot, plan: &Plan) {
    let since = fixture.now - SignedDuration::from_mins(1);
    let waits: Vec<_> = plan.waits.iter().map(|wait| Waiting::new(wait.reason, since)).collect();
    let context = Context { waits: &waits, failure: None, status_written: None, ..fixture.moment() };
    let mut snapshot = planned.clone();
    // A plan that writes another status tells the wait with the next one.
    for _ in 0..3 {
        let plan = MachineController::plan(&context, &snapshot);
        let said = json!(snapshot.machine.status).to_string();
        if plan.waits.is_empty() || plan.waits.iter().any(|wait| said.contains(&format!("{:?}", wait.reason))) {
            return;
        }
        let own = ObjectRef::of(CONTROL, snapshot.machine.as_ref());
        let Some(step) = plan.steps().map(|planned| &planned.step).find(|step| step.key() == Some(&own)) else { break };
        // What changes anything but the status is no plan that only waits.
        let Step::Apply(apply) = step else { return };
        let Some(status) = apply.fragment().get("status").cloned() else { return };
        let mut machine = json!(snapshot.machine);
        machine["status"] = status;
        snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
    }
    let reasons: Vec<_> = plan.waits.iter().map(|wait| wait.reason).collect();
    panic!("{reasons:?} shows nowhere in the status: {}", json!(snapshot.machine.status));
}

fn condition(plan: &Plan) -> Option<Value> {
    let conditions = status_of(plan)["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == WAITING)
}

/// A Machine whose Node has not come, and that has waited for this for so many seconds.
fn joining(machine: MachineBuilder, seconds: i64) -> Fixture {
    let mut fixture = fixture(machine);
    fixture.waits = vec![Waiting::new("Joining", fixture.now - SignedDuration::from_secs(seconds))];
    fixture
}

fn reported(reason: &str, message: &str) -> MachineBuilder {
    let reported =
        json!([{"type": WAITING, "status": "True", "reason": reason, "message": message, "lastTransitionTime": NOW}]);
    linked("Pending").created("2026-06-01T11:50:00Z").with("/status/conditions", reported)
}

#[test]
fn a_wait_shows_in_the_status_once_it_has_lasted_and_is_not_written_again() {
    let pending = || linked("Pending").created("2026-06-01T11:50:00Z");
    let young = joining(pending(), 29).plan();
    assert!(young.is_idle());
    assert_eq!(young.wake, Some(at("2026-06-01T12:00:01Z")));
    let message = "there is no node with providerID p:///1; without a healthy node it fails at 2026-06-01T12:10:00Z";
    let shown = condition(&joining(pending(), 30).plan()).unwrap();
    assert_eq!(
        (&shown["status"], &shown["reason"], &shown["message"]),
        (&json!("True"), &json!("Joining"), &json!(message))
    );
    assert!(joining(reported("Joining", message), 90).plan().is_idle());
}

#[test]
fn another_text_follows_after_a_pause() {
    let mut changed = joining(reported("Joining", "node n is not ready"), 90);
    assert!(condition(&changed.plan()).unwrap()["message"].as_str().unwrap().contains("there is no node"));
    changed.status_written = Some(changed.now - SignedDuration::from_secs(29));
    let plan = changed.plan();
    assert_eq!((plan.is_idle(), plan.wake), (true, Some(at("2026-06-01T12:00:01Z"))));
}

#[test]
fn the_condition_goes_with_the_wait() {
    let ready = conditions(READY)["status"]["conditions"][0].clone();
    let waited = json!({"type": WAITING, "status": "True", "reason": "ReportAwaited", "message": ""});
    let running = linked("Running").with("/status/conditions", json!([ready, waited]));
    assert_eq!(condition(&fixture(running).node(synced(READY)).plan()), None);
    let joined = joining(reported("Joining", ""), 90).node(synced(READY)).plan();
    assert_eq!((status_of(&joined)["currentStatus"]["phase"].clone(), condition(&joined)), (json!("Running"), None));
}

#[test]
fn a_call_that_waits_for_its_turn_is_distinguished_from_one_that_is_not_answered() {
    let mut fixture = fixture(machine("m")).running(Verb::Create);
    let wait = |fixture: &Fixture| (fixture.plan().waits[0].reason, fixture.plan().waits[0].message.clone());
    assert!(wait(&fixture).1.contains("--*-concurrency"));
    let call = fixture.call(Verb::Create);
    assert!(!fixture.outcomes.started(&call, fixture.now));
    let (reason, text) = wait(&fixture);
    assert_eq!(reason, "CallingProvider");
    assert!(text.starts_with("the provider has not answered a call yet") && !text.contains("2026"), "{text}");
}

/// Two managers without leader election: one waits for an answer, the other has none to wait for.
#[test]
fn the_wait_of_another_manager_stays_in_the_status_as_long_as_its_call_may_last() {
    let reported = |seconds_ago: i64| {
        let since = (at(NOW) - SignedDuration::from_secs(seconds_ago)).to_string();
        let waited = json!([{"type": WAITING, "status": "True", "reason": "CallingProvider", "message": "",
            "lastTransitionTime": since}]);
        linked("Running").with("/status/conditions", json!([conditions(READY)["status"]["conditions"][0], waited[0]]))
    };
    let removes = |seconds_ago: i64| {
        let plan = fixture(reported(seconds_ago)).node(synced(READY)).plan();
        plan.steps().any(|planned| planned.why.contains("what the machine waits for"))
    };
    assert!(!removes(20));
    assert!(removes(31), "no call lasts for so long");
}

#[test]
fn a_call_that_lasts_is_looked_at_and_reported_though_nothing_else_happens() {
    let mut fixture = fixture(machine("m"));
    let half_a_minute = fixture.now + SignedDuration::from_secs(30);
    assert_eq!((fixture.steps(), fixture.plan().wake), (vec!["call Status".to_owned()], Some(half_a_minute)));
    fixture = fixture.running(Verb::Status);
    fixture.now = half_a_minute;
    assert_eq!(condition(&fixture.plan()).unwrap()["reason"], "CallingProvider");
}

#[test]
fn a_process_that_starts_keeps_what_was_reported_until_it_knows_better() {
    let mut new = fixture(reported("Joining", "node n is not ready"));
    new.since = new.now - SignedDuration::from_secs(20);
    assert_eq!((new.plan().is_idle(), new.plan().wake), (true, Some(at("2026-06-01T12:00:10Z"))));
    new.since = new.now - SignedDuration::from_secs(30);
    let shown = condition(&new.plan()).unwrap();
    assert_eq!(shown["lastTransitionTime"], NOW, "since it was reported first");
    assert!(shown["message"].as_str().unwrap().contains("there is no node"));
}

/// The API server takes `"status": {}` for `null`, and refuses it.
#[test]
fn a_status_of_which_nothing_would_be_left_is_not_written() {
    let waited = json!([{"type": WAITING, "status": "True", "reason": "CallingProvider", "message": ""}]);
    let fixture =
        fixture(machine("m").with("/status/conditions", waited)).answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(fixture.steps(), ["call Create"]);
}

#[test]
fn a_wait_that_another_condition_names_is_not_reported_twice() {
    let mut failed = fixture(linked("Failed"));
    failed.waits = vec![Waiting::new("Failed", failed.since)];
    assert!(failed.plan().is_idle());
}
