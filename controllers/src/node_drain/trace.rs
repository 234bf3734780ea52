//! The spans of what happens to a Node between its target and its end, below the update of the Node that its pool has begun.

use nodewright_api::{
    machine_config::{DrainVerb, LAST_APPLIED_DRAIN},
    stored::{CONFIG_DRAIN, ConfigDrain},
};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::object::{annotation, name, uid};

use super::{
    decision::{Decision, Draining},
    memory::{Context, Plan},
    snapshot::Snapshot,
};
use crate::shared::{
    drain::Departure,
    node::Node,
    pool_traces::{node_update, of_node, part},
};

/// Has the plan belong to the update of the Node, and records what ends with it. Without an update there is no span.
pub(super) fn follow(context: &Context<'_>, snapshot: &Snapshot, decision: &Decision, plan: &mut Plan) {
    let node = snapshot.node.as_ref();
    let pool = snapshot.pool.as_deref().filter(|_| context.traces);
    let Some((update, _)) = pool.and_then(|pool| node_update(pool, node)) else { return };
    (plan.traceparent, plan.extends_trace) = (Some(update), true);
    match decision {
        Decision::Drain(draining) => plan.spans.extend(drained(context, node, update, draining)),
        Decision::Uncordon { .. } => plan.spans.extend(configured(context, node, update)),
        Decision::Cordon(_) | Decision::Reject => {}
    }
}

fn drained(context: &Context<'_>, node: &Node, update: TraceContext, draining: &Draining) -> Vec<SpanRecord> {
    let drain = part("drain", node, update, (draining.since, context.now));
    let place = drain.context.at(drain.id);
    let mut spans: Vec<_> =
        draining.progress.departures.iter().map(|pod| departure(context, node, place, pod)).collect();
    spans.extend(draining.progress.end.map(|_| drain));
    spans
}

fn departure(context: &Context<'_>, node: &Node, drain: TraceContext, departure: &Departure) -> SpanRecord {
    let place = drain.at(span_id(&format!("{}/{}", drain.span_id, departure.pod.uid)));
    let attributes = of_node_and(node, departure.attributes());
    let span = SpanRecord::at(departure.title(), place, drain, (departure.since, context.now));
    SpanRecord { attributes, error: departure.error(), ..span }
}

fn of_node_and(node: &Node, more: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    of_node(name(node), uid(node)).into_iter().chain(more).collect()
}

/// From the end of the drain, which the record has since then, until the agent asks for the uncordon.
fn configured(context: &Context<'_>, node: &Node, update: TraceContext) -> Option<SpanRecord> {
    let is_drained = annotation(node, LAST_APPLIED_DRAIN).and_then(DrainVerb::of) == Some(DrainVerb::Drain);
    match CONFIG_DRAIN.of(node).filter(|_| is_drained)? {
        ConfigDrain::Cordoned(drain) | ConfigDrain::Closed(drain) => {
            Some(part("configuration", node, update, (drain.since, context.now)))
        }
        ConfigDrain::Open => None,
    }
}
