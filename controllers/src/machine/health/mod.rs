//! Is a Machine healthy, and when is it given up?
//!
//! An unhealthy Machine becomes `Unknown` and, after its health timeout, `Failed`; then its MachineSet replaces it. Reports
//! from before our connection to the API servers prove nothing at first: no kubelet could report while these were away.
//!
//! # Guarantees
//! * A Machine is Failed at the time that its condition `HealthTimeout` and its last operation name: the end of its health
//!   timeout, but, unless its Node was reported on since, no earlier than six minutes after this process began to lead or was
//!   connected again. A Running Machine becomes Unknown at most that much late, and once its Node has been unhealthy for
//!   [ten seconds](PATIENCE).
//! * Before that the Node is read from the API server. If it has changed, the Machine is judged again.
//!
//! # Caveats
//! * If its watch is a dead connection, a Node's report is seen up to four minutes late.
//! * The replacement budget ([`budget`](super::budget)), an unreadable Node, or a VM that is not proven to be the Machine's
//!   may hold a Machine back for longer; its status says so.

mod deadline;
mod node;
mod vm;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    cache::Lookup,
    object::{is_deleting, name},
    plan::Step,
    scoped_watch::ScopedWatch,
};

pub(super) use self::node::{has_healthy_node, not_ready_since, unable_since, unhealthy_because};
use self::{
    deadline::{Deadline, Progress},
    node::{ignored_until, lacks_critical_components},
};
use super::{
    budget,
    calls::{Call, Verb},
    claim::{Vm, joined_as},
    decision::{Scope, Stage},
    node_sync,
    provider::Provider,
    snapshot::node_named,
    status::{StatusDraft, phase_since, since},
    token, trace, virtual_capacity,
};
use crate::{
    machine::memory::Note,
    shared::{
        CONTROL, TARGET,
        node::Node,
        ownership::{JOIN_TIMEOUT, JOINED, node_name, noted_node, vm_id},
    },
};

/// How often the conditions of a Node that is still starting are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// How long a Node may be unhealthy before the Machine says so: most troubles pass, and each would cost two writes of the
/// Machine. Less if the health timeout is short.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);
const FAILURE_REPORTED: &str = "the machine says which request fails";
const HELD_BACK: &str = "ReplacementHeld";

pub(super) fn judged(scope: &Scope<'_>) -> Stage {
    let snapshot = scope.snapshot;
    if let Some(text) = &snapshot.unreadable_node {
        return unreadable(scope, text);
    }
    let Some(node) = snapshot.node.as_deref() else {
        let (stage, step) = without_node(scope);
        return stage.then("the machine has no node", step);
    };
    if is_deleting(node) {
        return node_deleted(scope, node);
    }
    let (stage, step) = match unhealthy_because(scope, node) {
        None => healthy(scope, node),
        Some(why) => unhealthy(scope, Some(node), &why),
    };
    with_node_sync(stage, scope, node, step)
}

fn without_node(scope: &Scope<'_>) -> (Stage, Option<Step<Call>>) {
    let why = match scope.snapshot.stranger.as_deref() {
        _ if scope.snapshot.claim.vm != Vm::Proven => {
            format!("the provider knows no VM {}", scope.machine.spec.provider_id)
        }
        Some(stranger) if is_stale(scope, stranger) => return blocked_by(scope, stranger),
        Some(stranger) => format!("node {} belongs to another VM", name(stranger)),
        None => format!("there is no node with providerID {}", vm_id(scope.machine).unwrap_or_default()),
    };
    unhealthy(scope, None, &why)
}

/// A Node that exists and cannot be read says nothing about its health.
fn unreadable(scope: &Scope<'_>, text: &str) -> Stage {
    let (kind, reason) = (conditions::machine::NODE_READABLE, unreadable::NODE);
    let step = scope.status().condition(kind, false, reason, text).step();
    Stage::reporting("the machine's node cannot be read", step, scope.warning(reason, text)).and_wait(reason, text)
}

/// As in machine-controller-manager, to delete a Node is to delete its Machine, if the budget permits. The Node's finalizer
/// keeps it until then.
fn node_deleted(scope: &Scope<'_>, node: &Node) -> Stage {
    let Err(held) = budget::permit(scope) else {
        return Stage::step(FAILURE_REPORTED, failure_status(scope, Some(node)))
            .then("is its node really being deleted?", Step::confirm_unchanged(TARGET, node))
            .then("its node is being deleted", Step::delete(CONTROL, scope.machine))
            .telling(scope.normal(reasons::machine::NODE_DELETED, format!("node {} was deleted", name(node))));
    };
    let text = |why: String| format!("node {} is being deleted; {why}", name(node));
    let (kind, status) = (conditions::machine::REMEDIATION_ALLOWED, text(held.status));
    let draft = scope.status().node_conditions(Some(node)).condition(kind, false, HELD_BACK, status);
    Stage::step("the machine waits for its replacement", draft.step())
        .and_wait(HELD_BACK, text(held.message))
        .waking_at(held.until)
}

