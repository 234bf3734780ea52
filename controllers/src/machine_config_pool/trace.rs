//! The spans of the rollout of a pool's target, and of its Nodes. They are recorded once they have ended, by what the pool has stored:
//! its record of the rollout, and its claims. A span ends together with a write of the pool that is made once, so that no other process
//! records it again.

use std::collections::BTreeSet;

use jiff::Timestamp;
use json_patch::Patch;
use nodewright_api::{
    annotations,
    conditions::machine_config_pool::{RENDER_DEGRADED, UPDATED},
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
    stored::{Claim, PoolRollout, RolloutInputs},
};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::{
    clip::{clip, clip_to},
    object::{annotation, name, uid},
    plan::{Notes, Step},
};

use super::{
    memory::{Context, Note, Plan},
    progress::PoolView,
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    conditions::holding,
    disruption::node_state::{LONGEST_REASON, given, is_degraded, is_updated, reason},
    patch,
    pool_traces::{self, RolloutTrace, change},
};

/// The limit of the requests that a rollout links to.
const LINKS: usize = 8;
/// How a rollout has ended, or the update of a Node.
const OUTCOME: &str = "nodewright.rollout.outcome";
const COMPLETED: &str = "Completed";
/// The pool has another target.
const SUPERSEDED: &str = "Superseded";

/// The requests since the last target was chosen, the newest first. Of the first rollout that has a trace only the newest one is known.
fn requests(snapshot: &Snapshot) -> Vec<TraceContext> {
    let (pool, traced) = (snapshot.pool.as_ref(), &snapshot.traced);
    let Some(last) = RolloutTrace::of(pool).map(|trace| trace.record.inputs) else {
        return traced.inputs.iter().take(1).map(|(_, request)| *request).collect();
    };
    let newer = traced.inputs.iter().filter(|(version, _)| *version > last.version).map(|(_, request)| *request);
    let of_pool = (pool.metadata.generation.unwrap_or_default() > last.pool).then(|| change(pool));
    let of_templates = traced.controller_config.filter(|(generation, _)| *generation > last.controller_config);
    let mut requests: Vec<_> = newer.chain(of_pool).chain(of_templates.map(|(_, request)| request)).collect();
    let mut known = BTreeSet::new();
    requests.retain(|request| known.insert(request.span_id.to_string()));
    requests.truncate(LINKS);
    requests
}

/// The record of a rollout that begins now. A target that stays keeps the one that it has.
pub(super) fn record(context: &Context<'_>, snapshot: &Snapshot, target: &str) -> Option<String> {
    let pool = snapshot.pool.as_ref();
    if !is_new(pool, target) {
        return annotation(pool, annotations::POOL_ROLLOUT).map(str::to_owned);
    }
    context.traces.then(|| begin(context, snapshot, target).to_string())
}

/// Whether the pool begins to move to a target. One that was lost from the spec, and is written back, is the same.
fn is_new(pool: &MachineConfigPool, target: &str) -> bool {
    match pool.spec.configuration.name.as_deref().filter(|present| !present.is_empty()) {
        Some(present) => present != target,
        None => RolloutTrace::of(pool).is_none_or(|trace| trace.record.target != target),
    }
}

fn begin(context: &Context<'_>, snapshot: &Snapshot, target: &str) -> PoolRollout {
    let (pool, traced) = (snapshot.pool.as_ref(), &snapshot.traced);
    // As it is read again.
    let since = Timestamp::from_second(context.now.as_second()).unwrap_or(context.now);
    let own = || TraceContext::from_seed(&pool_traces::seed(pool, target, since), true);
    let parent = requests(snapshot).first().copied().unwrap_or_else(own);
    let inputs = RolloutInputs {
        version: traced.inputs.first().map_or(0, |(version, _)| *version),
        // The write of the target makes another one.
        pool: pool.metadata.generation.unwrap_or_default() + 1,
        controller_config: traced.controller_config.map_or(0, |(generation, _)| generation),
    };
    PoolRollout { target: target.to_owned(), since, traceparent: parent.to_string(), inputs, ended: None }
}

