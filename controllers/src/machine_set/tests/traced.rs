//! The spans of a set's decisions.

use super::*;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced(snapshot: &Snapshot) -> Plan {
    let outcomes = Outcomes::default();
    let at = Context::new("2026-06-01T09:00:00Z".parse().unwrap(), &outcomes);
    plan(&Context { now: NOW.parse().unwrap(), traces: true, ..at }, snapshot)
}

fn asked(mut set: MachineSet) -> MachineSet {
    set.metadata.annotations.get_or_insert_default().insert(annotations::TRACEPARENT.to_owned(), TRACE.to_owned());
    set
}

/// Each decision: its name, its reason, whether it belongs to the trace of the request, and how many links it has.
fn decisions(plan: &Plan) -> Vec<String> {
    let text = |span: &nodewright_observability::trace::SpanRecord| {
        let reason = span.attributes.iter().find(|(key, _)| *key == "nodewright.decision.reason").unwrap();
        let asked = TRACE.contains(&span.context.trace_id.to_string());
        format!("{}: {}, {asked}, {}", span.name, reason.1, span.links.len())
    };
    plan.spans.iter().map(text).collect()
}

#[test]
fn a_creation_hangs_below_the_decision() {
    let mut set = asked(machine_set("set", 1, Some(LEDGER)));
    set.metadata.generation = Some(2);
    let plan = traced(&snapshot(set.clone(), vec![]));
    assert_eq!(decisions(&plan), ["creation decision: Scale, true, 0"]);
    let Step::Create { body, .. } = &plan.stages[0][0].step else { panic!() };
    let here = plan.spans[0].context.at(plan.spans[0].id).to_string();
    assert_eq!(body["metadata"]["annotations"][annotations::TRACEPARENT], json!(here));
    assert!(planned(&snapshot(set.clone(), vec![])).spans.is_empty(), "spans are not exported");
    let mut rollout = snapshot(set.clone(), vec![]);
    rollout.population.deployment = 3;
    assert_eq!(decisions(&traced(&rollout)), ["creation decision: Rollout, true, 0"]);
    let leaving = member(&set, 0).deleting().build();
    let mut observed = asked(machine_set("set", 1, Some("k7f;0")));
    observed.metadata.generation = None;
    let replaces = snapshot(observed, vec![leaving]);
    assert_eq!(decisions(&traced(&replaces)), ["creation decision: Replacement, true, 1"]);
    assert!(traced(&snapshot(machine_set("set", 1, Some(LEDGER)), vec![])).spans.is_empty(), "nobody asked");
}

#[test]
fn a_deletion_has_its_reason_in_the_trace_that_it_follows_from() {
    let decided = |set: MachineSet, machines: Vec<Machine>| decisions(&traced(&snapshot(set, machines)));
    let set = asked(machine_set("set", 0, Some(LEDGER)));
    assert_eq!(decided(set.clone(), vec![member(&set, 0).build()]), ["deletion decision: Scale, true, 1"]);
    let failed = member(&set, 0).phase("Failed").build();
    let one = asked(machine_set("set", 1, Some(LEDGER)));
    assert_eq!(decided(one, vec![failed]), ["deletion decision: Failed, false, 0"]);
    let untraced = machine_set("set", 0, Some(LEDGER));
    assert_eq!(decided(untraced, vec![member(&set, 0).build()]), ["deletion decision: Scale, false, 0"]);
    let retired = asked(machine_set("set", 0, Some("k7f;0")));
    assert_eq!(decided(retired, vec![member(&set, 0).build()]), ["deletion decision: Retired, false, 0"]);
}
