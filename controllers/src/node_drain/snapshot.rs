//! The snapshot of a Node whose agent asks for a drain or an uncordon.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    annotations::{DRAIN_POLICY, DRAIN_POLICY_FORCE},
    machine_config::{DrainVerb, MachineConfigPool},
    stored::{CONFIG_DRAIN, ConfigDrain, DRAIN_TIMEOUT},
};
use nodewright_runtime::{
    cache::{Index, Stores},
    object::{ObjectRef, annotation, is_deleting},
};

use crate::shared::{TARGET, drain::View, machine_config::Operator, node::Node, node_agent, pools::Membership};

/// The Nodes whose agents ask for something, under one key.
pub(super) const ASKING_NODES: Index<Node> =
    Index { name: "asks-for-drain", key_of: |node| asked(node).map(|_| String::new()) };

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) node: Arc<Node>,
    pub(super) request: Option<Request>,
    /// The pool whose rollout has the trace, for spans.
    pub(super) pool: Option<Arc<MachineConfigPool>>,
}

/// What an agent asks for, and what that depends on.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The text by which it asks.
    pub(super) asked: String,
    /// `None` if it is no request that agents make.
    pub(super) verb: Option<DrainVerb>,
    pub(super) operator: Operator,
    /// What a drain sees, once the Node is cordoned for it.
    pub(super) view: View,
    /// After which time the drain is forced, if it ever is.
    pub(super) timeout: Option<SignedDuration>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, traces: bool) -> Option<Self> {
        let node = stores.of::<Node>(TARGET).get(key)?;
        let request = asked(&node).map(|asked| Request::take(stores, &node, asked));
        let pool = match request.as_ref().filter(|_| traces).map(|_| Membership::of(stores, &node)) {
            Some(Membership::Of(pool)) => Some(pool),
            _ => None,
        };
        Some(Self { node, request, pool })
    }
}

impl Request {
    fn take(stores: &Stores, node: &Node, asked: &str) -> Self {
        let verb = DrainVerb::of(asked);
        let is_drained = verb == Some(DrainVerb::Drain) && node.is_cordoned() && recorded_since(node, asked).is_some();
        Self {
            asked: asked.to_owned(),
            verb,
            operator: Operator::of(stores),
            view: if is_drained { View::take(stores, TARGET, node) } else { View::empty(TARGET) },
            timeout: if is_drained { timeout(stores, node) } else { None },
        }
    }
}

/// What the agent of a Node asks for, and has no answer to yet. Nothing while the Node goes, or its Machine: that
/// drain has priority, and no configuration is of use to it.
pub(super) fn asked(node: &Node) -> Option<&str> {
    node_agent::asked(node).filter(|_| !is_deleting(node) && !node.is_terminating())
}

/// When the drain for this request began, by the record on the Node.
pub(super) fn recorded_since(node: &Node, asked: &str) -> Option<Timestamp> {
    match CONFIG_DRAIN.of(node)? {
        ConfigDrain::Cordoned(drain) | ConfigDrain::Closed(drain) => (drain.asked == asked).then_some(drain.since),
        ConfigDrain::Open => None,
    }
}

/// After which time the pool of a Node has its drain forced, if it does.
fn timeout(stores: &Stores, node: &Node) -> Option<SignedDuration> {
    // A pool that cannot be read may be the one of the Node.
    if !stores.of::<MachineConfigPool>(TARGET).unreadable().is_empty() {
        return None;
    }
    let Membership::Of(pool) = Membership::of(stores, node) else { return None };
    let is_forced = annotation(pool.as_ref(), DRAIN_POLICY) == Some(DRAIN_POLICY_FORCE);
    // For other programs 0 is no timeout at all.
    let timeout = DRAIN_TIMEOUT.of(pool.as_ref()).filter(|timeout| is_forced && timeout.nanoseconds() > 0)?;
    Some(timeout.to_signed())
}
