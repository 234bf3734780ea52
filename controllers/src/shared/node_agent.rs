//! What the agent of a Node says, which applies configurations, and what is recorded of its drain.

use jiff::Timestamp;
use nodewright_api::{
    machine_config::{CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DrainVerb, LAST_APPLIED_DRAIN},
    stored::{CONFIG_DRAIN, ConfigDrain},
};
use nodewright_runtime::object::annotation;

use super::node::Node;

/// What the agent asks for, unless that is done.
///
/// An agent that restarts while it waits for a drain may find that the Node is where it is to be, and ask for the uncordon that was
/// the last thing done: its text says nothing new, but since then a drain has begun.
pub(crate) fn asked(node: &Node) -> Option<&str> {
    let asked = annotation(node, DESIRED_DRAIN).filter(|asked| !asked.is_empty())?;
    let is_reported = annotation(node, LAST_APPLIED_DRAIN) == Some(asked);
    let is_dropped = || DrainVerb::of(asked) == Some(DrainVerb::Uncordon) && has_begun_drain(node);
    (!is_reported || is_dropped()).then_some(asked)
}

/// Whether a drain has begun since the last uncordon.
fn has_begun_drain(node: &Node) -> bool {
    matches!(CONFIG_DRAIN.of(node), Some(ConfigDrain::Cordoned(_) | ConfigDrain::Closed(_)))
}

/// Since when the agent of a drained Node has been applying another configuration, if it has.
pub(crate) fn configured_since(node: &Node) -> Option<Timestamp> {
    let is_moving = annotation(node, CURRENT_CONFIG).is_some_and(|it| annotation(node, DESIRED_CONFIG) != Some(it));
    match CONFIG_DRAIN.of(node).filter(|_| is_moving)? {
        ConfigDrain::Cordoned(drain) | ConfigDrain::Closed(drain) => Some(drain.since),
        ConfigDrain::Open => None,
    }
}

/// Whether a Node that is cordoned was so for its agent: by this controller, or by machine-config-operator, which writes no record.
pub(crate) fn is_cordoned_for_agent(node: &Node) -> bool {
    match CONFIG_DRAIN.of(node) {
        Some(drain) => matches!(drain, ConfigDrain::Cordoned(_)),
        None => annotation(node, LAST_APPLIED_DRAIN).and_then(DrainVerb::of) == Some(DrainVerb::Drain),
    }
}
