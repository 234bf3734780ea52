//! The spans of drains, in the trace of a rollout.

use nodewright_observability::trace::TraceContext;

use super::*;
use crate::shared::pool_traces::node_update;

const ROLLOUT: &str = "r1;2026-06-01T11:58:00Z;00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01;1/1/0";

/// A Node that its pool has claimed for the rollout of `r1`, and whose agent asks for a drain.
fn claimed(uid: &str) -> Fixture {
    let mut fixture =
        asking("drain-r1").with_pods(&["a", "b"]).refusing("b").annotated("nodewright.dev/config-given", "1");
    let claims = json!({"n": {"uid": uid, "target": "r1", "given": 0, "since": "2026-06-01T11:59:00Z"}});
    fixture.pool["metadata"]["annotations"] =
        json!({"nodewright.dev/rollout": ROLLOUT, "nodewright.dev/disruptions": claims.to_string()});
    fixture.pool["spec"]["configuration"] = json!({"name": "r1"});
    fixture.traces = true;
    fixture
}

fn place(span: &SpanRecord) -> TraceContext {
    span.context.at(span.id)
}

fn names(spans: &[SpanRecord]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_ref()).collect()
}

#[test]
fn drain_and_configuration_are_parts_of_the_update_of_the_node() {
    let mut fixture = claimed("uid-n");
    let pool: MachineConfigPool = serde_json::from_value(fixture.pool.clone()).unwrap();
    let node: Node = serde_json::from_value(fixture.node.clone()).unwrap();
    let (update, _) = node_update(&pool, &node).unwrap();
    let plan = fixture.plan();
    assert_eq!((plan.traceparent, plan.extends_trace), (Some(update), true), "the requests belong to it");
    fixture.act();
    let begun = fixture.now;
    fixture.now += minutes(1);
    fixture.act();
    fixture.act();
    fixture.now += minutes(3);
    fixture.refused.clear();
    fixture.settle();
    assert_eq!(names(&fixture.spans), ["pod default/a", "pod default/b", "drain"]);
    let drained = fixture.now;
    let [left, held, drain] = <[SpanRecord; 3]>::try_from(std::mem::take(&mut fixture.spans)).unwrap();
    assert_eq!((drain.context, drain.start, drain.end), (update, begun, drained));
    assert_eq!([left.context, held.context], [place(&drain); 2]);
    let removal = ("nodewright.pod.removal", "eviction".to_owned());
    assert!(left.attributes.contains(&removal), "{:?}", left.attributes);
    assert!(held.attributes.iter().any(|(key, _)| *key == "nodewright.pod.blocked_by"), "{:?}", held.attributes);

    // Another process leads when the agent is done.
    fixture.restart();
    fixture.ask("uncordon-r1");
    fixture.now += minutes(5);
    fixture.settle();
    assert_eq!(names(&fixture.spans), ["configuration"]);
    let configuration = &fixture.spans[0];
    assert_eq!((configuration.context, configuration.start, configuration.end), (update, drained, fixture.now));
}

#[test]
fn a_drain_that_no_rollout_has_asked_for_has_no_spans() {
    // Somebody else has the agent move the Node, or there was another Node of the name.
    let mut fixture = claimed("uid-of-another");
    fixture.refused.clear();
    fixture.settle();
    assert_eq!((fixture.spans.len(), fixture.plan().traceparent), (0, None));
    let unused = claimed("uid-n").annotated("nodewright.dev/config-given", "0");
    assert_eq!(unused.plan().traceparent, None, "it has yet to be given the target");
    let mut untraced = claimed("uid-n");
    (untraced.traces, untraced.refused) = (false, BTreeSet::new());
    untraced.settle();
    assert_eq!((untraced.spans.len(), untraced.plan().traceparent), (0, None));
    assert!(untraced.notes.is_empty(), "{:?}", untraced.notes);
}
