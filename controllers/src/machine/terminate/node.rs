//! The stages of the Node. Before the VM is deleted, the Pods leave and the volumes are detached; after it, the Node is deleted.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{
    Code, OperationState, OperationType, conditions, finalizers, labels, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    cache::Lookup,
    finalizers as finalizer,
    object::{Target, has_finalizer, is_deleting, label, name, uid},
    plan::Step,
    scoped_watch::ScopedWatch,
};

use super::{
    super::{
        calls::Verb,
        claim::Vm,
        decision::{Scope, Stage},
        health, node_sync,
        provider::{Provider, VmStatus},
        snapshot::{node_named, pods_of},
        status::{has_shown_node, since},
    },
    DRAINING,
    instance::is_deletion_begun,
};
use crate::shared::{
    TARGET,
    drain::{self, Next, PodView, Rules},
    node::Node,
    ownership::{NODE_AWAITED, node_name, vm_id},
};

/// A process that has been connected to a cluster for less than this has just lost that connection.
const CONNECTION_LOST: SignedDuration = SignedDuration::from_secs(1);
/// How long after its start a manager waits for the list of Nodes at the end of a forced deletion.
const TARGET_LISTED: SignedDuration = SignedDuration::from_secs(30);
/// How long after its start a manager waits until a Node without a VM is no longer ready. Kubernetes notices that its kubelet is
/// silent after 40 to 50 s by default.
const KUBELET_SILENT: SignedDuration = SignedDuration::from_mins(2);
/// How often in a row a forced deletion may fail to delete the Node before it ends without.
const REFUSALS: u32 = 3;

/// It can be seen what runs on the Node. A forced deletion does not wait for that.
pub(in super::super) fn node_readable(scope: &Scope<'_>) -> Stage {
    let text = scope.snapshot.unreadable_node.as_ref().filter(|_| !scope.machine.is_force_deletion());
    let Some(message) = text else { return Stage::over() };
    let event = scope.warning(unreadable::NODE, message.as_str());
    Stage::blocked(scope, DRAINING, unreadable::NODE, message).telling(event)
}

pub(in super::super) fn drained(scope: &Scope<'_>) -> Stage {
    let Some(node) = scope.snapshot.node.as_deref() else { return Stage::over() };
    // A forced deletion asks nothing of the target cluster, which may be away: not even to mark the Node.
    if scope.machine.is_force_deletion() || is_deletion_begun(scope) {
        return Stage::over();
    }
    if let Some(stage) = without_vm(scope, node) {
        return stage;
    }
    let marked = mark(scope, node);
    if !marked.plan.is_idle() {
        return marked;
    }
    let watch = ScopedWatch::at::<PodView>(TARGET, pods_of(name(node)));
    let Some(pods) = &scope.snapshot.pods else {
        return Stage::waiting("ListingPods", "the pods of the node are being listed").scoped_watch(watch);
    };
    // A forced drain does not wait for a Pod that was deleted without grace and has a finalizer left.
    let forced = force_reason(scope, node);
    let counts = |pod: &&PodView| pod.leaves() && !(forced.is_some() && pod.is_gone_but_for_finalizers());
    let left: Vec<&PodView> = pods.iter().map(AsRef::as_ref).filter(counts).collect();
    let stage = if left.is_empty() { all_readable(scope, forced.is_some()) } else { evict(scope, node, &left, forced) };
    stage.scoped_watch(watch)
}

/// All Pods of the Node can be read. A forced drain does not wait for those that cannot.
fn all_readable(scope: &Scope<'_>, is_forced: bool) -> Stage {
    let Some(message) = scope.snapshot.unreadable_pod.as_ref().filter(|_| !is_forced) else { return Stage::over() };
    Stage::blocked(scope, DRAINING, unreadable::POD, message)
        .waking_at(scope.settings.drain_deadline(scope.machine).filter(|limit| *limit > scope.now()))
}

/// If a Node that is not ready has no VM any more, nothing could end its Pods: the stage is over.
fn without_vm(scope: &Scope<'_>, node: &Node) -> Option<Stage> {
    health::not_ready_since(node)?;
    let provider = Provider::of(scope, scope.snapshot.class.as_ref().ok()?);
    let status = provider.call(Verb::Status);
    // An answer from before the deletion may be from before the VM existed.
    let asked = scope.context.outcomes.asked(&status).filter(|asked| asked.request.deleting);
    match asked.and_then(|asked| scope.context.outcomes.get(asked)) {
        None => Some(Stage::step("the node is not ready: is there a VM at all?", Step::Call(status))),
        Some(known) if known.running => {
            Some(Stage::waiting("CallingProvider", "the provider has not said yet whether there is a VM"))
        }
        Some(known) => {
            let error = known.last.as_ref().and_then(|(_, outcome)| outcome.error());
            error.is_some_and(|error| error.code == Code::NotFound).then(Stage::over)
        }
    }
}

