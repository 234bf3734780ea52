//! What a Machine that is being deleted decides, stage by stage: drain, volumes, VM, Node, name, end.
//!
//! Each stage is over when it can be seen to be over, so a restart goes on wherever things stand.

mod claim;
mod drain;
mod instance;

use jiff::SignedDuration;
use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions, finalizers, labels, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::EventKind,
    finalizers as finalizer,
    look::Look,
    object::{Cluster, has_finalizer, is_deleting, label},
    plan::{Moment, Plan, Step},
};

use crate::shared::{ledger::LedgerPart, node::Node, ownership::node_name};

use self::{
    claim::claimed,
    drain::{deletion_begun, detached, drained},
    instance::vm_gone,
};
use super::{
    Owner, World,
    calls::{Call, Verb},
    context::{Context, event, lasting_failure},
    ownership::Vm,
    status::{StatusDraft, has_shown_node, own_condition},
    trace,
    world::{UnseenNode, node_named},
};

/// How long after its deletion a Machine waits for its set to retire its name.
const RETIRE_OURSELVES: SignedDuration = SignedDuration::from_mins(1);
/// A cluster with which a process has been in touch for less than this is one that it has lost touch with.
const OUT_OF_TOUCH: SignedDuration = SignedDuration::from_secs(1);
/// How long after its start a manager waits for the Nodes' list at the end of a forced deletion.
const TARGET_LISTED: SignedDuration = SignedDuration::from_secs(30);
/// So many attempts of a forced deletion to remove the Node may fail in a row.
const REFUSALS: u32 = 3;
/// The reason of a stage that does not get on because requests fail.
const REQUEST_FAILED: &str = "RequestFailed";
/// How long a stage may last before it shows in the status.
const WORTH_TELLING: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn plan(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> Plan<Call> {
    let mut plan = Plan::idle();
    let machine = world.machine.as_ref();
    plan.traceparent = Some(trace::current(machine));
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return plan;
    }
    if *machine.phase() != MachinePhase::Terminating {
        let draft = StatusDraft::of(machine, at.now)
            .phase(MachinePhase::Terminating)
            .timeout_active(false)
            .not_preserved()
            .not_held()
            .operation(OperationType::Delete, OperationState::Processing, operations::GET_VM_STATUS, None);
        plan.then("the machine is being deleted", draft.step(machine));
        let text = if world.claim.is_settled() {
            "the node is drained, then the VM is removed"
        } else {
            "the machine is being deleted; only a VM that is proven to be its own is removed"
        };
        plan.event(event(machine, EventKind::Normal, reasons::machine::TERMINATING, text.to_owned()));
        return plan;
    }
    if tell_failure(&mut plan, at, world, context) {
        return plan;
    }
    let stages = [claimed, node_readable, drained, detached, vm_gone, node_gone, name_retired];
    if stages.iter().all(|stage| stage(&mut plan, at, world, context)) {
        let remove = finalizer::remove(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then(
            "nothing is left of the machine",
            remove.and_then(|remove| Step::edit(Cluster::CONTROL, machine, remove)),
        );
        plan.event(event(machine, EventKind::Normal, reasons::machine::TERMINATED, "nothing is left".to_owned()));
        tell_trace(&mut plan, at, world, context);
    }
    plan
}

/// Says on the Machine why its deletion does not get on, where requests fail. Tells whether that is to be written first:
/// beside a request that fails again it would not be. Every other time only: should the status be what is refused, the
/// deletion goes on.
fn tell_failure(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Some(failure) = lasting_failure(at).filter(|_| !at.attempt.is_multiple_of(2)) else { return false };
    let (description, condition) = if deletion_begun(at, world, context) {
        (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_DELETED)
    } else {
        (operations::INITIATE_DRAIN, conditions::machine::DRAINED)
    };
    let (description, message) = (format!("{description}: {failure}"), failure.to_string());
    tell_stage(plan, at, world, &description, condition, REQUEST_FAILED, &message);
    !plan.is_idle()
}

/// What runs on the Node can be seen. Not waited for where the deletion is forced.
fn node_readable(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, _: Context<'_>) -> bool {
    let machine = world.machine.as_ref();
    let Some(text) = world.unreadable_node.as_ref().filter(|_| !machine.is_force_deletion()) else { return true };
    plan.wait(unreadable::NODE, text.clone());
    plan.event(event(machine, EventKind::Warning, unreadable::NODE, text.clone()));
    let condition = conditions::machine::DRAINED;
    tell_stage(plan, at, world, operations::INITIATE_DRAIN, condition, unreadable::NODE, text);
    false
}

/// There is no Node of the VM any more.
fn node_gone(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let node = match &world.node {
        Some(node) => node.as_ref(),
        None => match unseen(plan, at, world, context) {
            UnseenNode::Found(node) => node.as_ref(),
            UnseenNode::Unknown => return false,
            UnseenNode::None => return true,
        },
    };
    if goes_without_target(at, world) {
        return true;
    }
    if !is_deleting(node) {
        plan.then("its VM is gone", Step::delete(Cluster::TARGET, node));
        return false;
    }
    match finalizer::remove(&node.metadata, finalizers::NODE) {
        Some(remove) => {
            plan.then("its VM is gone", Step::edit(Cluster::TARGET, node, remove));
            false
        }
        // What else holds the Node back is not this Machine's affair.
        None => true,
    }
}

/// Whether a forced deletion ends although the Node stays: the target cluster does not answer, so that a request has failed
/// and the watch of the Nodes is broken, or it has refused several times to let the Node go.
fn goes_without_target(at: &Moment<'_, Call>, world: &World) -> bool {
    let is_away = at.now.duration_since(at.in_touch) < OUT_OF_TOUCH;
    let fails = at.failure.is_some_and(|failure| failure.step.key.cluster == Cluster::TARGET);
    world.machine.is_force_deletion() && at.attempt > 0 && (is_away || fails && at.attempt >= REFUSALS)
}

/// A VM may have a Node of which this process's cache has not heard, because it joined in the last moment, or because the
/// watch is silent and another manager saw it; nobody would remove that later. So the API server is asked. Not where the
/// deletion is forced: that waits for nobody.
fn unseen<'a>(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &'a World, context: Context<'_>) -> &'a UnseenNode {
    let machine = world.machine.as_ref();
    if !world.nodes_listed {
        return nodes_unlisted(plan, at, world);
    }
    let asks = context.settings.has_target && !machine.is_force_deletion();
    let is_ours = world.claim.vm == Vm::Proven;
    let Some(name) = node_name(machine).filter(|_| asks && is_ours) else { return &UnseenNode::None };
    plan.look(Look::at::<Node>(Cluster::TARGET, node_named(name)));
    if matches!(world.unseen_node, UnseenNode::Unknown) {
        let text = "the API server is asked whether there is a node of the machine";
        plan.wait("LookingForNode", text);
        // Of a Node that was there it has been told that it goes.
        if !has_shown_node(machine) {
            let (description, condition) = (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_JOINED);
            tell_stage(plan, at, world, description, condition, "LookingForNode", text);
        }
    }
    &world.unseen_node
}

/// A forced deletion goes on while the Nodes have yet to be listed, and waits for them a little at its end.
fn nodes_unlisted<'a>(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &'a World) -> &'a UnseenNode {
    match at.since.checked_add(TARGET_LISTED) {
        Ok(due) if due > at.now => {
            plan.wait("ListingNodes", format!("the nodes of the target cluster are being listed; not after {due}"));
            plan.wake_at(due);
            &UnseenNode::Unknown
        }
        _ => &world.unseen_node,
    }
}