/// Brings Node and Machine in step, beside the status, which must not depend on whether the Node can be written.
fn with_node_sync(stage: Stage, scope: &Scope<'_>, node: &Node, status: Option<Step<Call>>) -> Stage {
    let machine = scope.machine;
    let sync = node_sync::sync(machine, node);
    let capacity = virtual_capacity::sync(scope.snapshot.machine_class.as_deref(), node);
    let to_node = if sync.node.0.is_empty() { capacity.node } else { sync.node };
    // Not beside the status, which carries the Machine's version.
    let own = Step::edit(CONTROL, machine, sync.machine).filter(|_| status.is_none());
    stage.side_by_side([
        ("the node's health shows in the machine", status),
        ("the node lacks what its machine gives it", Step::edit(TARGET, node, to_node)),
        ("the node lacks capacity that its class adds", Step::edit_status(TARGET, node, capacity.status)),
        ("the machine remembers its node, and what that gets", own),
    ])
}

fn healthy(scope: &Scope<'_>, node: &Node) -> (Stage, Option<Step<Call>>) {
    let machine = scope.machine;
    let draft = scope.status().node_conditions(Some(node)).not_held().without(conditions::machine::NODE_READABLE);
    match machine.phase() {
        MachinePhase::Running => {
            // When the provider shows all that it has created.
            let latest = scope.context.outcomes.latest();
            let consistent = latest.and_then(|latest| scope.pause_end(latest, scope.driver.consistency));
            let mut stage = Stage::default().forgetting_notes().waking_at(consistent);
            // Drop the outcomes of the calls that created thousands of Running machines, to bound memory.
            stage.plan.forgets_outcomes = consistent.is_none();
            return (stage, draft.step());
        }
        MachinePhase::Pending if lacks_critical_components(node) => {
            let text = "the node is ready, but its critical components are not: a taint says so";
            return pending(scope, Some(node), ("CriticalComponentsNotReady", text));
        }
        _ => {}
    }
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let is_first = operation.is_none_or(|operation| {
        operation.operation_type == OperationType::Create && operation.state != OperationState::Successful
    });
    let (stage, kind, verb) = if is_first {
        (joined(scope, node), OperationType::Create, "joined")
    } else {
        let event = scope.normal(reasons::machine::HEALTHY, format!("node {} is healthy again", name(node)));
        (Stage::default().telling(event), OperationType::HealthCheck, "re-joined")
    };
    let text = format!("Machine {} successfully {verb} the cluster", name(machine));
    let draft = draft
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .condition(conditions::machine::NODE_JOINED, true, JOINED, joined_as(machine, node))
        .without(conditions::machine::CONFIGURATION_VALID);
    (stage, draft.step())
}

fn joined(scope: &Scope<'_>, node: &Node) -> Stage {
    let (machine, now) = (scope.machine, scope.now());
    let class = scope.snapshot.class.as_ref().ok().filter(|class| token::is_used(class));
    let drop = class.map(|class| Step::Call(Provider::of(scope, class).call(Verb::DropToken)));
    let event = scope.normal(reasons::machine::JOINED, format!("node {} is ready", name(node)));
    let mut stage = Stage::step("the node has joined: its token is of no more use", drop).telling(event);
    let provisioned = since(machine, conditions::machine::INSTANCE_PROVISIONED).unwrap_or(now);
    stage.plan.spans = vec![trace::stage(machine, "boot and join", provisioned, now), trace::created(machine, now)];
    stage
}

fn unhealthy(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
    match scope.machine.phase() {
        // A Machine of another manager, or of one without a target cluster, was in use as well.
        MachinePhase::Running | MachinePhase::Available | MachinePhase::Terminating => doubted(scope, node, why),
        // The in-place update of another manager: nobody goes on with it.
        MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed => unknown(scope, node, why),
        MachinePhase::Pending => pending(scope, node, ("Joining", why)),
        _ => (Stage::default(), unhealthy_status(scope, node).not_held().step()),
    }
}

fn unhealthy_status<'a>(scope: &Scope<'a>, node: Option<&Node>) -> StatusDraft<'a> {
    scope.status().node_conditions(node).without(conditions::machine::NODE_READABLE)
}

