//! What a Node says about its configuration, as machine-config-operator reads it.

use nodewright_api::{
    Taint, annotations,
    conditions::node::READY,
    machine_config::{
        CURRENT_CONFIG, CURRENT_IMAGE, DEGRADED, DESIRED_CONFIG, DESIRED_DRAIN, DESIRED_IMAGE, DONE, DrainVerb,
        LAST_APPLIED_DRAIN, REASON, STATE, UNRECONCILABLE,
    },
    stored::CONFIG_GIVEN,
    taints,
};
use nodewright_runtime::object::{annotation, is_deleting};

use crate::shared::{
    in_place::{Progress, is_prefer_no_schedule},
    node::Node,
    node_agent::asked,
};

/// The longest reason of a Node in a message, in bytes.
pub(crate) const LONGEST_REASON: usize = 300;

fn non_empty<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    annotation(node, key).filter(|value| !value.is_empty())
}

pub(crate) fn current(node: &Node) -> Option<&str> {
    non_empty(node, CURRENT_CONFIG)
}

/// The configuration that a Node is to run; empty if there is none.
pub(crate) fn desired(node: &Node) -> &str {
    non_empty(node, DESIRED_CONFIG).unwrap_or_default()
}

pub(crate) fn state(node: &Node) -> &str {
    non_empty(node, STATE).unwrap_or_default()
}

pub(crate) fn reason(node: &Node) -> &str {
    non_empty(node, REASON).unwrap_or("it gives no reason")
}

/// How often it was given a configuration.
pub(crate) fn given(node: &Node) -> u32 {
    CONFIG_GIVEN.of(node).unwrap_or_default()
}

/// Whether its agent waits for a drain.
pub(crate) fn is_drained(node: &Node) -> bool {
    asked(node).and_then(DrainVerb::of) == Some(DrainVerb::Drain)
}

/// Whether a program on the Node applies configurations: one has run there.
pub(crate) fn has_agent(node: &Node) -> bool {
    current(node).is_some()
}

/// Whether Pods can run on the Node: a condition that is missing counts as good.
pub(crate) fn is_ready(node: &Node) -> bool {
    let is = |kind: &str, good: &str| node.condition(kind).is_none_or(|condition| condition.status == good);
    is("Ready", "True") && is("DiskPressure", "False") && is("NetworkUnavailable", "False") && !node.is_cordoned()
}

/// Whether it runs what it is to run.
pub(crate) fn is_done(node: &Node) -> bool {
    current(node).is_some()
        && current(node) == non_empty(node, DESIRED_CONFIG)
        && non_empty(node, CURRENT_IMAGE) == non_empty(node, DESIRED_IMAGE)
        && state(node) == DONE
}

/// Whether its agent could not apply what the Node is to run.
pub(crate) fn is_failing(node: &Node) -> bool {
    current(node) != non_empty(node, DESIRED_CONFIG) && is_degraded(node)
}

/// Whether its agent reports a failure: of an update, or that the Node is no longer what it was updated to.
pub(crate) fn is_degraded(node: &Node) -> bool {
    [DEGRADED, UNRECONCILABLE].contains(&state(node))
}

/// Whether it counts as unavailable. One that fails does not by itself: it can be given another configuration.
pub(crate) fn is_unavailable(node: &Node) -> bool {
    !is_ready(node) || has_agent(node) && !is_done(node) && !is_failing(node)
}

/// Whether it runs this configuration.
pub(crate) fn is_updated(node: &Node, target: &str) -> bool {
    is_done(node) && desired(node) == target && non_empty(node, DESIRED_IMAGE).is_none()
}

/// Whether it has yet to be given this configuration.
pub(crate) fn is_behind(node: &Node, target: &str) -> bool {
    desired(node) != target || non_empty(node, DESIRED_IMAGE).is_some()
}

/// Whether its VM is about to go: it is being deleted, or a rollout of machines replaces it.
pub(crate) fn is_leaving(node: &Node) -> bool {
    is_deleting(node) || node.is_terminating() || is_being_replaced(node)
}

/// Whether a rollout of machines replaces its VM. It does not where it updates the Node in place.
pub(crate) fn is_being_replaced(node: &Node) -> bool {
    node.taints().iter().any(is_prefer_no_schedule) && Progress::of(node) == Progress::None
}

pub(crate) fn is_update_taint(taint: &Taint) -> bool {
    taint.key == taints::UPDATE_IN_PROGRESS
}

/// What of a Node a pool looks at.
pub(crate) fn gist(node: &Node) -> impl PartialEq + use<> {
    let keys = [
        CURRENT_CONFIG,
        DESIRED_CONFIG,
        STATE,
        REASON,
        DESIRED_DRAIN,
        LAST_APPLIED_DRAIN,
        CURRENT_IMAGE,
        DESIRED_IMAGE,
        annotations::CONFIG_DRAIN,
        annotations::CONFIG_GIVEN,
        annotations::UPDATE_PRIORITY,
    ];
    let annotations = keys.map(|key| annotation(node, key).map(str::to_owned));
    let meta = &node.metadata;
    let ready = node.condition(READY).map(|condition| condition.status.clone());
    let health = (is_ready(node), node.is_cordoned(), ready);
    (
        meta.uid.clone(),
        meta.labels.clone(),
        annotations,
        health,
        is_leaving(node),
        node.taints().iter().any(is_update_taint),
    )
}
