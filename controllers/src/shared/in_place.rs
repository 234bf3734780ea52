//! An update in place, as a Node and its Machine show it: the labels and the condition are machine-controller-manager's.
//!
//! The Node is a candidate; it is selected, by the deployment or by a user; it is drained; the program on the Node is permitted to update
//! it, does so, and says what became of it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{
    Machine, MachinePhase, Taint, annotations, conditions, labels,
    reasons::node as reasons,
    stored::{CORDONED, UPDATE_BEGAN},
    taints,
};
use nodewright_runtime::{
    annotations as annotation_patch,
    object::{annotation, label},
};
use serde_json::{Value, json};

use super::{
    node::{self, Node},
    patch,
};

/// How far the update of a Node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// It is not to be updated.
    #[default]
    None,
    Candidate,
    /// It is being drained.
    Selected,
    /// It is drained, and the program on it may not know yet.
    Drained,
    /// The program on it may update it.
    Ready,
    Successful,
    Failed,
}

impl Progress {
    pub(crate) fn of(node: &Node) -> Self {
        if label(node, labels::CANDIDATE_FOR_UPDATE).is_none() {
            return Self::None;
        }
        if label(node, labels::SELECTED_FOR_UPDATE).is_none() {
            return Self::Candidate;
        }
        let permitted = [reasons::READY_FOR_UPDATE, reasons::UPDATE_SUCCESSFUL, reasons::UPDATE_FAILED];
        match (reason(node), label(node, labels::UPDATE_RESULT)) {
            // An answer from before the program was asked is one about an earlier update.
            (Some(reason), Some(labels::UPDATE_SUCCESSFUL)) if permitted.contains(&reason) => Self::Successful,
            (Some(reason), Some(labels::UPDATE_FAILED)) if permitted.contains(&reason) => Self::Failed,
            (Some(reasons::READY_FOR_UPDATE), _) => Self::Ready,
            (Some(reasons::DRAIN_SUCCESSFUL), _) => Self::Drained,
            _ => Self::Selected,
        }
    }

    /// Whether the program on the Node may have begun, so that nobody can take the update back.
    pub(crate) fn is_permitted(self) -> bool {
        self >= Self::Drained
    }
}

/// Whether the update of a Machine can no longer be taken back.
pub(crate) fn is_begun(machine: &Machine, node: &Node) -> bool {
    *machine.phase() == MachinePhase::InPlaceUpdating || Progress::of(node).is_permitted()
}

/// Whether the Node shows that its update has succeeded, so that its Machine may move to the set of its new template.
pub(crate) fn is_updated(node: &Node) -> bool {
    Progress::of(node) == Progress::Successful && reason(node) == Some(reasons::UPDATE_SUCCESSFUL)
}

/// Whether a Machine is moving to the set of its new template, which may not count it yet.
pub(crate) fn is_moving(machine: &Machine) -> bool {
    label(machine, labels::UPDATE_RESULT) == Some(labels::UPDATE_SUCCESSFUL)
}

/// What such a Node waits for.
pub(crate) const AWAITED_COMPONENTS: &str = "waits until its critical components are ready: the program that updates it then removes \
     the taint node.gardener.cloud/critical-components-not-ready";

/// Whether a Node that was updated takes no Pods yet: its critical components are not ready.
pub(crate) fn awaits_components(node: &Node) -> bool {
    let is_due = |taint: &Taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY;
    reason(node).is_some() && node.taints().iter().any(is_due)
}

/// What of a Node changes in the course of its update.
pub(crate) fn gist(node: &Node) -> (Progress, Option<String>, bool) {
    (Progress::of(node), reason(node).map(str::to_owned), awaits_components(node))
}

pub(crate) fn reason(node: &Node) -> Option<&str> {
    node.condition(conditions::node::IN_PLACE_UPDATE)?.reason.as_deref()
}

/// When the drain of a selected Node began, if it did: here, or under machine-controller-manager, whichever was the last.
pub(crate) fn drained_since(node: &Node) -> Option<Timestamp> {
    UPDATE_BEGAN.of(node).max(since(node, reasons::SELECTED_FOR_UPDATE))
}

/// Since when the condition of a Node has a reason, if it has that.
pub(crate) fn since(node: &Node, reason: &str) -> Option<Timestamp> {
    let condition = node.condition(conditions::node::IN_PLACE_UPDATE)?;
    let time = condition.last_transition_time.as_ref().filter(|_| condition.reason.as_deref() == Some(reason));
    time.map(|time| time.0)
}

fn has_begun(node: &Node) -> bool {
    node.is_cordoned() && UPDATE_BEGAN.of(node).is_some()
}

/// Whether the drain of a Node for its update has yet to begin.
pub(crate) fn awaits_begin(node: &Node) -> bool {
    match Progress::of(node) {
        Progress::Candidate => true,
        Progress::Selected => !has_begun(node),
        _ => false,
    }
}

/// The operations that begin the drain of a Node that is or becomes selected: no Pod may start on it, and what is left of an earlier
/// update goes. Empty once it has begun.
pub(crate) fn begin(node: &Node, now: Timestamp) -> Vec<PatchOperation> {
    let is_closed = node.is_cordoned();
    let known = drained_since(node);
    let mut operations = Vec::new();
    if !is_closed {
        operations.push(patch::set(&["spec", "unschedulable"], true.into()));
    }
    if !has_begun(node) {
        // machine-controller-manager says that the Node is selected before it makes it unschedulable.
        let was_closed = known.is_none() && is_closed;
        let is_cordoned_here = !was_closed;
        // The time on an open Node is that of an earlier update.
        let began = known.filter(|_| is_closed).unwrap_or(now);
        let began = Timestamp::from_second(began.as_second()).unwrap_or(now);
        let wanted = [CORDONED.written(&is_cordoned_here), UPDATE_BEGAN.written(&began)];
        operations.extend(patch::annotate(&node.metadata, &wanted.into()).0);
    }
    operations.extend(forget_answer(node));
    operations
}

