//! What a preservation changes on the Node.

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{Machine, MachinePhase, Taint, annotations, conditions, reasons, stored::PreservedNode, taints};
use nodewright_runtime::object::annotation;

use super::decision::End;
use crate::shared::{
    node::{self, Node},
    patch,
    preservation::preserve_expiry,
};

/// Patches of a Node, empty if it is as it should be: of itself, and of its status. A status may be written with annotations.
#[derive(Default)]
pub(super) struct Marks {
    pub(super) spec: Patch,
    pub(super) status: Patch,
}

impl Marks {
    pub(super) fn is_empty(&self) -> bool {
        self.spec.0.is_empty() && self.status.0.is_empty()
    }
}

/// The marks of the Node of a preserved Machine; of a failed one those that are made before its drain. The condition follows that, and
/// then shows until when it is preserved.
pub(super) fn mark(node: &Node, has_failed: bool, (until, by_set): (Timestamp, bool), now: Timestamp) -> Marks {
    let mut annotations = Vec::new();
    if annotation(node, annotations::SCALE_DOWN_DISABLED) != Some("true") {
        annotations = node::mark_for_autoscaler(node);
    }
    let shown = |is_drained| node::set_condition(node, &condition(until, by_set, is_drained, now));
    if has_failed {
        annotations.extend(taint(node, true));
        let shown = if is_drained(node) { shown(true) } else { vec![] };
        return Marks { spec: Patch(annotations), status: Patch(shown) };
    }
    annotations.extend(shown(false));
    Marks { spec: Patch(opened(node)), status: Patch(annotations) }
}

/// The condition of a Node whose Machine is preserved.
pub(super) fn condition(until: Timestamp, by_set: bool, is_drained: bool, now: Timestamp) -> NodeCondition {
    let reason = if by_set { reasons::node::PRESERVED_BY_MCM } else { reasons::node::PRESERVED_BY_USER };
    let message = PreservedNode { is_drained, until: format!("{until:.0}") }.to_string();
    with_status(true, reason, Some(message), now)
}

/// What becomes of the marks of a Node whose Machine is no longer preserved. The taint of a failed one stays: it is about to be deleted.
/// `was_preserved`: whether the Machine was, so that the Node shows the end even if it has shown nothing yet.
pub(super) fn unmark(node: &Node, has_failed: bool, end: Option<End>, was_preserved: bool, now: Timestamp) -> Marks {
    // During a rollout they are there for that as well, and it removes them.
    let is_rolled = node.taints().iter().any(|taint| taint.key == taints::PREFER_NO_SCHEDULE);
    let ours = node::autoscaler_marks(node).filter(|_| !is_rolled);
    let request = Some(annotations::PRESERVE).filter(|_| end.is_some_and(|end| end.forgets));
    let mut status = patch::unannotate(&node.metadata, ours.chain(request));
    if was_preserved || node.condition(conditions::node::PRESERVED).is_some() {
        let ended = with_status(false, reasons::node::PRESERVATION_STOPPED, None, now);
        status.extend(node::set_condition(node, &ended));
    }
    let spec = if has_failed { vec![] } else { opened(node) };
    Marks { spec: Patch(spec), status: Patch(status) }
}

/// Whether a Node shows that its Machine is preserved.
pub(super) fn is_marked(node: &Node) -> bool {
    node.condition(conditions::node::PRESERVED).is_some_and(|condition| condition.status == "True")
}

/// Lets Pods on a Node again whose Machine works again.
pub(super) fn open(node: &Node) -> Marks {
    Marks { spec: Patch(opened(node)), status: Patch::default() }
}

fn opened(node: &Node) -> Vec<PatchOperation> {
    let taint = taint(node, false);
    // Up to version 0.62, MCM has cordoned a Node that it drained, and has not tainted it.
    let is_cordoned = node.is_cordoned() && is_drained(node) && taint.is_empty();
    if is_cordoned {
        return node::uncordon(node);
    }
    taint
}

fn taint(node: &Node, is_wanted: bool) -> Vec<PatchOperation> {
    let is_ours = |taint: &Taint| taint.key == taints::PRESERVED && taint.effect == "NoSchedule";
    if !is_wanted {
        return node::remove_taint(node, is_ours);
    }
    node::add_taint(node, is_ours, || {
        let (key, effect) = (taints::PRESERVED.to_owned(), "NoSchedule".to_owned());
        Taint { key, value: None, effect, time_added: None }
    })
}

fn with_status(is_true: bool, reason: &str, message: Option<String>, now: Timestamp) -> NodeCondition {
    NodeCondition {
        type_: conditions::node::PRESERVED.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message,
        last_transition_time: Some(Time(now)),
        last_heartbeat_time: Some(Time(now)),
    }
}

fn is_drained(node: &Node) -> bool {
    let condition = node.condition(conditions::node::PRESERVED).and_then(PreservedNode::of);
    condition.is_some_and(|condition| condition.is_drained)
}

/// Whether the Pods have yet to leave the Node of a failed Machine that is preserved.
pub(in super::super) fn needs_drain(machine: &Machine, node: &Node) -> bool {
    *machine.phase() == MachinePhase::Failed && preserve_expiry(machine).is_some() && !is_drained(node)
}
