//! The stages before the VM is deleted: the Pods leave the Node, and their volumes are detached.

use json_patch::Patch;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use nodewright_api::{
    Code, conditions, operations,
    reasons::{self, unreadable},
    stored::NodeProgress,
};
use nodewright_runtime::{cache::Lookup, plan::Step, scoped_watch::ScopedWatch};

use super::{
    super::{
        calls::{Call, Verb},
        drain as machine_drain,
        force_drain::Limit,
        health, node_sync,
        partial_plan::PartialPlan,
        provider::Provider,
        scope::Scope,
        snapshot::node_named,
    },
    DRAINING, Shown,
    abandon::{abandoned_at, is_abandoned},
    instance::is_deletion_begun,
    node::{LISTING_NODES, LOOKING_FOR_NODE, NODES_UNLISTED, ends_without_target, listing_deadline},
};
use crate::shared::{
    TARGET,
    disruption::{
        AWAITING_BUDGET, DisruptionDecision, SharedBudget,
        patches::{HAS_ROOM, claimed, used},
    },
    drain::{Drain, DrainProgress, End, Wait},
    node::Node,
    ownership::{may_have_joined, node_name, vm_id},
};

const DETACHING: Shown<'_> = (operations::DELETE_VOLUME_ATTACHMENTS, conditions::machine::VOLUMES_DETACHED);

/// It can be seen what runs on the Node. A forced deletion does not wait for that.
pub(in super::super) fn node_readable(scope: &Scope<'_>) -> PartialPlan {
    let has_vm = vm_id(scope.machine).is_some();
    if has_vm && !scope.snapshot.nodes_listed && !scope.machine.is_force_deletion() {
        let due = abandoned_at(scope.settings, scope.machine).map(|due| due.max(listing_deadline(scope)));
        if due.is_none_or(|due| due > scope.now()) {
            return PartialPlan::waiting(LISTING_NODES, NODES_UNLISTED).waking_at(due);
        }
    }
    let text = scope.snapshot.unreadable_node.as_ref().filter(|_| !scope.machine.is_force_deletion());
    let Some(message) = text else { return node_shown(scope) };
    let event = scope.warning(unreadable::NODE, message.as_str());
    PartialPlan::blocked(scope, DRAINING, unreadable::NODE, message).event(event)
}

/// The cache of a manager that takes over may be older than what the one before it has noted: a Node that has joined, and that the
/// cache lacks, is asked for, because without a Node there is nothing to drain. If the target cluster is away, it is waited for as long
/// as for its first list.
fn node_shown(scope: &Scope<'_>) -> PartialPlan {
    let (machine, snapshot) = (scope.machine, scope.snapshot);
    let is_abandoned = is_abandoned(scope.settings, machine, scope.now());
    let is_known = snapshot.node.is_some() || !snapshot.nodes_listed || !snapshot.claim.is_settled();
    if is_known || !scope.settings.has_target || machine.is_force_deletion() || is_abandoned || is_deletion_begun(scope)
    {
        return PartialPlan::over();
    }
    let Some(name) = node_name(machine).filter(|_| may_have_joined(machine)) else { return PartialPlan::over() };
    let part = match &snapshot.unseen_node {
        Lookup::Missing => PartialPlan::over(),
        Lookup::Found(_) => PartialPlan::waiting(LOOKING_FOR_NODE, format!("node {name} is yet to show in the cache")),
        _ => PartialPlan::waiting(LOOKING_FOR_NODE, format!("the API server is asked whether there is a node {name}")),
    };
    part.scoped_watch(ScopedWatch::at::<Node>(TARGET, node_named(name)))
        .waking_at(abandoned_at(scope.settings, machine))
}

/// The pool of the Node has a claim for it, if a rollout replaces the Machine. The Node says first that it goes, so that those that wait
/// are known.
pub(in super::super) fn disruption_claimed(scope: &Scope<'_>) -> PartialPlan {
    let (Some(node), Some(shared)) = (drains(scope), &scope.snapshot.shared_budget) else {
        return PartialPlan::over();
    };
    if !node.is_terminating() {
        return PartialPlan::step("the node's status announces its end", mark_terminating(scope, node));
    }
    let part = match shared.deletion(node) {
        DisruptionDecision::Granted => PartialPlan::over(),
        DisruptionDecision::Claim(claim) => PartialPlan::step(HAS_ROOM, claimed(shared, node, claim, scope.now())),
        DisruptionDecision::Wait(text) => PartialPlan::blocked(scope, DRAINING, AWAITING_BUDGET, &text),
    };
    part.scoped_watch(SharedBudget::watch())
}

pub(in super::super) fn drained(scope: &Scope<'_>) -> PartialPlan {
    let Some(node) = drains(scope) else { return PartialPlan::over() };
    if let Some(part) = without_vm(scope, node) {
        return part;
    }
    let drain = of(scope, node);
    let progress = drain.evictions();
    let marked = mark(scope, node);
    if progress.end == Some(End::TimedOut) || marked.plan.is_idle() {
        return part(scope, node, progress, DRAINING);
    }
    if drain.rules.force.is_none() {
        return marked;
    }
    // What refuses the marks does not block a forced drain.
    let marks = marked.plan.stages.into_iter().flatten();
    marks.fold(part(scope, node, progress, DRAINING), PartialPlan::beside_planned)
}

