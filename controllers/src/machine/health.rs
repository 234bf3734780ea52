//! Is a Machine healthy, and when is it given up?
//!
//! An unhealthy Machine becomes `Unknown` and, after its health timeout, `Failed`; then its MachineSet replaces it. Reports
//! from before our connection to the API servers prove nothing at first: no kubelet could report while these were away.
//!
//! # Guarantees
//! * A Machine is Failed at the time that its condition `HealthTimeout` and its last operation name: the end of its health
//!   timeout, but, unless its Node was reported on since, no earlier than six minutes after this process began to lead or was
//!   connected again. A Running Machine becomes Unknown at most that much late.
//! * Before that the Node is read from the API server. If it has changed, the Machine is judged again.
//!
//! # Caveats
//! * If its watch is a dead connection, a Node's report is seen up to four minutes late.
//! * The replacement budget ([`budget`](super::budget)), an unreadable Node, or a VM that is not proven to be the Machine's
//!   may hold a Machine back for longer; its status says so.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{
    Machine, MachinePhase, OperationState, OperationType, conditions,
    reasons::{self, unreadable},
    taints,
};
use nodewright_runtime::{
    cache::Lookup,
    clip::clip_to,
    object::{is_deleting, name},
    plan::Step,
    scoped_watch::ScopedWatch,
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
    token, trace,
};
use crate::shared::{
    CONTROL, TARGET,
    node::Node,
    ownership::{JOIN_TIMEOUT, JOINED, node_name, noted_node, vm_id},
};

/// A live kubelet reports within this time: it posts its status at least every five minutes (`nodeStatusReportFrequency`).
const REPORTS_WITHIN: SignedDuration = SignedDuration::from_mins(6);
/// A deadline that moves by no more is not written again.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(5);
/// The most bytes of what a Node says about its health: more follows it in statuses.
const LONGEST_CAUSE: usize = 512;
/// How often the conditions of a Node that is still starting are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
const FAILURE_REPORTED: &str = "the machine says which request fails";
const HELD_BACK: &str = "ReplacementHeld";