fn mark(scope: &Scope<'_>, node: &Node) -> Stage {
    let cordon = node_sync::cordon(node).and_then(|patch| Step::edit(TARGET, node, patch));
    let terminating = node_sync::terminating(node, &terminating(scope, node));
    let terminating = terminating.and_then(|patch| Step::edit_status(TARGET, node, patch));
    Stage::step("no new pod may start on the node", cordon).beside("the node says that it goes", terminating)
}

fn evict(scope: &Scope<'_>, node: &Node, left: &[&PodView], forced: Option<&'static str>) -> Stage {
    let (machine, settings) = (scope.machine, scope.settings);
    let retry = SignedDuration::try_from(settings.evict_retry).unwrap_or_default();
    let retries = machine.spec.max_evict_retries.and_then(|retries| u32::try_from(retries).ok());
    let max_retries = retries.unwrap_or(settings.max_evict_retries).max(1);
    let rules = Rules { forced: forced.is_some(), max_retries, retry };
    let mut stage = Stage::default();
    let mut refused = None;
    for pod in left {
        let refusal = scope.context.refusal(uid(*pod));
        refused = refused.or(refusal.map(|refusal| format!("pod {}: {}", name(*pod), refusal.message)));
        let target = || Target::of(TARGET, *pod);
        stage = match drain::next(pod, refusal, rules, scope.now()) {
            Next::Evict => stage.beside("the node is drained", Step::Evict(target())),
            Next::Delete => {
                let why = forced.unwrap_or("its eviction was refused too often");
                stage.beside(why, Step::DeleteNow(target()))
            }
            Next::Later(when) => stage.waking_at(when),
            Next::Wait => stage,
        };
    }
    let limits = [settings.drain_deadline(machine), not_ready_deadline(scope, node)];
    let limits = limits.into_iter().flatten().filter(|limit| *limit > scope.now());
    let mut stage = limits.fold(stage, Stage::waking_at);
    let mut message = format!("{} pods are yet to leave the node", left.len());
    if let Some(refused) = refused {
        message = format!("{message}; {refused}");
        stage = stage.telling(scope.warning(reasons::machine::EVICTION_REFUSED, refused));
    }
    stage.showing(scope, DRAINING, ("PodsLeft", &message)).and_wait("Draining", message)
}

/// Caveat: Kubernetes takes a volume off the Node's status when it begins to detach it. A VM may go before the end of a
/// detachment that takes long.
pub(in super::super) fn volumes_detached(scope: &Scope<'_>) -> Stage {
    let Some(node) = scope.snapshot.node.as_deref() else { return Stage::over() };
    let machine = scope.machine;
    let attached = node.status.volumes_attached.as_ref().map_or(0, Vec::len);
    let is_forced = machine.is_force_deletion() || force_reason(scope, node).is_some();
    if attached == 0 || is_forced || is_deletion_begun(scope) {
        return Stage::over();
    }
    // The condition is the clock of this stage. If somebody removes it, the wait begins again.
    let message = format!("{attached} volumes are still attached to the node");
    let Some(begun) = since(machine, conditions::machine::VOLUMES_DETACHED) else {
        let draft = scope
            .status()
            .operation(OperationType::Delete, OperationState::Processing, operations::DELETE_VOLUME_ATTACHMENTS, None)
            .condition(conditions::machine::DRAINED, true, "Drained", "no pod is left that could leave")
            .condition(conditions::machine::VOLUMES_DETACHED, false, "Attached", message);
        return Stage::step("volumes have yet to be detached", draft.step());
    };
    let Some(due) = scope.pause_end(begun, scope.settings.detach_timeout) else { return Stage::over() };
    let message = format!("{message}; the VM is removed at {due} at the latest");
    Stage::waiting("DetachingVolumes", message).waking_at(due)
}

fn force_reason(scope: &Scope<'_>, node: &Node) -> Option<&'static str> {
    let is_over = |limit: Option<Timestamp>| limit.is_some_and(|limit| limit <= scope.now());
    if is_over(scope.settings.drain_deadline(scope.machine)) {
        return Some("the drain timeout is over");
    }
    let is_dead = is_over(not_ready_deadline(scope, node));
    is_dead.then_some("the node has not been ready for too long: its pods cannot answer")
}

fn not_ready_deadline(scope: &Scope<'_>, node: &Node) -> Option<Timestamp> {
    health::not_ready_since(node)?.checked_add(scope.settings.not_ready_limit).ok()
}

/// The condition that machine-controller-manager puts on a Node before it drains it.
fn terminating(scope: &Scope<'_>, node: &Node) -> NodeCondition {
    let has_failed = scope
        .machine
        .condition(conditions::machine::NODE_JOINED)
        .is_some_and(|joined| joined.reason.as_deref() != Some(NODE_AWAITED))
        && health::not_ready_since(node).is_some();
    let (reason, message) = if has_failed {
        (reasons::node::UNHEALTHY, "Machine controller is terminating failed machine")
    } else {
        (reasons::node::SCALE_DOWN, "Machine controller is scaling down machine")
    };
    NodeCondition {
        type_: conditions::node::TERMINATING.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(scope.now())),
        last_heartbeat_time: Some(Time(scope.now())),
    }
}