/// Has the write of another target belong to its trace: the rendering has ended, and so has the rollout before.
pub(super) fn targeted(context: &Context<'_>, snapshot: &Snapshot, target: &str, plan: &mut Plan) {
    let pool = snapshot.pool.as_ref();
    if !context.traces || !is_new(pool, target) {
        return;
    }
    let Some(next) = RolloutTrace::new(pool, begin(context, snapshot, target)) else { return };
    if let Some(former) = RolloutTrace::in_progress(pool) {
        let claims = snapshot.members.claims.iter().flat_map(|claims| &claims.0);
        let updates = claims.filter_map(|claim| updated(context, snapshot, &former, claim));
        plan.spans.extend(updates);
        let span = rolled_out(pool, &former, context.now, SUPERSEDED);
        plan.spans.push(SpanRecord { links: vec![next.context], ..span });
    }
    // It was wanted for some seconds.
    let since = context.noted_since(&Note::Desired(target.to_owned())).unwrap_or(context.now);
    let place = next.context.at(span_id(&format!("{}/rendering", next.context.span_id)));
    let span = SpanRecord::at("rendering", place, next.parent, (since, context.now));
    let links = requests(snapshot).into_iter().filter(|request| *request != next.parent).collect();
    plan.spans.push(SpanRecord { links, attributes: attributes(pool, target), ..span });
    (plan.traceparent, plan.extends_trace) = (Some(next.context), true);
}

/// Has the plan belong to the rollout that is in progress, and records what has ended of it. `claims`: whether the plan writes those.
pub(super) fn progressed(
    context: &Context<'_>,
    snapshot: &Snapshot,
    progress: &PoolView<'_>,
    claims: bool,
    plan: &mut Plan,
) {
    if !context.traces {
        return;
    }
    let Some(trace) = RolloutTrace::in_progress(&snapshot.pool) else { return };
    (plan.traceparent, plan.extends_trace) = (Some(trace.context), true);
    if claims {
        let after = &progress.rollout.claims.0;
        let is_over = |(node, claim): &(&String, &Claim)| after.get(*node).is_none_or(|kept| kept.uid != claim.uid);
        let before = snapshot.members.claims.iter().flat_map(|claims| &claims.0).filter(is_over);
        plan.spans.extend(before.filter_map(|claim| updated(context, snapshot, &trace, claim)));
    }
}

/// The end of the rollout, with the write that records it: the first time that all Nodes run the target.
pub(super) fn completed(context: &Context<'_>, snapshot: &Snapshot, status: &MachineConfigPoolStatus, plan: &mut Plan) {
    let pool = snapshot.pool.as_ref();
    let trace = RolloutTrace::in_progress(pool).filter(|_| context.traces);
    let Some(trace) = trace.filter(|_| holding(&status.conditions, UPDATED).is_some()) else { return };
    let record = PoolRollout { ended: Some(context.now), ..trace.record.clone() }.to_string();
    let at = ["metadata", "annotations", annotations::POOL_ROLLOUT];
    // Only one process ends it.
    let seen = annotation(pool, annotations::POOL_ROLLOUT).into();
    let patch = Patch(vec![patch::test(&at, seen), patch::set(&at, record.into())]);
    plan.beside("all nodes run the target: its trace ends", Step::edit(TARGET, pool, patch));
    plan.spans.push(rolled_out(pool, &trace, context.now, COMPLETED));
}