/// A Running Machine becomes Unknown, unless the report is older than our connection.
fn doubted(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
    let (machine, now, connected) = (scope.machine, scope.now(), scope.context.connected_since);
    let draft = unhealthy_status(scope, node).not_held();
    if let Some(until) = node.and_then(|node| ignored_until(node, connected, now)) {
        let text = format!(
            "{why}, but that was reported before this manager led, or while an API server was away; it counts from \
             {until:.0}, or with a new report"
        );
        return (Stage::waiting_until(until, "ReportAwaited", text).noting(Note::Unhealthy), draft.step());
    }
    if let Some(until) = patience(scope, node) {
        return (Stage::waiting_until(until, "Unhealthy", why).noting(Note::Unhealthy), None);
    }
    let deadline = Deadline::of(scope, node, now, None);
    let text = deadline.map_or(why.to_owned(), |deadline| deadline.text(why));
    let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(machine));
    let draft = deadline.into_iter().fold(draft, StatusDraft::health_deadline);
    let draft = checking(draft.phase(MachinePhase::Unknown).timeout_active(true), text);
    (Stage::default().telling(scope.warning(reasons::machine::UNHEALTHY, why)), draft.step())
}

/// Until when the trouble of a Node may pass without a word. A process that starts has forgotten when it began, and waits anew.
fn patience(scope: &Scope<'_>, node: Option<&Node>) -> Option<Timestamp> {
    let (now, machine) = (scope.now(), scope.machine);
    let begun = node.map(|_| scope.context.noted_since(&Note::Unhealthy).unwrap_or(now))?;
    let timeout = scope.settings.health_deadline(machine, now).map(|end| end.duration_since(now));
    let patience = timeout.map_or(PATIENCE, |timeout| PATIENCE.min(timeout / 10));
    begun.checked_add(patience).ok().filter(|until| *until > now)
}

/// A Pending Machine waits for its Node until its creation timeout is over; then it becomes Failed.
fn pending(scope: &Scope<'_>, node: Option<&Node>, (reason, why): (&'static str, &str)) -> (Stage, Option<Step<Call>>) {
    let (machine, draft) = (scope.machine, unhealthy_status(scope, node).not_held());
    if scope.is_creation_overdue() {
        let timeout = scope.settings.creation_timeout_of(machine);
        let text = format!("Machine {} failed to join the cluster in {timeout:?}. {why}", name(machine));
        let stage = Stage::default().telling(scope.warning(reasons::machine::FAILED, text.as_str()));
        let node = noted_node(machine).unwrap_or_default();
        let draft = draft.condition(conditions::machine::NODE_JOINED, false, JOIN_TIMEOUT, node);
        return (stage, failed(draft, OperationType::Create, text).step());
    }
    let step = draft.step();
    // A Node that starts changes its conditions several times within a second or two: one copy is enough.
    let next = scope.context.status_written.and_then(|written| scope.pause_end(written, COPY_PAUSE));
    let next = next.filter(|_| step.is_some());
    let deadline = scope.creation_deadline();
    let text = deadline.map_or(why.to_owned(), |at| format!("{why}; without a healthy node it is given up at {at:.0}"));
    let stage = Stage::waiting(reason, text).waking_at(deadline).waking_at(next);
    (stage, step.filter(|_| next.is_none()))
}

/// Whether a new VM came up under the name of a Node that was there before: its kubelet reports on that Node, whose providerID
/// stays the other VM's, so that it would never be the Machine's. One that is about to go is waited for.
///
/// machine-controller-manager, too, leaves out a Node with the Machine's own name.
fn is_stale(scope: &Scope<'_>, stranger: &Node) -> bool {
    let machine = scope.machine;
    let is_going = is_deleting(stranger) || stranger.is_terminating();
    *machine.phase() == MachinePhase::Pending
        && !is_going
        && name(stranger) != name(machine)
        && stranger.metadata.creation_timestamp < machine.metadata.creation_timestamp
}

/// The Machine is replaced at once: another VM has another name, or, once this one is gone, the stale Node goes, too.
fn blocked_by(scope: &Scope<'_>, stranger: &Node) -> (Stage, Option<Step<Call>>) {
    let id = stranger.provider_id().unwrap_or_default();
    let text = format!(
        "VM using old node obj: node {} is older than machine {}, and belongs to VM {id}",
        name(stranger),
        name(scope.machine)
    );
    let confirm = Step::confirm_unchanged(TARGET, stranger);
    let stage = Stage::step("a node that is gone by now is in nobody's way", confirm);
    let draft = unhealthy_status(scope, None).not_held();
    let event = scope.warning(reasons::machine::FAILED, text.as_str());
    (stage.telling(event), failed(draft, OperationType::Create, text).step())
}

