//! The plan of a Node that a rollout may replace or update: its marks.

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use nodewright_api::{Taint, labels, taints};
use nodewright_runtime::{
    effect::Never,
    plan::{Plan, Step},
};

use super::{
    decision::{Decision, Selection, decide, lacks_annotations},
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    disruption::{
        AWAITING_BUDGET, DisruptionDecision, SharedBudget,
        patches::{HAS_ROOM, claimed, used},
    },
    in_place::{self, Progress, is_prefer_no_schedule},
    node::{Node, add_taint, autoscaler_marks, mark_for_autoscaler, remove_taint},
    patch,
};

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<Never> {
    let (node, mut plan) = (snapshot.node.as_ref(), Plan::idle());
    let (operations, why) = match decide(snapshot) {
        Decision::Leave => return plan,
        Decision::Mark => {
            ([taken_back(node), mark(node, snapshot.annotates)].concat(), "a rollout replaces the machine of the node")
        }
        Decision::MarkForUpdate(selection) => {
            let operations = [mark(node, snapshot.annotates), asked(node, &selection, now)].concat();
            share(snapshot, selection, now, &mut plan);
            (operations, "a rollout updates the machine of the node in place")
        }
        Decision::FinishUpdate { is_former, is_preserved } => {
            let marks = if is_former { vec![] } else { unannotate(node, is_preserved) };
            ([in_place::finish(node, is_former), marks].concat(), "the machine of the node was updated in place")
        }
        Decision::Annotate { annotates } => {
            let operations = [taken_back(node), untaint(node), annotate(node, annotates)].concat();
            (operations, "a rollout replaces other machines of the node's deployment")
        }
        Decision::Unmark { is_preserved } => {
            // Without a deployment another program updates the Node.
            let update = if snapshot.owners.is_some() { taken_back(node) } else { vec![] };
            let operations = [update, unmark(node, is_preserved)].concat();
            (operations, "no rollout replaces the machine of the node")
        }
    };
    plan.beside(why, Step::edit(TARGET, node, Patch(operations)));
    plan
}

fn mark(node: &Node, annotates: bool) -> Vec<PatchOperation> {
    let taint = || Taint {
        key: taints::PREFER_NO_SCHEDULE.to_owned(),
        value: Some(taints::PREFER_NO_SCHEDULE_VALUE.to_owned()),
        effect: "PreferNoSchedule".to_owned(),
        time_added: None,
    };
    [add_taint(node, is_prefer_no_schedule, taint), annotate(node, annotates)].concat()
}

fn unmark(node: &Node, is_preserved: bool) -> Vec<PatchOperation> {
    [untaint(node), unannotate(node, is_preserved)].concat()
}

fn untaint(node: &Node) -> Vec<PatchOperation> {
    remove_taint(node, is_prefer_no_schedule)
}

/// Keeps the cluster autoscaler from removing the Node, unless somebody else does.
fn annotate(node: &Node, annotates: bool) -> Vec<PatchOperation> {
    if lacks_annotations(node, annotates) { mark_for_autoscaler(node) } else { vec![] }
}

fn unannotate(node: &Node, is_preserved: bool) -> Vec<PatchOperation> {
    patch::unannotate(&node.metadata, autoscaler_marks(node).filter(|_| !is_preserved))
}

/// The Node is a candidate, and, if it is selected, is closed to Pods in the same write. One that a user selects is closed by the
/// Machine controller.
fn asked(node: &Node, selection: &Selection, now: Timestamp) -> Vec<PatchOperation> {
    let keys: &[&str] = if selection.is_now() {
        &[labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE]
    } else {
        &[labels::CANDIDATE_FOR_UPDATE]
    };
    let mut operations = in_place::add_labels(node, keys);
    if selection.is_now() {
        operations.extend(in_place::begin(node, now));
        if matches!(selection, Selection::Shared(_)) {
            operations.extend(used(node));
        }
    } else if Progress::of(node) <= Progress::Candidate {
        operations.extend(in_place::forget_answer(node));
        operations.extend(in_place::reopen(node));
    }
    operations
}

/// What the pool of the Node writes, or the plan waits for, before a Node is selected that shares its disruption budget.
fn share(snapshot: &Snapshot, selection: Selection, now: Timestamp, plan: &mut Plan<Never>) {
    let (Some(shared), Selection::Shared(decision)) = (&snapshot.shared_budget, selection) else { return };
    plan.scoped_watch(SharedBudget::watch());
    match decision {
        DisruptionDecision::Granted => {}
        DisruptionDecision::Claim(claim) => {
            plan.then(HAS_ROOM, claimed(shared, &snapshot.node, claim, now));
        }
        DisruptionDecision::Wait(text) => {
            plan.wait(AWAITING_BUDGET, text);
        }
    }
}

/// The update of the Node is taken back, unless the program on it may have been permitted to begin meanwhile.
fn taken_back(node: &Node) -> Vec<PatchOperation> {
    if Progress::of(node) == Progress::None {
        return in_place::reopen(node);
    }
    let mut operations = in_place::end(node);
    operations.insert(0, patch::same_version(&node.metadata));
    operations
}