/// The pool has begun to say that it cannot have what was asked for: a moment in the trace of the newest request.
pub(super) fn held(context: &Context<'_>, snapshot: &Snapshot, status: &MachineConfigPoolStatus, plan: &mut Plan) {
    let reported =
        |status: &MachineConfigPoolStatus| holding(&status.conditions, RENDER_DEGRADED).map(|it| it.message.clone());
    let before = snapshot.pool.status.as_ref().and_then(reported);
    let Some(why) = reported(status).filter(|why| context.traces && before.as_ref() != Some(why)) else { return };
    let Some(parent) = requests(snapshot).first().copied() else { return };
    let place = parent.at(span_id(&format!("{}/{}/held", uid(snapshot.pool.as_ref()), context.now)));
    let span = SpanRecord::at("rendering", place, parent, (context.now, context.now));
    let target = snapshot.target_name.as_deref().unwrap_or_default();
    plan.spans.push(SpanRecord { error: Some(clip(&why)), attributes: attributes(&snapshot.pool, target), ..span });
}

/// Nodes that have failed since the last plan: the update goes on, as the agent may try again, or the pool has another target.
pub(super) fn failed(context: &Context<'_>, snapshot: &Snapshot, plan: &mut Plan) {
    let trace = RolloutTrace::in_progress(&snapshot.pool).filter(|_| context.traces);
    // Where the notes stay, so does what is known of them.
    let Some(trace) = trace.filter(|_| plan.notes != Notes::Keep) else { return };
    let nodes = &snapshot.members.nodes;
    let all = nodes.iter().filter(|node| is_degraded(node)).count();
    let reported = snapshot.pool.status.as_ref().map_or(0, |status| status.degraded_machine_count);
    // Another process has reported those that the status counts.
    let is_news = i32::try_from(all).is_ok_and(|all| all > reported);
    for node in nodes.iter().filter(|node| is_degraded(node)) {
        let Some((place, since)) = pool_traces::claimed(&trace, snapshot.members.claims.as_ref(), node) else {
            continue;
        };
        let note = Note::Failed(uid(node.as_ref()).to_owned(), given(node));
        if is_news && context.noted_since(&note).is_none() {
            let span = pool_traces::part("failed update", node, place, (since, context.now));
            plan.spans.push(SpanRecord { error: Some(clip_to(LONGEST_REASON, reason(node).to_owned())), ..span });
        }
        plan.notes.add(note);
    }
}

/// The update of a Node, which ends now. One that was not given the target has none.
fn updated(
    context: &Context<'_>,
    snapshot: &Snapshot,
    trace: &RolloutTrace,
    (node_name, claim): (&String, &Claim),
) -> Option<SpanRecord> {
    let place = trace.node(claim)?;
    let mut nodes = snapshot.members.nodes.iter().chain(&snapshot.members.left);
    let node = nodes.find(|node| name(node.as_ref()) == node_name && uid(node.as_ref()) == claim.uid);
    let (outcome, error) = match node {
        None => ("Deleted", None),
        Some(node) if given(node) == claim.given => return None,
        Some(node) if is_updated(node, &claim.target) => (COMPLETED, None),
        Some(node) if is_degraded(node) => ("Failed", Some(clip_to(LONGEST_REASON, reason(node).to_owned()))),
        Some(_) => (SUPERSEDED, None),
    };
    let span = SpanRecord::at("node update", place, trace.context, (trace.began(claim), context.now));
    let mut attributes = attributes(&snapshot.pool, &claim.target);
    attributes.extend(pool_traces::of_node(node_name, &claim.uid));
    attributes.push((OUTCOME, outcome.to_owned()));
    let links = snapshot.traced.machine(node_name).into_iter().collect();
    Some(SpanRecord { error, attributes, links, ..span })
}

fn rolled_out(pool: &MachineConfigPool, trace: &RolloutTrace, now: Timestamp, outcome: &str) -> SpanRecord {
    let mut attributes = attributes(pool, &trace.record.target);
    attributes.push((OUTCOME, outcome.to_owned()));
    let span = SpanRecord::at("pool rollout", trace.context, trace.parent, (trace.record.since, now));
    SpanRecord { attributes, ..span }
}

fn attributes(pool: &MachineConfigPool, target: &str) -> Vec<(&'static str, String)> {
    vec![
        ("nodewright.machine_config_pool.name", name(pool).to_owned()),
        ("nodewright.machine_config.name", target.to_owned()),
    ]
}
