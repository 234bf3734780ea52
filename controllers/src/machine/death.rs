//! What a Machine that is being deleted decides, stage by stage: drain, volumes, VM, Node, name, end.
//!
//! Each stage is over when it can be seen to be over, so a restart goes on wherever things stand.

use super::{
    Context, Owner, World,
    calls::{Call, Outcome, Verb},
    health,
    life::{call, event, is_retired},
    node_sync,
    status::{StatusDraft, own_condition, since},
    trace,
    world::pods_of,
};
use crate::{
    drain::{self, Next, PodView, Rules},
    driver::DriverError,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use nodewright_api::{
    Code, MachinePhase, OperationState, OperationType, conditions, finalizers, labels, operations, reasons,
};
use nodewright_runtime::{
    events::EventKind,
    finalizers as finalizer,
    look::Look,
    object::{Cluster, has_finalizer, is_deleting, label, name, uid},
    plan::{Moment, Plan, Planned, Step},
};

/// Pause before the provider is asked again whether a VM is gone.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// After this a VM that is still there is asked to go once more.
const DELETE_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How long a stage may last before it shows in the status.
const WORTH_TELLING: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn plan(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> Plan<Call> {
    let mut plan = Plan::idle();
    let machine = world.machine.as_ref();
    plan.traceparent = Some(trace::current(machine).to_string());
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return plan;
    }
    if *machine.phase() != MachinePhase::Terminating {
        let draft = StatusDraft::of(machine, at.now)
            .phase(MachinePhase::Terminating)
            .timeout_active(false)
            .not_preserved()
            .operation(OperationType::Delete, OperationState::Processing, operations::GET_VM_STATUS, None);
        plan.then("the machine is being deleted", draft.step(machine));
        let text = "the node is drained, then the VM is removed".to_owned();
        plan.event(event(machine, EventKind::Normal, reasons::machine::TERMINATING, text));
        return plan;
    }
    let stages = [drained, detached, vm_gone, node_gone, name_retired];
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

// ---------------------------------------------------------------- drain

/// No Pod that can leave is left. Each stage tells whether it is over; if not it says what it does or waits for.
fn drained(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Some(node) = world.node.as_deref() else { return true };
    if deletion_begun(at, world, context) {
        return true;
    }
    if let Some(answer) = is_nobody_there(plan, at, world, node, context) {
        return answer;
    }
    let mut marks: Vec<Planned<Call>> = vec![];
    let cordon = node_sync::cordon(node).and_then(|patch| Step::edit(Cluster::TARGET, node, patch));
    marks.extend(cordon.map(|step| Planned { why: "no new pod may start on the node".into(), step }));
    let terminating = node_sync::terminating(node, &terminating(world, node, at.now));
    let terminating = terminating.and_then(|patch| Step::edit_status(Cluster::TARGET, node, patch));
    marks.extend(terminating.map(|step| Planned { why: "the node says that it goes".into(), step }));
    if !marks.is_empty() {
        plan.stage(marks);
        return false;
    }
    plan.look(Look::at::<PodView>(Cluster::TARGET, pods_of(name(node))));
    let Some(pods) = &world.pods else {
        plan.wait("ListingPods", "the pods of the node are being listed");
        return false;
    };
    let left: Vec<&PodView> = pods.iter().map(AsRef::as_ref).filter(|pod| pod.leaves()).collect();
    if left.is_empty() {
        return true;
    }
    empty(plan, at, world, node, &left, context);
    false
}

/// Whether a Node that is not ready has no VM any more: then there is nobody who could end its Pods, and waiting for
/// them would only hold up their successors. `None` when the drain has to be gone through.
fn is_nobody_there(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: &Node,
    context: Context<'_>,
) -> Option<bool> {
    health::not_ready_since(node)?;
    let status = call(Verb::Status, world, world.class.as_ref().ok()?, context);
    // What was said before the VM was made says nothing.
    let begun = world.machine.status.as_ref()?.current_status.last_update_time.as_ref()?.0;
    match at.outcomes.get(&status).filter(|known| known.begun >= begun) {
        None => {
            plan.then("the node is not ready: is there a VM at all?", Step::Call(status));
            Some(false)
        }
        Some(known) if known.running => {
            plan.wait("CallingProvider", "the provider has not said yet whether there is a VM");
            Some(false)
        }
        Some(known) => {
            let error = known.last.as_ref().and_then(|(_, outcome)| outcome.error());
            error.is_some_and(|error| error.code == Code::NotFound).then_some(true)
        }
    }
}

fn empty(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: &Node,
    left: &[&PodView],
    context: Context<'_>,
) {
    let machine = world.machine.as_ref();
    let forced = forced(at, world, node, context);
    let retry = SignedDuration::try_from(context.settings.evict_retry).unwrap_or_default();
    let retries = machine.spec.max_evict_retries.and_then(|retries| u32::try_from(retries).ok());
    let max_retries = retries.unwrap_or(context.settings.max_evict_retries).max(1);
    let rules = Rules { forced: forced.is_some(), max_retries, retry };
    let mut steps = vec![];
    let mut refused = None;
    for pod in left {
        let refusal = at.refusal(uid(*pod));
        refused = refused.or(refusal.map(|refusal| format!("pod {}: {}", name(*pod), refusal.message)));
        match drain::next(pod, refusal, rules, at.now) {
            Next::Evict => steps.push(Planned { why: "the node is drained".into(), step: evict(pod) }),
            Next::Delete => {
                let why = forced.unwrap_or("its eviction was refused too often");
                steps.push(Planned { why: why.into(), step: Step::DeleteNow(target(pod)) });
            }
            Next::Later(when) => drop(plan.wake_at(when)),
            Next::Wait => {}
        }
    }
    let message = match &refused {
        Some(refused) => format!("{} pods are yet to leave the node; {refused}", left.len()),
        None => format!("{} pods are yet to leave the node", left.len()),
    };
    plan.wait("Draining", message.clone());
    let limits = [drain_deadline(world, context), not_ready_limit(node, context)];
    for limit in limits.into_iter().flatten().filter(|limit| *limit > at.now) {
        plan.wake_at(limit);
    }
    plan.stage(steps);
    if let Some(refused) = refused {
        plan.event(event(machine, EventKind::Warning, reasons::machine::EVICTION_REFUSED, refused));
    }
    tell_stage(plan, at, world, operations::INITIATE_DRAIN, conditions::machine::DRAINED, "PodsLeft", &message);
}

fn target(pod: &PodView) -> nodewright_runtime::object::Target {
    nodewright_runtime::object::Target::of(Cluster::TARGET, pod)
}

fn evict(pod: &PodView) -> Step<Call> {
    Step::Evict(target(pod))
}

/// Why Pods are deleted without being asked, if they are.
fn forced(at: &Moment<'_, Call>, world: &World, node: &Node, context: Context<'_>) -> Option<&'static str> {
    if world.machine.is_force_deletion() {
        return Some("the label force-deletion asks for it");
    }
    if drain_deadline(world, context).is_some_and(|limit| limit <= at.now) {
        return Some("the drain timeout is over");
    }
    let dead = not_ready_limit(node, context).is_some_and(|limit| limit <= at.now);
    dead.then_some("the node has not been ready for too long: its pods cannot answer")
}

fn drain_deadline(world: &World, context: Context<'_>) -> Option<Timestamp> {
    let begun = world.machine.metadata.deletion_timestamp.as_ref()?.0;
    let own = world.machine.spec.drain_timeout.as_ref().map(|own| own.to_std());
    begun.checked_add(SignedDuration::try_from(own.unwrap_or(context.settings.drain_timeout)).ok()?).ok()
}

fn not_ready_limit(node: &Node, context: Context<'_>) -> Option<Timestamp> {
    let limit = SignedDuration::try_from(context.settings.not_ready_limit).ok()?;
    health::not_ready_since(node)?.checked_add(limit).ok()
}

/// The condition that machine-controller-manager puts on a Node before it drains it.
fn terminating(world: &World, node: &Node, now: Timestamp) -> NodeCondition {
    let failed = own_condition(&world.machine, conditions::machine::NODE_JOINED).is_some()
        && health::not_ready_since(node).is_some();
    let (reason, message) = if failed {
        (reasons::node::UNHEALTHY, "Machine controller is terminating failed machine")
    } else {
        (reasons::node::SCALE_DOWN, "Machine controller is scaling down machine")
    };
    NodeCondition {
        type_: conditions::node::TERMINATING.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        last_heartbeat_time: Some(Time(now)),
    }
}

// ---------------------------------------------------------------- volumes

/// No volume is attached to the Node any more, or it has been waited for long enough.
fn detached(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Some(node) = world.node.as_deref() else { return true };
    let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default().len();
    let forced = forced(at, world, node, context).is_some();
    if attached == 0 || forced || deletion_begun(at, world, context) {
        return true;
    }
    // The clock of this stage is a condition; should somebody take it away the wait begins again.
    let machine = world.machine.as_ref();
    let message = format!("{attached} volumes are still attached to the node");
    let Some(begun) = since(machine, conditions::machine::VOLUMES_DETACHED) else {
        let draft = StatusDraft::of(machine, at.now)
            .operation(OperationType::Delete, OperationState::Processing, operations::DELETE_VOLUME_ATTACHMENTS, None)
            .condition(conditions::machine::DRAINED, true, "Drained", "no pod is left that could leave")
            .condition(conditions::machine::VOLUMES_DETACHED, false, "Attached", message);
        plan.then("volumes have yet to be detached", draft.step(machine));
        return false;
    };
    let limit = SignedDuration::try_from(context.settings.detach_timeout).unwrap_or_default();
    let due = begun.checked_add(limit).unwrap_or(at.now);
    if due <= at.now {
        return true;
    }
    plan.wait("DetachingVolumes", format!("{message}; the VM is removed at {due} at the latest"));
    plan.wake_at(due);
    false
}

// ---------------------------------------------------------------- VM

/// Whether this process has told the provider to remove the VM: then the stages before are over.
fn deletion_begun(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Ok(class) = &world.class else { return false };
    at.outcomes.get(&call(Verb::Delete, world, class, context)).is_some()
}

/// The provider has confirmed that there is no VM.
fn vm_gone(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let machine = world.machine.as_ref();
    let class = match &world.class {
        Ok(class) => class,
        Err(problem) => {
            plan.wait(problem.reason, problem.message.clone());
            tell_stage(
                plan,
                at,
                world,
                operations::INITIATE_VM_DELETION,
                conditions::machine::INSTANCE_TERMINATED,
                problem.reason,
                &problem.message,
            );
            return false;
        }
    };
    let of = |verb| call(verb, world, class, context);
    let (status, delete, create) = (of(Verb::Status), of(Verb::Delete), of(Verb::Create));
    if [&status, &delete, &create, &of(Verb::Initialize)].into_iter().any(|call| at.outcomes.is_running(call)) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        tell_stage(
            plan,
            at,
            world,
            operations::INITIATE_VM_DELETION,
            conditions::machine::INSTANCE_TERMINATED,
            "CallingProvider",
            "the VM is being removed",
        );
        return false;
    }
    let deleted = at.outcomes.get(&delete).and_then(|known| known.last.as_ref().map(|last| (known, last)));
    let Some((known, (ended, outcome))) = deleted else {
        plan.then("the VM has to go", Step::Call(delete));
        return false;
    };
    if let Some(error) = outcome.error().filter(|error| error.code != Code::NotFound) {
        retry(plan, at, world, error, *ended, known.failures, delete, context);
        return false;
    }
    let asked = at.outcomes.get(&status).and_then(|known| known.last.as_ref()).filter(|(when, _)| when >= ended);
    match asked {
        None => {
            plan.then("is the VM gone?", Step::Call(status));
            false
        }
        Some((when, Outcome::Failed(error))) if matches!(error.code, Code::NotFound | Code::Unimplemented) => {
            match uncertain_until(at, world, &create, context).filter(|until| until > when) {
                None => true,
                // A VM that is still on its way would be nobody's once the machine is gone.
                Some(until) if until > at.now => {
                    plan.wait("Confirming", format!("a VM that was asked for before may still appear until {until}"));
                    plan.wake_at(until);
                    false
                }
                Some(_) => {
                    plan.then("is there a late VM?", Step::Call(delete));
                    false
                }
            }
        }
        Some((when, Outcome::Failed(error))) => {
            retry(plan, at, world, error, *when, 1, status, context);
            false
        }
        Some((when, _)) => {
            let (next, again) =
                if at.now.duration_since(known.begun) >= DELETE_AGAIN { (delete, true) } else { (status, false) };
            let due = when.checked_add(POLL).unwrap_or(at.now);
            if due <= at.now {
                plan.then(if again { "the VM is still there" } else { "is the VM gone?" }, Step::Call(next));
            } else {
                plan.wake_at(due);
            }
            let message = format!("VM {} is being removed", machine.spec.provider_id);
            plan.wait("RemovingVM", message.clone());
            tell_stage(
                plan,
                at,
                world,
                operations::INITIATE_VM_DELETION,
                conditions::machine::INSTANCE_TERMINATED,
                "Removing",
                &message,
            );
            false
        }
    }
}

