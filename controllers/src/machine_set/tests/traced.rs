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
    assert_eq!(decided(set.clone(), vec![member(&set, 0).build()]), ["deletion decision: Scale, true, 0"]);
    let failed = member(&set, 0).phase("Failed").build();
    let one = asked(machine_set("set", 1, Some(LEDGER)));
    assert_eq!(decided(one, vec![failed]), ["deletion decision: Failed, false, 0"]);
    let untraced = machine_set("set", 0, Some(LEDGER));
    assert_eq!(decided(untraced, vec![member(&set, 0).build()]), ["deletion decision: Scale, false, 0"]);
    let retired = asked(machine_set("set", 0, Some("k7f;0")));
    assert_eq!(decided(retired, vec![member(&set, 0).build()]), ["deletion decision: Retired, false, 0"]);
}

#[test]
fn a_machine_knows_the_decision_before_it_is_deleted() {
    let set = asked(machine_set("set", 0, Some(LEDGER)));
    let machine = member(&set, 0).build();
    let plan = traced(&snapshot(set.clone(), vec![machine.clone()]));
    let here = plan.spans[0].context.at(plan.spans[0].id).to_string();
    let Step::Edit { patch, .. } = &plan.stages[1][0].step else { panic!("{plan}") };
    assert!(json!(patch).to_string().contains(&here), "{patch:?}");
    assert!(matches!(plan.stages[2][0].step, Step::Delete(_)), "{plan}");
    // The patch was made, and the deletion was not.
    let mut noted = machine.clone();
    noted.metadata.annotations.get_or_insert_default().insert(annotations::DELETION_TRACEPARENT.to_owned(), here);
    let again = traced(&snapshot(set.clone(), vec![noted]));
    assert_eq!(
        (again.stages.len(), decisions(&again).as_slice()),
        (2, &["deletion decision: Scale, true, 0".to_owned()][..])
    );
    // It failed: perhaps the Machine cannot be changed.
    let outcomes = Outcomes::default();
    let at = Context::new(NOW.parse().unwrap(), &outcomes);
    let failed = self::plan(&Context { attempt: 1, traces: true, ..at }, &snapshot(set, vec![machine]));
    assert_eq!(
        (failed.stages.len(), decisions(&failed).as_slice()),
        (2, &["deletion decision: Scale, true, 1".to_owned()][..])
    );
}
