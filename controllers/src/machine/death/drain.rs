//! The first stages of a death: no Pod that can leave is left on the Node, and no volume is attached to it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{
    Code, OperationState, OperationType, conditions, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::EventKind,
    look::Look,
    object::{Cluster, Target, name, uid},
    plan::{Moment, Plan, Planned, Step},
};

use super::{
    super::{
        World,
        calls::{Call, Verb},
        context::{Context, event},
        health, node_sync,
        status::{StatusDraft, own_condition, since},
        world::pods_of,
    },
    tell_stage,
};
use crate::shared::drain::{self, Next, PodView, Rules};
use crate::shared::node::Node;
use crate::shared::ownership::NODE_AWAITED;

/// No Pod that can leave is left. Each stage tells whether it is over; if not it says what it does or waits for.
pub(super) fn drained(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Some(node) = world.node.as_deref() else { return true };
    // A forced deletion asks nothing of the target cluster, which may be away: not even to mark the Node.
    if world.machine.is_force_deletion() || deletion_begun(at, world, context) {
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
    // What is forced is not waited for: a Pod that has been deleted without grace may still have a finalizer.
    let forced = forced(at, world, node, context).is_some();
    let counts = |pod: &&PodView| pod.leaves() && !(forced && pod.is_gone_but_for_finalizers());
    let left: Vec<&PodView> = pods.iter().map(AsRef::as_ref).filter(counts).collect();
    if left.is_empty() {
        return is_all_seen(plan, at, world, context, forced);
    }
    empty(plan, at, world, node, &left, context);
    false
}

/// Whether all Pods of the Node can be read. What is forced does not wait for those that cannot.
fn is_all_seen(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    forced: bool,
) -> bool {
    let Some(text) = world.unreadable_pod.as_ref().filter(|_| !forced) else { return true };
    plan.wait(unreadable::POD, text.clone());
    if let Some(limit) = drain_deadline(world, context).filter(|limit| *limit > at.now) {
        plan.wake_at(limit);
    }
    tell_stage(plan, at, world, operations::INITIATE_DRAIN, conditions::machine::DRAINED, unreadable::POD, text);
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
    let status = context.call(Verb::Status, world, world.class.as_ref().ok()?);
    // What was said before the VM was made says nothing.
    let asked = at.outcomes.asked(&status).filter(|asked| asked.request.deleting);
    match asked.and_then(|asked| at.outcomes.get(asked)) {
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

fn target(pod: &PodView) -> Target {
    Target::of(Cluster::TARGET, pod)
}

fn evict(pod: &PodView) -> Step<Call> {
    Step::Evict(target(pod))
}

/// Why Pods are deleted without being asked, if they are.
fn forced(at: &Moment<'_, Call>, world: &World, node: &Node, context: Context<'_>) -> Option<&'static str> {
    if drain_deadline(world, context).is_some_and(|limit| limit <= at.now) {
        return Some("the drain timeout is over");
    }
    let dead = not_ready_limit(node, context).is_some_and(|limit| limit <= at.now);
    dead.then_some("the node has not been ready for too long: its pods cannot answer")
}

/// Until when Pods are asked to leave before they are made to.
pub(super) fn drain_deadline(world: &World, context: Context<'_>) -> Option<Timestamp> {
    let begun = world.machine.metadata.deletion_timestamp.as_ref()?.0;
    begun.checked_add(SignedDuration::try_from(context.settings.drain_timeout_of(&world.machine)).ok()?).ok()
}

fn not_ready_limit(node: &Node, context: Context<'_>) -> Option<Timestamp> {
    let limit = SignedDuration::try_from(context.settings.not_ready_limit).ok()?;
    health::not_ready_since(node)?.checked_add(limit).ok()
}

/// The condition that machine-controller-manager puts on a Node before it drains it.
fn terminating(world: &World, node: &Node, now: Timestamp) -> NodeCondition {
    let failed = own_condition(&world.machine, conditions::machine::NODE_JOINED)
        .is_some_and(|joined| joined.reason.as_deref() != Some(NODE_AWAITED))
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

/// No volume is attached to the Node any more, or it has been waited for long enough.
pub(super) fn detached(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Some(node) = world.node.as_deref() else { return true };
    let attached = node.status.volumes_attached.as_ref().map_or(0, Vec::len);
    let forced = world.machine.is_force_deletion() || forced(at, world, node, context).is_some();
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

/// Whether this process has told the provider to remove the VM: then the stages before are over.
pub(super) fn deletion_begun(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let Ok(class) = &world.class else { return false };
    at.outcomes.get(&context.call(Verb::Delete, world, class)).is_some()
}
