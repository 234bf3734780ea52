//! The stage in which the Pods leave the Node.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{
    Code, conditions, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::EventKind,
    object::{Target, name, uid},
    plan::Step,
    scoped_watch::ScopedWatch,
};

use super::{
    super::{
        calls::Verb, health, node_sync, provider::Provider, scope::Scope, snapshot::pods_of, stage::Stage,
        status::own_condition,
    },
    instance::is_deletion_begun,
    progress::Progress,
};
use crate::shared::{
    clusters::TARGET,
    drain::{self, Next, PodView, Rules},
    node::Node,
    ownership::NODE_AWAITED,
};

/// No Pod that can leave is left on the Node.
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
    let look = ScopedWatch::at::<PodView>(TARGET, pods_of(name(node)));
    let Some(pods) = &scope.snapshot.pods else {
        return Stage::waiting("ListingPods", "the pods of the node are being listed").looking_at(look);
    };
    // A forced drain does not wait for a Pod that was deleted without grace and has a finalizer left.
    let forced = force_reason(scope, node);
    let counts = |pod: &&PodView| pod.leaves() && !(forced.is_some() && pod.is_gone_but_for_finalizers());
    let left: Vec<&PodView> = pods.iter().map(AsRef::as_ref).filter(counts).collect();
    let stage = if left.is_empty() { all_readable(scope, forced.is_some()) } else { evict(scope, node, &left, forced) };
    stage.looking_at(look)
}

/// All Pods of the Node can be read. A forced drain does not wait for those that cannot.
fn all_readable(scope: &Scope<'_>, is_forced: bool) -> Stage {
    let Some(message) = scope.snapshot.unreadable_pod.as_ref().filter(|_| !is_forced) else { return Stage::over() };
    let (operation, condition) = (operations::INITIATE_DRAIN, conditions::machine::DRAINED);
    let stage = Stage::blocked(scope, &Progress { operation, condition, reason: unreadable::POD, message });
    stage.waking_at(scope.settings.drain_deadline(scope.machine).filter(|limit| *limit > scope.now()))
}

/// If a Node that is not ready has no VM any more, nothing could end its Pods, and waiting for them would only delay their
/// successors: the stage is over. `None` if the drain has to be done.
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

/// Cordons the Node, and says on it that it goes.
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
        stage = stage.telling(scope.event(EventKind::Warning, reasons::machine::EVICTION_REFUSED, refused));
    }
    let (operation, condition) = (operations::INITIATE_DRAIN, conditions::machine::DRAINED);
    let progress = Progress { operation, condition, reason: "PodsLeft", message: &message };
    stage.showing(scope, &progress).and_wait("Draining", message)
}

/// Why Pods are deleted and not evicted, if they are.
pub(super) fn force_reason(scope: &Scope<'_>, node: &Node) -> Option<&'static str> {
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
    let has_failed = own_condition(scope.machine, conditions::machine::NODE_JOINED)
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