/// An Unknown Machine becomes Failed once its health timeout is over, if the replacement budget permits it.
fn unknown(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
    let since = phase_since(scope.machine);
    let deadline = |since, gone| Deadline::of(scope, node, since, gone);
    let Some((since, timeout)) = since.and_then(|since| Some((since, deadline(since, None)?))) else {
        let stage = Stage::waiting("Unhealthy", format!("{why}; its health timeout is switched off"));
        let draft = unhealthy_status(scope, node).not_held();
        return (stage, draft.without(conditions::machine::HEALTH_TIMEOUT).step());
    };
    let (probe, gone) = vm::probe(scope, timeout.at > scope.now());
    let deadline = gone.and_then(|_| deadline(since, gone)).unwrap_or(timeout);
    let (stage, step) = unknown_until(scope, node, why, (since, deadline));
    (probe.and(stage), step)
}

fn unknown_until(
    scope: &Scope<'_>,
    node: Option<&Node>,
    why: &str,
    (since, deadline): (Timestamp, Deadline),
) -> (Stage, Option<Step<Call>>) {
    let (machine, draft) = (scope.machine, unhealthy_status(scope, node));
    let text = deadline.text(why);
    match deadline.progress(scope, since) {
        Progress::Unannounced => {
            let event = scope.warning(reasons::machine::UNHEALTHY, text.as_str());
            let stage = Stage::waiting_until(deadline.at, deadline.reason(), text.as_str()).telling(event);
            let text = format!("Machine {} is unhealthy. {text}", name(machine));
            return (stage, checking(draft.not_held().health_deadline(deadline), text).step());
        }
        Progress::Until(at) => return (Stage::waiting_until(at, deadline.reason(), text), draft.not_held().step()),
        Progress::Over => {}
    }
    if let Err(held) = budget::permit(scope) {
        let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.status);
        let draft = draft.condition(conditions::machine::REMEDIATION_ALLOWED, false, HELD_BACK, text.as_str());
        let step = checking(draft, text).step();
        let event = budget::brake_event(scope).filter(|_| step.is_some());
        let stage = Stage::waiting(HELD_BACK, held.message).waking_at(held.until);
        return (event.into_iter().fold(stage, Stage::telling), step);
    }
    given_up(scope, node, why)
}

fn given_up(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
    let (machine, draft) = (scope.machine, unhealthy_status(scope, node).not_held());
    let failure = failure_status(scope, node);
    let is_reported = failure.is_some();
    let stage = Stage::step(FAILURE_REPORTED, failure).and(confirmed(scope, node));
    // The phase is written by the next plan, because each status carries the Machine's version.
    if is_reported {
        return (stage, None);
    }
    if !stage.is_over {
        return (stage, draft.step());
    }
    let since = phase_since(machine).unwrap_or(scope.now());
    let text = format!("Machine {} health checks failing since {since:.0}. {why}", name(machine));
    let event = scope.warning(reasons::machine::FAILED, text.as_str());
    (stage.telling(event), failed(draft, OperationType::HealthCheck, text).step())
}

fn checking(draft: StatusDraft<'_>, text: String) -> StatusDraft<'_> {
    draft.operation(OperationType::HealthCheck, OperationState::Processing, text, None)
}

fn failed(draft: StatusDraft<'_>, kind: OperationType, text: String) -> StatusDraft<'_> {
    draft.phase(MachinePhase::Failed).timeout_active(false).operation(kind, OperationState::Failed, text, None)
}

fn failure_status(scope: &Scope<'_>, node: Option<&Node>) -> Option<Step<Call>> {
    let failure = scope.failure_to_report()?;
    let text = format!("Machine {} is to be replaced, and a request fails: {failure}", name(scope.machine));
    checking(scope.status().node_conditions(node).not_held(), text).step()
}

/// The API server itself confirms what the cache says about the Node of a Machine that is given up.
fn confirmed(scope: &Scope<'_>, node: Option<&Node>) -> Stage {
    if let Some(node) = node {
        let confirm = Step::confirm_unchanged(TARGET, node);
        return Stage::over().then("a node that has changed is judged again", confirm);
    }
    // If the VM is not proven, the provider has said that there is none.
    let name = node_name(scope.machine).filter(|_| scope.snapshot.claim.vm == Vm::Proven);
    let Some(name) = name else { return Stage::over() };
    let text = match scope.snapshot.unseen_node {
        Lookup::Missing => None,
        Lookup::Found(_) => Some(format!("node {name} is there again, and is yet to show in the cache")),
        _ => Some(format!("the API server is asked whether there is a node {name}")),
    };
    let stage = text.map_or_else(Stage::over, |text| Stage::waiting("LookingForNode", text));
    stage.scoped_watch(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}
