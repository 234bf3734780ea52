//! The stages of the Node: it can be read before the drain, and is deleted after its VM.

use jiff::SignedDuration;
use nodewright_api::{conditions, finalizers, operations, reasons::unreadable};
use nodewright_runtime::{
    events::EventKind, finalizers as finalizer, object::is_deleting, plan::Step, scoped_watch::ScopedWatch,
};

use super::{
    super::{
        claim::Vm,
        scope::Scope,
        snapshot::{UnseenNode, node_named},
        stage::Stage,
        status::has_shown_node,
    },
    progress::Progress,
};
use crate::shared::{clusters::TARGET, node::Node, ownership::node_name};

/// A process that has been connected to a cluster for less than this has just lost that connection.
const CONNECTION_LOST: SignedDuration = SignedDuration::from_secs(1);
/// How long after its start a manager waits for the list of Nodes at the end of a forced deletion.
const TARGET_LISTED: SignedDuration = SignedDuration::from_secs(30);
/// How often in a row a forced deletion may fail to delete the Node before it ends without.
const REFUSALS: u32 = 3;

/// It can be seen what runs on the Node. A forced deletion does not wait for that.
pub(in super::super) fn node_readable(scope: &Scope<'_>) -> Stage {
    let text = scope.snapshot.unreadable_node.as_ref().filter(|_| !scope.machine.is_force_deletion());
    let Some(message) = text else { return Stage::over() };
    let (operation, condition) = (operations::INITIATE_DRAIN, conditions::machine::DRAINED);
    let event = scope.event(EventKind::Warning, unreadable::NODE, message.as_str());
    Stage::blocked(scope, &Progress { operation, condition, reason: unreadable::NODE, message }).telling(event)
}

/// The VM has no Node any more.
pub(in super::super) fn node_deleted(scope: &Scope<'_>) -> Stage {
    match &scope.snapshot.node {
        Some(node) => delete(scope, node),
        None => delete_unseen(scope),
    }
}

fn delete(scope: &Scope<'_>, node: &Node) -> Stage {
    if ends_without_target(scope) {
        return Stage::over();
    }
    if !is_deleting(node) {
        return Stage::step("its VM is gone", Step::delete(TARGET, node));
    }
    match finalizer::remove(&node.metadata, finalizers::NODE) {
        Some(remove) => Stage::step("its VM is gone", Step::edit(TARGET, node, remove)),
        // Other finalizers on the Node are not waited for.
        None => Stage::over(),
    }
}

/// Whether a forced deletion ends although the Node stays: the target cluster does not answer, so that a request failed
/// and the watch of the Nodes is broken, or it refused several times to delete the Node.
fn ends_without_target(scope: &Scope<'_>) -> bool {
    let context = scope.context;
    let is_away = context.now.duration_since(context.connected_since) < CONNECTION_LOST;
    let fails = context.failure.is_some_and(|failure| failure.key.cluster == TARGET);
    let attempt = context.attempt;
    scope.machine.is_force_deletion() && attempt > 0 && (is_away || fails && attempt >= REFUSALS)
}

/// A VM may have a Node that this process's cache does not show, because it joined at the last moment, or because the watch
/// is silent and another manager saw it. Nobody would delete that Node later, so the API server is asked. A forced deletion
/// does not ask.
fn delete_unseen(scope: &Scope<'_>) -> Stage {
    let (machine, snapshot) = (scope.machine, scope.snapshot);
    if !snapshot.nodes_listed {
        return nodes_listed(scope);
    }
    let asks = scope.settings.has_target && !machine.is_force_deletion();
    let is_ours = snapshot.claim.vm == Vm::Proven;
    let Some(name) = node_name(machine).filter(|_| asks && is_ours) else { return Stage::over() };
    let stage = match &snapshot.unseen_node {
        UnseenNode::None => Stage::over(),
        UnseenNode::Found(node) => delete(scope, node),
        UnseenNode::Unknown => {
            let message = "the API server is asked whether there is a node of the machine";
            let (operation, condition) = (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_JOINED);
            // If there was a Node, the status says already that it goes.
            if has_shown_node(machine) {
                Stage::waiting("LookingForNode", message)
            } else {
                Stage::blocked(scope, &Progress { operation, condition, reason: "LookingForNode", message })
            }
        }
    };
    stage.looking_at(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}

/// A forced deletion goes on while the Nodes are not listed yet. Only at its end it waits a little for the list.
fn nodes_listed(scope: &Scope<'_>) -> Stage {
    match scope.context.leader_since.checked_add(TARGET_LISTED) {
        Ok(due) if due > scope.now() => {
            let message = format!("the nodes of the target cluster are being listed; not after {due}");
            Stage::waiting("ListingNodes", message).waking_at(due)
        }
        _ => match &scope.snapshot.unseen_node {
            UnseenNode::Found(node) => delete(scope, node),
            UnseenNode::Unknown => Stage::default(),
            UnseenNode::None => Stage::over(),
        },
    }
}
