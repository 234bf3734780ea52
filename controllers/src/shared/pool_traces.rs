//! The traces of the rollouts of MachineConfigPools: which spans they are, by what a pool has stored. The MachineConfigPool controller
//! records those of the rollout and of its Nodes, and the one of drains what a Node does meanwhile.

use std::borrow::Cow;

use jiff::Timestamp;
use nodewright_api::{
    annotations,
    machine_config::MachineConfigPool,
    stored::{Claim, DISRUPTIONS, Disruptions, POOL_ROLLOUT, PoolRollout},
};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::{
    object::{Kind, name, uid},
    plan::Plan,
};

use super::{disruption::node_state::given, node::Node};

/// A rollout, and its span.
pub(crate) struct RolloutTrace {
    pub(crate) record: PoolRollout,
    /// The request that it follows from, or itself.
    pub(crate) parent: TraceContext,
    pub(crate) context: TraceContext,
}

impl RolloutTrace {
    /// The rollout that a pool has stored, if its trace can be read.
    pub(crate) fn of(pool: &MachineConfigPool) -> Option<Self> {
        Self::new(pool, POOL_ROLLOUT.of(pool)?)
    }

    /// The rollout of this record.
    pub(crate) fn new(pool: &MachineConfigPool, record: PoolRollout) -> Option<Self> {
        let parent = TraceContext::read(&record.traceparent)?;
        let context = parent.at(span_id(&seed(pool, &record.target, record.since)));
        Some(Self { record, parent, context })
    }

    /// The rollout of the present target, while it lasts.
    pub(crate) fn in_progress(pool: &MachineConfigPool) -> Option<Self> {
        let target = pool.spec.configuration.name.as_deref();
        Self::of(pool).filter(|trace| trace.record.ended.is_none() && target == Some(trace.record.target.as_str()))
    }

    /// The span of the update of a Node by this claim, if it is one for this rollout.
    pub(crate) fn node(&self, claim: &Claim) -> Option<TraceContext> {
        let seed = format!("{}/{}/{}/node update", claim.uid, claim.target, claim.since);
        (claim.target == self.record.target).then(|| self.context.at(span_id(&seed)))
    }

    /// When the update by this claim began: a claim may be older than the target that it is for now.
    pub(crate) fn began(&self, claim: &Claim) -> Timestamp {
        claim.since.max(self.record.since)
    }
}

/// What the id of the span of a rollout is made of.
pub(crate) fn seed(pool: &MachineConfigPool, target: &str, since: Timestamp) -> String {
    format!("{}/{target}/{since}/pool rollout", uid(pool))
}

/// The span of the request that made the present generation of an object.
pub(crate) fn change<K: Kind>(object: &K) -> TraceContext {
    let meta = object.meta();
    let chosen = TraceContext::from_annotation(meta.annotations.as_ref(), annotations::TRACEPARENT);
    TraceContext::of_change(uid(object), meta.generation.unwrap_or_default(), chosen)
}

/// Has a plan belong to the request that made the present generation of an object, until its status has observed that.
pub(crate) fn follow_change<K: Kind, E, N>(object: &K, observed: Option<i64>, plan: &mut Plan<E, N>) {
    (plan.traceparent, plan.extends_trace) = (Some(change(object)), observed != object.meta().generation);
}

/// The update of a Node that a pool has claimed and given its target: its span, and when it began.
pub(crate) fn node_update(pool: &MachineConfigPool, node: &Node) -> Option<(TraceContext, Timestamp)> {
    let trace = RolloutTrace::in_progress(pool)?;
    claimed(&trace, DISRUPTIONS.of(pool).as_ref(), node)
}

/// The same, with what is known of the rollout and of the claims.
pub(crate) fn claimed(
    trace: &RolloutTrace,
    claims: Option<&Disruptions>,
    node: &Node,
) -> Option<(TraceContext, Timestamp)> {
    let is_used = |claim: &&Claim| claim.uid == uid(node) && given(node) > claim.given;
    let claim = claims?.0.get(name(node)).filter(is_used)?;
    Some((trace.node(claim)?, trace.began(claim)))
}

/// A part of the update of a Node, below its span.
pub(crate) fn part(
    what: impl Into<Cow<'static, str>>,
    node: &Node,
    parent: TraceContext,
    period: (Timestamp, Timestamp),
) -> SpanRecord {
    let what = what.into();
    let context = parent.at(span_id(&format!("{}/{what}", parent.span_id)));
    SpanRecord { attributes: of_node(name(node), uid(node)), ..SpanRecord::at(what, context, parent, period) }
}

/// The attributes of a Node.
pub(crate) fn of_node(name: &str, uid: &str) -> Vec<(&'static str, String)> {
    vec![("k8s.node.name", name.to_owned()), ("k8s.node.uid", uid.to_owned())]
}
