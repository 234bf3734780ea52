//! The stages after the VM is gone: the Node is deleted.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{annotations, conditions, finalizers, labels, operations};
use nodewright_runtime::{
    cache::Lookup,
    finalizers as finalizer,
    object::{has_finalizer, is_deleting, label, name},
    plan::Step,
    scoped_watch::ScopedWatch,
};

use super::super::{
    claim::Vm,
    health,
    partial_plan::PartialPlan,
    provider::{Provider, VmStatus},
    scope::Scope,
    snapshot::node_named,
};
use crate::{
    machine::memory::Note,
    shared::{
        TARGET,
        node::Node,
        ownership::{node_name, vm_id},
        patch,
    },
};

/// A process that has been connected to a cluster for less than this has just lost that connection.
const CONNECTION_LOST: SignedDuration = SignedDuration::from_secs(1);
/// How long after its start a manager waits for the list of Nodes: a forced deletion at its end, an overdue one at its beginning.
const TARGET_LISTED: SignedDuration = SignedDuration::from_secs(30);
/// How long after its start a manager waits until a Node without a VM is no longer ready. Kubernetes notices that its kubelet is
/// silent after 40 to 50 s by default.
const KUBELET_SILENT: SignedDuration = SignedDuration::from_mins(2);
pub(in super::super) const LISTING_NODES: &str = "ListingNodes";
pub(in super::super) const LOOKING_FOR_NODE: &str = "LookingForNode";
pub(in super::super) const NODES_UNLISTED: &str =
    "the target cluster has yet to list its nodes: is its API server reachable?";
/// How often in a row a forced deletion may fail to delete the Node before it ends without.
const REFUSALS: u32 = 3;

pub(in super::super) fn node_deleted(scope: &Scope<'_>) -> PartialPlan {
    if let Some(node) = &scope.snapshot.node {
        return delete(scope, node).noting(Note::NodeDeleted);
    }
    match of_missing_vm(scope) {
        Some(node) => delete_once_silent(scope, node),
        None => delete_unseen(scope),
    }
}

/// The Node of a VM that was gone before its owner could be proven, as after a take-over from machine-controller-manager in the
/// middle of a deletion. The proof is that the provider knows no VM of the id that the Node and only this Machine bear, and that a
/// controller has linked both, by two of three marks: its finalizer on the Node, the Machine's name, and the condition with which
/// a drain begins. machine-controller-manager writes the name some seconds after the Node joined, and takes its finalizer off
/// before it deletes the Node.
fn of_missing_vm<'a>(scope: &Scope<'a>) -> Option<&'a Node> {
    let (machine, claim) = (scope.machine, &scope.snapshot.claim);
    let node = claim.node.as_deref().filter(|_| claim.vm == Vm::Unproven && claim.conflicting.is_empty())?;
    let named = label(node, labels::MACHINE_NAME);
    let marks = [has_finalizer(node, finalizers::NODE), named.is_some(), node.is_terminating()];
    let is_linked = marks.into_iter().filter(|mark| *mark).count() > 1
        && named.is_none_or(|named| named == name(machine))
        && node.provider_id() == vm_id(machine);
    let provider = Provider::of(scope, scope.snapshot.class.as_ref().ok()?);
    let is_missing = matches!(provider.vm_status(), Some(VmStatus::NotFound(_)));
    Some(node).filter(|_| is_linked && is_missing)
}

/// Deletes a Node whose VM the provider does not know, once its kubelet is silent. A Node that stays ready speaks against the
/// provider's answer, and is left.
fn delete_once_silent(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    if is_deleting(node) || health::not_ready_since(node).is_some() {
        return delete(scope, node);
    }
    let Some(due) = scope.pause_end(scope.context.leader_since, KUBELET_SILENT) else { return PartialPlan::over() };
    let message =
        format!("the provider knows no VM of node {}, which is ready: it is left if it still is at {due}", name(node));
    let progress = (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_DELETED);
    PartialPlan::blocked(scope, progress, "NodeReady", &message).waking_at(due)
}