pub(in super::super) fn node_deleted(scope: &Scope<'_>) -> Stage {
    if let Some(node) = &scope.snapshot.node {
        return delete(scope, node);
    }
    match of_missing_vm(scope) {
        Some(node) => delete_once_silent(scope, node),
        None => delete_unseen(scope),
    }
}

/// The Node of a VM that was gone before its owner could be proven, as after a take-over from machine-controller-manager in the
/// middle of a deletion. The proof is that the provider knows no VM of the id that the Node and only this Machine bear, and that a
/// controller has linked both: with its finalizer on the Node, and the Machine's name. machine-controller-manager writes that name
/// some seconds after the Node joined. On a Node without a name, the condition with which a drain begins stands for it.
fn of_missing_vm<'a>(scope: &Scope<'a>) -> Option<&'a Node> {
    let (machine, claim) = (scope.machine, &scope.snapshot.claim);
    let node = claim.node.as_deref().filter(|_| claim.vm == Vm::Unproven && claim.rivals.is_empty())?;
    let is_linked = has_finalizer(node, finalizers::NODE)
        && label(node, labels::MACHINE_NAME).map_or_else(|| is_terminating(node), |named| named == name(machine))
        && node.provider_id() == vm_id(machine);
    let provider = Provider::of(scope, scope.snapshot.class.as_ref().ok()?);
    let is_missing = matches!(provider.vm_status(), Some(VmStatus::NotFound(_)));
    Some(node).filter(|_| is_linked && is_missing)
}

fn is_terminating(node: &Node) -> bool {
    node.conditions().iter().any(|it| it.type_ == conditions::node::TERMINATING && it.status == "True")
}

/// Deletes a Node whose VM the provider does not know, once its kubelet is silent. A Node that stays ready speaks against the
/// provider's answer, and is left.
fn delete_once_silent(scope: &Scope<'_>, node: &Node) -> Stage {
    if is_deleting(node) || health::not_ready_since(node).is_some() {
        return delete(scope, node);
    }
    let Some(due) = scope.pause_end(scope.context.leader_since, KUBELET_SILENT) else { return Stage::over() };
    let message =
        format!("the provider knows no VM of node {}, which is ready: it is left if it still is at {due}", name(node));
    let progress = (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_DELETED);
    Stage::blocked(scope, progress, "NodeReady", &message).waking_at(due)
}

fn delete(scope: &Scope<'_>, node: &Node) -> Stage {
    if ends_without_target(scope) {
        return Stage::over();
    }
    if !is_deleting(node) {
        return Stage::step("its VM is gone", Step::delete(TARGET, node));
    }
    let remove = Step::edit(TARGET, node, finalizer::remove(&node.metadata, finalizers::NODE));
    // Other finalizers on the Node are not waited for.
    Stage { is_over: remove.is_none(), ..Stage::step("its VM is gone", remove) }
}

/// Whether a forced deletion ends although the Node stays: the target cluster does not answer, or has refused several times.
fn ends_without_target(scope: &Scope<'_>) -> bool {
    let context = scope.context;
    let is_away = context.now.duration_since(context.connected_since) < CONNECTION_LOST;
    let fails = context.failure.is_some_and(|failure| failure.key.cluster == TARGET);
    let attempt = context.attempt;
    scope.machine.is_force_deletion() && attempt > 0 && (is_away || fails && attempt >= REFUSALS)
}

/// A VM may have a Node that this process's cache does not show yet. No controller would delete that Node later, so the API
/// server is asked, except by a forced deletion.
fn delete_unseen(scope: &Scope<'_>) -> Stage {
    let (machine, snapshot) = (scope.machine, scope.snapshot);
    if !snapshot.nodes_listed {
        return nodes_listed(scope);
    }
    let asks = scope.settings.has_target && !machine.is_force_deletion();
    let is_ours = snapshot.claim.vm == Vm::Proven;
    let Some(name) = node_name(machine).filter(|_| asks && is_ours) else { return Stage::over() };
    let stage = match &snapshot.unseen_node {
        Lookup::Missing => Stage::over(),
        Lookup::Found(node) => delete(scope, node),
        _ => {
            let message = "the API server is asked whether there is a node of the machine";
            // If there was a Node, the status says already that it goes.
            if has_shown_node(machine) {
                Stage::waiting("LookingForNode", message)
            } else {
                let progress = (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_JOINED);
                Stage::blocked(scope, progress, "LookingForNode", message)
            }
        }
    };
    stage.scoped_watch(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}

/// A forced deletion goes on while the Nodes are not listed yet. Only at its end it waits a little for the list.
fn nodes_listed(scope: &Scope<'_>) -> Stage {
    if let Some(due) = scope.pause_end(scope.context.leader_since, TARGET_LISTED) {
        let message = format!("the nodes of the target cluster are being listed; not after {due}");
        return Stage::waiting("ListingNodes", message).waking_at(due);
    }
    match &scope.snapshot.unseen_node {
        Lookup::Found(node) => delete(scope, node),
        Lookup::Missing => Stage::over(),
        _ => Stage::default(),
    }
}