pub(in super::super) fn volumes_detached(scope: &Scope<'_>) -> PartialPlan {
    let Some(node) = drains(scope) else { return PartialPlan::over() };
    part(scope, node, of(scope, node).detachment(), DETACHING)
}

/// The volumes that are still attached to the VM, which is gone: after a forced deletion, which drains nothing, or if there was no VM
/// to drain. Kubernetes would wait six minutes before it attaches them to other Nodes.
pub(in super::super) fn volumes_released(scope: &Scope<'_>) -> PartialPlan {
    let has_volumes = |node: &&Node| node.status.volumes_attached.as_ref().is_some_and(|attached| !attached.is_empty());
    let node = scope.snapshot.node.as_deref();
    let node = node.filter(|node| scope.machine.is_force_deletion() || has_volumes(node));
    let Some(node) = node.filter(|_| !ends_without_target(scope)) else { return PartialPlan::over() };
    part(scope, node, of(scope, node).release(), DETACHING)
}

/// The Node that is drained. A forced deletion asks nothing of the target cluster, which may be away: not even to mark the Node.
fn drains<'a>(scope: &Scope<'a>) -> Option<&'a Node> {
    let is_over = scope.machine.is_force_deletion() || is_deletion_begun(scope);
    scope.snapshot.node.as_deref().filter(|_| !is_over)
}

fn of<'a>(scope: &Scope<'a>, node: &'a Node) -> Drain<'a> {
    machine_drain::drain(scope, node, Limit::before_deletion(scope))
}

/// The part of the plan that makes progress with a drain, and what it waits for.
fn part(scope: &Scope<'_>, node: &Node, progress: DrainProgress, shown: Shown<'_>) -> PartialPlan {
    let (part, wait) = machine_drain::part(scope, progress);
    let Some(wait) = wait else { return part };
    let forced_at = Limit::before_deletion(scope).forced_at(scope, node);
    let (part, is_news) = (part.waking_at(forced_at), !matches!(wait, Wait::Listing));
    let (reason, message) = wait.text(if shown == DETACHING { "Attached" } else { "PodsLeft" });
    if !is_news {
        return part.and_wait(reason, message);
    }
    let message = match forced_at.filter(|_| shown == DRAINING) {
        Some(at) => format!("{message}; pods that are left are deleted without grace at {at:.0}"),
        None => message,
    };
    part.showing_news(scope, shown, (reason, &message)).and_wait(reason, message)
}

/// If a Node that is not ready has no VM any more, nothing could end its Pods: the drain is over.
fn without_vm(scope: &Scope<'_>, node: &Node) -> Option<PartialPlan> {
    health::not_ready_since(node)?;
    let provider = Provider::of(scope, scope.snapshot.class.as_ref().ok()?);
    let status = provider.call(Verb::Status);
    // An answer from before the deletion may be from before the VM existed.
    let asked = scope.context.outcomes.asked(&status).filter(|asked| asked.request.deleting);
    match asked.and_then(|asked| scope.context.outcomes.get(asked)) {
        None => Some(PartialPlan::step("the node is not ready: is there a VM at all?", Step::Call(status))),
        Some(known) if known.running => {
            Some(PartialPlan::waiting("CallingProvider", "the provider has not answered yet whether there is a VM"))
        }
        Some(known) => {
            let error = known.last.as_ref().and_then(|(_, outcome)| outcome.error());
            error.is_some_and(|error| error.code == Code::NotFound).then(PartialPlan::over)
        }
    }
}

fn mark(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    let decision = scope.snapshot.shared_budget.as_ref().map(|shared| shared.deletion(node));
    let used = if decision == Some(DisruptionDecision::Granted) { used(node) } else { vec![] };
    let cordon = node_sync::cordon(node).map(|Patch(cordon)| Patch([cordon, used].concat()));
    let cordon = cordon.and_then(|patch| Step::edit(TARGET, node, patch));
    PartialPlan::step("no new pod may start on the node", cordon)
        .beside("the node's status announces its end", mark_terminating(scope, node))
}

fn mark_terminating(scope: &Scope<'_>, node: &Node) -> Option<Step<Call>> {
    let patch = node_sync::terminating(node, &terminating(scope, node))?;
    Step::edit_status(TARGET, node, patch)
}

/// The condition that machine-controller-manager puts on a Node before it drains it.
fn terminating(scope: &Scope<'_>, node: &Node) -> NodeCondition {
    let has_failed = scope
        .machine
        .condition(conditions::machine::NODE_JOINED)
        .is_some_and(|joined| NodeProgress::of(joined) != Some(NodeProgress::Awaited))
        && health::not_ready_since(node).is_some();
    let (reason, message) = if has_failed {
        (reasons::node::UNHEALTHY, "Machine Controller is terminating failed machine")
    } else {
        (reasons::node::SCALE_DOWN, "Machine Controller is scaling down machine")
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