/// Whether a Node has an answer, which [`forget_answer`] removes.
pub(crate) fn has_answer(node: &Node) -> bool {
    label(node, labels::UPDATE_RESULT).is_some() || annotation(node, annotations::UPDATE_FAILED_REASON).is_some()
}

/// Whether a Node has marks of a drain that began here, which [`reopen`] removes.
pub(crate) fn has_marks_of_begin(node: &Node) -> bool {
    UPDATE_BEGAN.read(node).is_some()
}

/// The operations that remove the answer to an earlier question from a Node whose program is not asked yet.
pub(crate) fn forget_answer(node: &Node) -> Vec<PatchOperation> {
    let meta = &node.metadata;
    let mut operations = annotation_patch::set_label(meta, labels::UPDATE_RESULT, None).0;
    operations.extend(patch::unannotate(meta, [annotations::UPDATE_FAILED_REASON]));
    operations
}

/// The operations that open a Node that is no longer selected to Pods again, if it was closed here. One that
/// machine-controller-manager has updated is open, or was closed by a user since.
pub(crate) fn reopen(node: &Node) -> Vec<PatchOperation> {
    if !has_marks_of_begin(node) {
        return vec![];
    }
    let is_ours = CORDONED.of(node) == Some(true);
    let mut operations =
        if is_ours && reason(node) != Some(reasons::UPDATE_SUCCESSFUL) { node::uncordon(node) } else { vec![] };
    operations.extend(patch::unannotate(&node.metadata, [annotations::CORDONED, annotations::UPDATE_BEGAN]));
    operations
}

/// The operations that set labels to [`labels::UPDATE_LABEL_VALUE`] that a Node lacks.
pub(crate) fn add_labels(node: &Node, keys: &[&str]) -> Vec<PatchOperation> {
    let meta = &node.metadata;
    if meta.labels.is_none() {
        let all: BTreeMap<_, _> = keys.iter().map(|key| (*key, labels::UPDATE_LABEL_VALUE)).collect();
        return vec![
            patch::test(&["metadata", "labels"], Value::Null),
            patch::set(&["metadata", "labels"], json!(all)),
        ];
    }
    let missing = keys.iter().filter(|key| label(node, key).is_none());
    missing.flat_map(|key| annotation_patch::set_label(meta, key, Some(labels::UPDATE_LABEL_VALUE)).0).collect()
}

/// The operations that take the labels of an update from a Node, and what it was closed to Pods with.
pub(crate) fn end(node: &Node) -> Vec<PatchOperation> {
    let meta = &node.metadata;
    let keys = [labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE, labels::UPDATE_RESULT];
    let mut operations: Vec<_> = keys.iter().flat_map(|key| annotation_patch::set_label(meta, key, None).0).collect();
    // One without a mark was closed by machine-controller-manager, if it was selected.
    let is_ours = CORDONED.of(node).unwrap_or_else(|| is_drained_by_mcm(node));
    if is_ours {
        operations.extend(node::uncordon(node));
    }
    let ours = [annotations::CORDONED, annotations::UPDATE_BEGAN, annotations::UPDATE_FAILED_REASON];
    operations.extend(patch::unannotate(meta, ours));
    operations
}

fn is_drained_by_mcm(node: &Node) -> bool {
    let drains = reason(node).is_some_and(|reason| reason != reasons::CANDIDATE_FOR_UPDATE);
    label(node, labels::SELECTED_FOR_UPDATE).is_some() && drains
}

/// The operations after a successful update, with those of [`end`]: no Pod starts on the Node before its critical components do, as
/// after its creation.
pub(crate) fn finish(node: &Node, keeps_marks: bool) -> Vec<PatchOperation> {
    let mut all = node.taints().to_vec();
    all.retain(|taint| keeps_marks || !is_prefer_no_schedule(taint));
    if !all.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY) {
        let (key, effect) = (taints::CRITICAL_COMPONENTS_NOT_READY.to_owned(), "NoSchedule".to_owned());
        all.push(Taint { key, value: None, effect, time_added: None });
    }
    let mut operations = end(node);
    operations.extend(node::set_taints(node, &all));
    operations
}

pub(crate) fn is_prefer_no_schedule(taint: &Taint) -> bool {
    taint.key == taints::PREFER_NO_SCHEDULE && taint.effect == "PreferNoSchedule"
}

/// The patch that reports in the status of a Node how far its update is. It fails if the Node is no longer selected.
pub(crate) fn report(node: &Node, reason: &str, message: String, now: Timestamp) -> Patch {
    let condition = NodeCondition {
        type_: conditions::node::IN_PLACE_UPDATE.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
        last_heartbeat_time: Some(Time(now)),
    };
    let mut operations = node::set_condition(node, &condition);
    if let Some(value) = label(node, labels::SELECTED_FOR_UPDATE).filter(|_| !operations.is_empty()) {
        operations.insert(0, patch::test(&["metadata", "labels", labels::SELECTED_FOR_UPDATE], value.into()));
    }
    Patch(operations)
}