/// The Machine's name will not have a second life.
///
/// The set's controller notes it, for many machines at once. Where that one does not come to it (another controller
/// manager keeps the sets, or the set's spec is not valid) it is noted here: whoever writes the ledger does so under the
/// version that was seen.
fn name_retired(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, _: Context<'_>) -> bool {
    if let Some((reason, text)) = world.unknown_life() {
        let (description, condition) = (operations::INITIATE_NODE_DELETION, conditions::machine::CONFIGURATION_VALID);
        tell_stage(plan, at, world, description, condition, reason, &text);
        plan.wait(reason, text);
        return false;
    }
    let (Owner::Set(set), Some((ledger, index))) = (&world.owner, world.entry()) else { return true };
    if ledger.is_retired(index) {
        return true;
    }
    plan.wait("Retiring", "the machine set has yet to note that this machine's name has had its life");
    let deleted = world.machine.metadata.deletion_timestamp.as_ref().map_or(at.now, |time| time.0);
    let due = deleted.checked_add(RETIRE_OURSELVES).unwrap_or(at.now);
    if due > at.now {
        plan.wake_at(due);
    } else {
        let ledger = LedgerPart::of(&ledger.retire([index]));
        plan.then("nobody else has retired the name", Step::apply_pinned(Cluster::CONTROL, set.as_ref(), &ledger));
    }
    false
}

/// Shows a stage in the status, once it has lasted for a while.
fn tell_stage(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    description: &str,
    condition: &str,
    reason: &str,
    message: &str,
) {
    let machine = world.machine.as_ref();
    let begun = machine.status.as_ref().and_then(|status| status.current_status.last_update_time.as_ref());
    let due = begun.and_then(|begun| begun.0.checked_add(WORTH_TELLING).ok()).unwrap_or(at.now);
    if due > at.now {
        plan.wake_at(due);
        return;
    }
    // While requests fail, that is what is said.
    if reason != REQUEST_FAILED && lasting_failure(at).is_some() {
        return;
    }
    // A count that falls pod by pod is no news; that the stage goes on is.
    let known = own_condition(machine, condition);
    if known.is_some_and(|known| known.status == "False" && known.reason.as_deref() == Some(reason)) {
        return;
    }
    let draft = StatusDraft::of(machine, at.now)
        .operation(OperationType::Delete, OperationState::Processing, description, None)
        .condition(condition, false, reason, message);
    if let Some(step) = draft.step(machine) {
        plan.beside("the stage lasts", step);
    }
}

/// The spans of the death, once it is over.
fn tell_trace(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let begun = machine.status.as_ref().and_then(|status| status.current_status.last_update_time.as_ref());
    let begun = begun.map_or(at.now, |time| time.0);
    if let Ok(class) = &world.class {
        let delete = at.outcomes.get(&context.call(Verb::Delete, world, class));
        let status = at.outcomes.get(&context.call(Verb::Status, world, class));
        let asked = delete.map_or(at.now, |known| known.begun);
        let gone = status.and_then(|known| known.last.as_ref()).map_or(at.now, |(when, _)| *when);
        if label(machine, labels::NODE).is_some() {
            plan.span(trace::stage(machine, "drain", begun, asked));
            plan.span(trace::stage(machine, "node deletion", gone, at.now));
        }
        plan.span(trace::stage(machine, "VM deletion", asked, gone));
    }
    plan.span(trace::died(machine, at.now));
}