pub(super) fn judged(scope: &Scope<'_>) -> Stage {
    let snapshot = scope.snapshot;
    if let Some(text) = &snapshot.unreadable_node {
        return unreadable(scope, text);
    }
    let Some(node) = snapshot.node.as_deref() else {
        let why = match &snapshot.stranger {
            _ if snapshot.claim.vm != Vm::Proven => {
                format!("the provider knows no VM {}", scope.machine.spec.provider_id)
            }
            Some(stranger) => format!("node {} belongs to another VM", name(stranger.as_ref())),
            None => format!("there is no node with providerID {}", vm_id(scope.machine).unwrap_or_default()),
        };
        let (stage, step) = unhealthy(scope, None, &why);
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
            .then("its node is being deleted", Step::delete(CONTROL, scope.machine));
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
    // Not beside the status, which carries the Machine's version.
    let own = Step::edit(CONTROL, machine, sync.machine).filter(|_| status.is_none());
    stage.side_by_side([
        ("the node's health shows in the machine", status),
        ("the node lacks what its machine gives it", Step::edit(TARGET, node, sync.node)),
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
            let consistent = latest.and_then(|latest| scope.pause_end(latest, scope.driver.consistency()));
            let mut stage = Stage::default().waking_at(consistent);
            // Drop the outcomes of the calls that created thousands of Running machines, to bound memory.
            stage.plan.forgets_outcomes = consistent.is_none();
            return (stage, draft.step());
        }
        MachinePhase::Pending if lacks_critical_components(node) => {
            let text = "the node is ready, but its critical components are not: a taint says so";
            let stage = Stage::waiting("CriticalComponentsNotReady", text).waking_at(scope.creation_deadline());
            return (stage, draft.step());
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
        MachinePhase::Running => doubted(scope, node, why),
        MachinePhase::Unknown => unknown(scope, node, why),
        MachinePhase::Pending => pending(scope, node, why),
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
        return (Stage::waiting_until(until, "ReportAwaited", text), draft.step());
    }
    let timeout = scope.settings.health_deadline(machine, now);
    let deadline = timeout.map(|timeout| Deadline::of(timeout, node, connected));
    let text = deadline.map_or(why.to_owned(), |deadline| deadline.text(why));
    let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(machine));
    let draft = deadline.into_iter().fold(draft, StatusDraft::health_deadline);
    let draft = checking(draft.phase(MachinePhase::Unknown).timeout_active(true), text);
    (Stage::default().telling(scope.warning(reasons::machine::UNHEALTHY, why)), draft.step())
}

/// A Pending Machine waits for its Node until its creation timeout is over; then it becomes Failed.
fn pending(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
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
    let stage = Stage::waiting("Joining", why).waking_at(scope.creation_deadline()).waking_at(next);
    (stage, step.filter(|_| next.is_none()))
}

/// An Unknown Machine becomes Failed once its health timeout is over, if the replacement budget permits it.
fn unknown(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> (Stage, Option<Step<Call>>) {
    let (machine, draft) = (scope.machine, unhealthy_status(scope, node));
    let timeout = phase_since(machine).and_then(|since| scope.settings.health_deadline(machine, since));
    let Some(timeout) = timeout else {
        let stage = Stage::waiting("Unhealthy", format!("{why}; its health timeout is switched off"));
        return (stage, draft.not_held().without(conditions::machine::HEALTH_TIMEOUT).step());
    };
    let deadline = Deadline::of(timeout, node, scope.context.connected_since);
    if deadline.at > scope.now() {
        let text = deadline.text(why);
        let stage = Stage::waiting_until(deadline.at, deadline.reason(), text.as_str());
        if deadline.is_announced(machine) {
            return (stage, draft.not_held().step());
        }
        let event = scope.warning(reasons::machine::UNHEALTHY, text.as_str());
        let text = format!("Machine {} is unhealthy. {text}", name(machine));
        return (stage.telling(event), checking(draft.not_held().health_deadline(deadline), text).step());
    }
    if let Err(held) = budget::permit(scope) {
        let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.status);
        let draft = draft.condition(conditions::machine::REMEDIATION_ALLOWED, false, HELD_BACK, text.as_str());
        return (Stage::waiting(HELD_BACK, held.message).waking_at(held.until), checking(draft, text).step());
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

/// Whether the Machine has a healthy Node: then nothing that went wrong before matters.
pub(super) fn has_healthy_node(scope: &Scope<'_>) -> bool {
    scope.snapshot.node.as_deref().is_some_and(|node| !is_deleting(node) && unhealthy_because(scope, node).is_none())
}

/// Why a Node is unhealthy, if it is. As in machine-controller-manager, Ready has to be True, and each listed condition that
/// the Node has has to be False; Unknown counts as unhealthy.
pub(super) fn unhealthy_because(scope: &Scope<'_>, node: &Node) -> Option<String> {
    let describe = |condition: &NodeCondition| {
        let reason = condition.reason.as_deref().unwrap_or_default();
        clip_to(LONGEST_CAUSE, format!("node condition {} is {} ({reason})", condition.type_, condition.status))
    };
    let Some(ready) = ready(node) else {
        return Some("the node has no condition Ready yet".to_owned());
    };
    if ready.status != "True" {
        return Some(describe(ready));
    }
    let is_listed = |condition: &&NodeCondition| match &scope.machine.spec.node_conditions {
        Some(list) => list.split(',').any(|kind| kind.trim() == condition.type_),
        None => scope.settings.node_conditions.contains(&condition.type_),
    };
    node.conditions().iter().filter(is_listed).find(|condition| condition.status != "False").map(describe)
}

pub(super) fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let ready = ready(node)?;
    ready.last_transition_time.as_ref().filter(|_| ready.status != "True").map(|time| time.0)
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.conditions().iter().find(|condition| condition.type_ == conditions::node::READY)
}

fn lacks_critical_components(node: &Node) -> bool {
    let all = node.taints();
    all.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY && taint.effect == "NoSchedule")
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

fn is_reported_since(node: &Node, since: Timestamp) -> bool {
    let ready = ready(node);
    let told = ready.and_then(|it| it.last_heartbeat_time.as_ref().max(it.last_transition_time.as_ref()));
    told.is_some_and(|told| told.0 > since)
}

/// Ignore an unhealthy report that is older than our connection, until this time; `None` once it is over.
fn ignored_until(node: &Node, connected: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = connected.checked_add(REPORTS_WITHIN).ok()?;
    (now < until && !is_reported_since(node, connected)).then_some(until)
}

/// When a Machine is given up, and whether that is later than the end of its health timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadline {
    at: Timestamp,
    is_extended: bool,
}

impl Deadline {
    /// While all reports on the Node are older than our connection, a live kubelet gets the time to report.
    fn of(timeout: Timestamp, node: Option<&Node>, connected: Timestamp) -> Self {
        if node.is_some_and(|node| is_reported_since(node, connected)) {
            return Self { at: timeout, is_extended: false };
        }
        let at = timeout.max(connected.saturating_add(REPORTS_WITHIN).unwrap_or(timeout));
        Self { at, is_extended: at > timeout }
    }

    fn reason(self) -> &'static str {
        if self.is_extended { "ReportAwaited" } else { "Unhealthy" }
    }

    fn text(self, why: &str) -> String {
        let (at, outdated) = (self.at, "that was reported before this manager led, or while an API server was away");
        if self.is_extended {
            format!("{why}; {outdated}: without a new report it is given up at {at:.0}")
        } else {
            format!("{why}; it is given up at {at:.0}")
        }
    }

    /// Whether the status of a Machine names this time already. Clocks differ a little, so a few seconds do not count.
    fn is_announced(self, machine: &Machine) -> bool {
        let noted = machine.condition(conditions::machine::HEALTH_TIMEOUT);
        let noted: Option<Timestamp> = noted.and_then(|noted| noted.message.as_deref()?.parse().ok());
        noted.is_some_and(|noted| noted.duration_since(self.at).abs() <= SAME_TIME)
    }
}

impl StatusDraft<'_> {
    fn health_deadline(self, deadline: Deadline) -> Self {
        self.condition(conditions::machine::HEALTH_TIMEOUT, true, deadline.reason(), format!("{:.0}", deadline.at))
    }
}
