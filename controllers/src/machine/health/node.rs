//! What a Node says about its health.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{annotations, conditions, taints};
use nodewright_runtime::{
    clip::clip_to,
    object::{annotation, is_deleting},
};

use crate::{
    machine::{
        scope::{REPORTS_WITHIN, Scope},
        update,
    },
    shared::node::Node,
};

/// The most bytes of what a Node says about its health: more follows it in statuses.
const LONGEST_CAUSE: usize = 512;

/// Whether the Machine has a healthy Node: then nothing that went wrong before matters.
pub(in super::super) fn has_healthy_node(scope: &Scope<'_>) -> bool {
    scope.snapshot.node.as_deref().is_some_and(|node| !is_deleting(node) && unhealthy_because(scope, node).is_none())
}

/// Why a Node is unhealthy, if it is. After an update in place that has failed it counts as that.
pub(in super::super) fn unhealthy_because(scope: &Scope<'_>, node: &Node) -> Option<String> {
    if let Some(failure) = update::failure(scope.machine, node) {
        return Some(failure);
    }
    if ready(node).is_none() {
        return Some("the node has no condition Ready yet".to_owned());
    }
    unhealthy_conditions(scope, node).next().map(|condition| {
        let reason = condition.reason.as_deref().unwrap_or_default();
        clip_to(LONGEST_CAUSE, format!("node condition {} is {} ({reason})", condition.type_, condition.status))
    })
}

/// The conditions that make a Node unhealthy. As in machine-controller-manager, Ready has to be True, and each listed condition
/// that the Node has has to be False; Unknown counts as unhealthy.
pub(super) fn unhealthy_conditions<'a>(
    scope: &'a Scope<'_>,
    node: &'a Node,
) -> impl Iterator<Item = &'a NodeCondition> {
    let is_listed = |condition: &&NodeCondition| match &scope.machine.spec.node_conditions {
        Some(list) => list.split(',').any(|kind| kind.trim() == condition.type_),
        None => scope.settings.node_conditions.contains(&condition.type_),
    };
    let not_ready = ready(node).into_iter().filter(|ready| ready.status != "True");
    not_ready.chain(node.conditions().iter().filter(is_listed).filter(|condition| condition.status != "False"))
}

pub(in super::super) fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let ready = ready(node)?;
    ready.last_transition_time.as_ref().filter(|_| ready.status != "True").map(|time| time.0)
}

/// Since when the Pods of a Node cannot be ended: it is not ready, or its file system is read-only.
pub(in super::super) fn unable_since(node: &Node) -> Option<Timestamp> {
    let read_only = node.conditions().iter().find(|condition| condition.type_ == conditions::node::READONLY_FILESYSTEM);
    let read_only = read_only.filter(|condition| condition.status != "False");
    let read_only = read_only.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0));
    not_ready_since(node).into_iter().chain(read_only).min()
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.condition(conditions::node::READY)
}

/// Whether somebody keeps the Machine of a Node from being replaced for its health, as while the Node is repaired.
pub(super) fn disables_health_timeout(node: &Node) -> bool {
    annotation(node, annotations::DISABLE_HEALTH_TIMEOUT) == Some(annotations::DISABLE_HEALTH_TIMEOUT_VALUE)
}

pub(super) fn lacks_critical_components(node: &Node) -> bool {
    let all = node.taints();
    all.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY && taint.effect == "NoSchedule")
}

pub(super) fn is_reported_since(node: &Node, since: Timestamp) -> bool {
    let ready = ready(node);
    let reported = ready.and_then(|it| it.last_heartbeat_time.as_ref().max(it.last_transition_time.as_ref()));
    reported.is_some_and(|reported| reported.0 > since)
}

/// Ignore an unhealthy report that is older than our connection, until this time; `None` once it is over.
pub(super) fn ignored_until(node: &Node, connected: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = connected.checked_add(REPORTS_WITHIN).ok()?;
    (now < until && !is_reported_since(node, connected)).then_some(until)
}