/// Until when a create call that has no known VM may still make one.
///
/// A VM that is linked was answered. Without a link this process knows whether it has asked for one; what an earlier
/// process did it cannot know, and that one asked at the latest when this one began.
fn uncertain_until(at: &Moment<'_, Call>, world: &World, create: &Call, context: Context<'_>) -> Option<Timestamp> {
    let machine = world.machine.as_ref();
    if machine.provider_id().is_some() {
        return None;
    }
    let settle = context.driver.deadline() + context.driver.consistency();
    let settle = SignedDuration::try_from(settle).ok()?;
    if let Some(known) = at.outcomes.get(create) {
        return known.begun.checked_add(settle).ok();
    }
    // Clocks differ: a machine counts as made under this process only when it is clearly younger.
    let margin = SignedDuration::from_secs(30);
    let created = machine.metadata.creation_timestamp.as_ref()?.0;
    (created < at.since.saturating_add(margin).ok()?).then(|| at.since.checked_add(settle).ok()).flatten()
}

#[allow(clippy::too_many_arguments)] // one call, its answer, and where they stand
fn retry(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    error: &DriverError,
    ended: Timestamp,
    failures: u32,
    again: Call,
    context: Context<'_>,
) {
    let grown = context.settings.short_retry.saturating_mul(1 << failures.saturating_sub(1).min(7));
    let longest =
        if error.is_passing() { std::time::Duration::from_mins(1) } else { std::time::Duration::from_mins(10) };
    let pause = SignedDuration::try_from(grown.min(longest).max(context.settings.short_retry)).unwrap_or_default();
    let due = ended.checked_add(pause).unwrap_or(at.now);
    if due <= at.now {
        plan.then("the pause after a failed call is over", Step::Call(again));
        return;
    }
    let machine = world.machine.as_ref();
    let text = format!("{}: {error}", operations::INITIATE_VM_DELETION);
    let draft = StatusDraft::of(machine, at.now)
        .operation(OperationType::Delete, OperationState::Failed, text, Some(error.code.name()))
        .condition(conditions::machine::INSTANCE_TERMINATED, false, error.code.name(), error.message.clone());
    if let Some(step) = draft.step(machine) {
        plan.then("the provider refused", step);
        plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED_TERMINATION, error.to_string()));
    }
    plan.wait("ProviderFailed", format!("{error}; next attempt at {due}"));
    plan.wake_at(due);
}

// ---------------------------------------------------------------- Node, name

/// There is no Node of the VM any more.
fn node_gone(plan: &mut Plan<Call>, _: &Moment<'_, Call>, world: &World, _: Context<'_>) -> bool {
    let Some(node) = world.node.as_deref() else { return true };
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

/// The Machine's name will not have a second life.
fn name_retired(plan: &mut Plan<Call>, _: &Moment<'_, Call>, world: &World, _: Context<'_>) -> bool {
    let Owner::Set(_) = &world.owner else { return true };
    if is_retired(world) == Some(false) {
        plan.wait("Retiring", "the machine set has yet to note that this machine's name has had its life");
        return false;
    }
    true
}

// ---------------------------------------------------------------- telling

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
        let delete = at.outcomes.get(&call(Verb::Delete, world, class, context));
        let status = at.outcomes.get(&call(Verb::Status, world, class, context));
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
