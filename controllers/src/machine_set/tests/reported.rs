//! The events of a set that creates and deletes machines.

use super::{retired::moves, *};

/// The event of a plan, and how many machines it is about.
fn event(replicas: i32, machines: usize) -> Option<(&'static str, String, usize)> {
    let set = machine_set("set", replicas, Some(LEDGER));
    let machines = (0..machines).map(|at| member(&set, at).build()).collect();
    let snapshot = snapshot(set, machines);
    let (plan, (created, deleted)) = (planned(&snapshot), moves(&snapshot));
    assert!(plan.events.len() <= 1, "one event for all: {:?}", plan.events);
    let event = plan.events.first()?;
    Some((event.reason, event.message.clone(), created + deleted))
}

#[test]
fn one_event_reports_all_machines_of_a_plan() {
    let name = |at| index_name(LEDGER, at);
    let names = |range: std::ops::Range<usize>| range.map(name).collect::<Vec<_>>().join(", ");
    let (first, three, ten) = (name(0), names(0..3), names(0..10));
    let table = [
        (1, 0, Some(("SuccessfulCreate", format!("Created machine {first}"), 1))),
        (3, 0, Some(("SuccessfulCreate", format!("Created machines {three}"), 3))),
        (10, 0, Some(("SuccessfulCreate", format!("Created machines {ten}"), 10))),
        (40, 0, Some(("SuccessfulCreate", format!("Created machines {ten} and 30 more"), 40))),
        (3, 3, None),
    ];
    for (replicas, machines, expected) in table {
        assert_eq!(event(replicas, machines), expected, "{replicas} replicas, {machines} machines");
    }
    // Which machines go is another question.
    for (replicas, machines, ending) in [(39, 40, ""), (0, 10, ""), (28, 40, " and 2 more"), (0, 40, " and 30 more")] {
        let (reason, message, deleted) = event(replicas, machines).unwrap();
        let noun = if deleted == 1 { "Deleted machine set-" } else { "Deleted machines set-" };
        assert_eq!((reason, deleted), ("SuccessfulDelete", machines - usize::try_from(replicas).unwrap()));
        assert!(message.starts_with(noun) && message.ends_with(ending), "{message}");
        assert_eq!(message.matches("set-").count(), deleted.min(10), "{message}");
    }
}