fn delete(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    if ends_without_target(scope) {
        return PartialPlan::over();
    }
    if let Some(left) = left_to_lifecycle(scope, node) {
        return left;
    }
    if !is_deleting(node) {
        return PartialPlan::step("its VM is gone", Step::delete(TARGET, node));
    }
    let remove = Step::edit(TARGET, node, finalizer::remove(&node.metadata, finalizers::NODE));
    // Other finalizers on the Node are not waited for.
    PartialPlan { is_over: remove.is_none(), ..PartialPlan::step("its VM is gone", remove) }
}

/// The Node of a VM that others have deleted goes by the brake of [`node_lifecycle`](crate::node_lifecycle), which limits how many do. The
/// mark lets it go without a Machine, so that the replacement does not wait for it. Our finalizer goes now: if nobody deletes the Node,
/// a user can.
///
/// `None` if that controller would not delete it: it is ready, or another Machine may have it, as one of the same name that is made again.
fn left_to_lifecycle(scope: &Scope<'_>, node: &Node) -> Option<PartialPlan> {
    let is_left = scope.initializes_nodes() && scope.snapshot.is_node_left && scope.snapshot.ledger_entry().is_some();
    if !is_left || node.is_ready() || is_deleting(node) {
        return None;
    }
    let id = node.provider_id()?.to_owned();
    let mut patch = patch::annotate(&node.metadata, &[(annotations::VM_MISSING, id)].into());
    patch.0.extend(finalizer::remove(&node.metadata, finalizers::NODE).0);
    let mark = Step::edit(TARGET, node, patch);
    Some(PartialPlan { is_over: mark.is_none(), ..PartialPlan::step("others have deleted its VM", mark) })
}

/// Whether a forced deletion ends although the Node stays: the target cluster does not answer, or has refused several times.
pub(super) fn ends_without_target(scope: &Scope<'_>) -> bool {
    let context = scope.context;
    let is_away = context.now.duration_since(context.connected_since) < CONNECTION_LOST;
    let fails = context.failure.is_some_and(|failure| failure.key.cluster == TARGET);
    let attempt = context.attempt;
    scope.machine.is_force_deletion() && attempt > 0 && (is_away || fails && attempt >= REFUSALS)
}

/// A VM may have a Node that this process's cache does not show yet. No controller would delete that Node later, so the API
/// server is asked, except by a forced deletion, or if this process has just deleted the Node.
fn delete_unseen(scope: &Scope<'_>) -> PartialPlan {
    let (machine, snapshot) = (scope.machine, scope.snapshot);
    if !snapshot.nodes_listed {
        return unlisted(scope);
    }
    let asks = scope.settings.has_target && !machine.is_force_deletion();
    let is_ours = snapshot.claim.is_settled();
    let Some(name) = node_name(machine).filter(|_| asks && is_ours) else { return PartialPlan::over() };
    // The VM was gone before its Node: no other Node of it can have come since.
    if scope.context.noted_since(&Note::NodeDeleted).is_some() {
        return PartialPlan::over().noting(Note::NodeDeleted);
    }
    let part = match &snapshot.unseen_node {
        Lookup::Missing => PartialPlan::over(),
        Lookup::Found(node) => delete(scope, node),
        _ => PartialPlan::waiting(LOOKING_FOR_NODE, "the API server is asked whether there is a node of the machine"),
    };
    part.scoped_watch(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}

/// Until when the process waits for the first list of the Nodes where it can do without.
pub(super) fn listing_deadline(scope: &Scope<'_>) -> Timestamp {
    let since = scope.context.leader_since;
    since.checked_add(TARGET_LISTED).unwrap_or(since)
}

/// The VM is gone, and the Nodes are not listed yet. A forced deletion waits a little for the list, others wait for it.
fn unlisted(scope: &Scope<'_>) -> PartialPlan {
    let due = Some(listing_deadline(scope)).filter(|_| scope.machine.is_force_deletion());
    if vm_id(scope.machine).is_none() || due.is_some_and(|due| due <= scope.now()) {
        return PartialPlan::over();
    }
    let message = "the VM is gone; its node is deleted once the target cluster has listed its nodes";
    PartialPlan::waiting(LISTING_NODES, message).waking_at(due)
}
