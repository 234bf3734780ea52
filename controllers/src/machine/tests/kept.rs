//! What a failed machine says that users keep.

use nodewright_api::{annotations, conditions::machine::WAITING};
use std::collections::BTreeMap;

use super::*;

/// A Machine that failed 40 seconds ago.
fn failed_machine() -> MachineBuilder {
    linked("Failed").with("/status/currentStatus/lastUpdateTime", "2026-06-01T11:59:20Z")
}

/// It is known since then as one that is kept.
fn kept_for(machine: MachineBuilder, seconds: i64) -> Fixture {
    let mut fixture = fixture(machine);
    fixture.waits = vec![Waiting::new("Preserved", fixture.now - SignedDuration::from_secs(seconds))];
    fixture
}

#[test]
fn a_failed_machine_that_users_keep_says_so_and_until_when() {
    let asked = || failed_machine().annotation(annotations::PRESERVE, "now");
    let new = fixture(asked()).set(machine_set("set", 1, None)).plan();
    let message = "the failed machine is kept for diagnosis until 2026-06-05T11:59:20Z (annotation \
                   node.machine.sapcloud.io/preserve), and replaced then";
    assert_eq!(
        new.events.iter().map(|event| (event.reason, &*event.message)).collect::<Vec<_>>(),
        [("Preserved", message)]
    );
    assert_eq!(new.wake, Some(at("2026-06-01T12:00:30Z")), "the status says it with the other waits");
    let mut lasting = kept_for(asked(), 30).set(machine_set("set", 1, None));
    lasting.notes = new.notes.after(BTreeMap::new(), lasting.now);
    let plan = lasting.plan();
    let status = status_of(&plan);
    let waiting =
        status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == WAITING).unwrap();
    assert_eq!((&waiting["reason"], &waiting["message"]), (&json!("Preserved"), &json!(message)));
    assert_eq!(status["currentStatus"]["lastUpdateTime"], "2026-06-01T11:59:20Z", "else it would be kept longer");
    assert!(plan.events.is_empty(), "it was told");
    let mut told = kept_for(asked().with("/status", status.clone()), 90).set(machine_set("set", 1, None));
    told.now += SignedDuration::from_hours(1);
    assert!(told.plan().is_idle() && told.plan().events.is_empty(), "the same text, also by another process");
    told.now = at("2026-06-05T11:59:20Z");
    assert_eq!(told.plan().waits[0].reason, "Failed", "its time is over");
}

#[test]
fn the_expiry_of_a_preservation_comes_first_and_what_is_not_asked_for_is_not_told() {
    let expiry = failed_machine().annotation(annotations::PRESERVE, "now").preserved_until("2026-06-02T00:00:00Z");
    let text = fixture(expiry).plan().events[0].message.clone();
    assert!(text.contains("until 2026-06-02T00:00:00Z (status.currentStatus.preserveExpiryTime)"), "{text}");
    assert!(text.ends_with("; it has no set, so that it stays until somebody deletes it"), "{text}");
    let own = failed_machine().annotation(annotations::PRESERVE, "now").with("/spec/machinePreserveTimeout", "2h");
    assert!(fixture(own).plan().events[0].message.contains("until 2026-06-01T13:59:20Z"));
    let others = [failed_machine(), failed_machine().annotation(annotations::PRESERVE, "false")];
    for plan in others.map(|machine| fixture(machine).plan()) {
        assert_eq!((plan.waits[0].reason, plan.events.len()), ("Failed", 0));
        assert!(plan.waits[0].message.contains("that has no machine set"), "{}", plan.waits[0].message);
    }
    let running = linked("Running").annotation(annotations::PRESERVE, "now");
    assert!(fixture(running).node(synced(READY)).plan().events.iter().all(|event| event.reason != "Preserved"));
}
