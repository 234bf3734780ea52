//! The plan of a Node that a rollout may replace or update: its marks.

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use nodewright_api::{Taint, annotations, finalizers, labels, taints};
use nodewright_runtime::{
    effect::Never,
    object::{annotation, has_finalizer, label},
    plan::{Plan, Step},
};

use super::{
    decision::{Decision, decide},
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    disruption::{AWAITING_BUDGET, DisruptionDecision, SharedBudget},
    in_place::{self, Progress, is_prefer_no_schedule},
    node::{Node, add_taint, autoscaler_marks, mark_for_autoscaler, remove_taint},
    ownership::NodeProof,
    patch,
};

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<Never> {
    let (node, mut plan) = (snapshot.node.as_ref(), Plan::idle());
    let (operations, why) = match decide(snapshot) {
        Decision::Leave => return plan,
        Decision::Mark => {
            ([taken_back(node), mark(node, snapshot.annotates)].concat(), "a rollout replaces the machine of the node")
        }
        Decision::MarkForUpdate { selects } => {
            let (selects, used) = claimed(snapshot, selects, now, &mut plan);
            let operations = [mark(node, snapshot.annotates), asked(node, selects, now), used].concat();
            (operations, "a rollout updates the machine of the node in place")
        }
        Decision::FinishUpdate { is_former, is_preserved } => {
            let marks = if is_former { vec![] } else { unannotate(node, is_preserved) };
            ([in_place::finish(node, is_former), marks].concat(), "the machine of the node was updated in place")
        }
        Decision::Annotate => {
            // Our Machine controller writes a new Node first: two writes at once would meet a conflict.
            let is_written = snapshot.proof != NodeProof::Here || has_finalizer(node, finalizers::NODE);
            let annotates = snapshot.annotates && is_written;
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
    if !annotates || annotation(node, annotations::SCALE_DOWN_DISABLED).is_some() {
        return vec![];
    }
    mark_for_autoscaler(node)
}

fn unannotate(node: &Node, is_preserved: bool) -> Vec<PatchOperation> {
    patch::unannotate(&node.metadata, autoscaler_marks(node).filter(|_| !is_preserved))
}

/// The Node is a candidate, and, if it is selected, is closed to Pods in the same write. One that a user selects is closed by the
/// Machine controller.
fn asked(node: &Node, selects: bool, now: Timestamp) -> Vec<PatchOperation> {
    let is_new = selects && label(node, labels::SELECTED_FOR_UPDATE).is_none();
    let keys: &[&str] = if is_new {
        &[labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE]
    } else {
        &[labels::CANDIDATE_FOR_UPDATE]
    };
    let mut operations = in_place::add_labels(node, keys);
    if is_new {
        operations.extend(in_place::begin(node, now));
    } else if Progress::of(node) <= Progress::Candidate {
        operations.extend(in_place::forget_answer(node));
        operations.extend(in_place::reopen(node));
    }
    operations
}

/// Whether the Node is selected now, and the operations by which that uses the claim of its pool. Otherwise the plan claims it, or says
/// what it waits for.
fn claimed(snapshot: &Snapshot, selects: bool, now: Timestamp, plan: &mut Plan<Never>) -> (bool, Vec<PatchOperation>) {
    let node = snapshot.node.as_ref();
    let is_new = selects && label(node, labels::SELECTED_FOR_UPDATE).is_none();
    let Some(shared) = snapshot.shared_budget.as_ref().filter(|_| is_new) else { return (selects, vec![]) };
    if Progress::of(node) == Progress::None {
        // The pool takes back a claim for a Node that does not show that it wants one: it is marked first.
        return (false, vec![]);
    }
    plan.scoped_watch(SharedBudget::watch());
    match shared.update(node, now) {
        DisruptionDecision::Granted(used) => return (true, used),
        DisruptionDecision::Claim(patch) => {
            plan.then("the pool has room for a disruption", Step::edit(TARGET, shared.pool(), patch));
        }
        DisruptionDecision::Wait(text) => {
            plan.wait(AWAITING_BUDGET, text);
        }
    }
    (false, vec![])
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
