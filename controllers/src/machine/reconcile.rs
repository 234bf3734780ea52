//! What a Machine does next: the one place that makes plans of decisions.
//!
//! ```text
//! caches ── snapshot ─► Scope ─┬─ proof ─────► Proof       whose VM is it?           ─┐
//!                              ├─ provision ─► Provision   what does its VM lack?     ├─► Plan
//!                              ├─ health ────► Health      is it given up, and when?  │
//!                              └─ terminate ─► Stage       what is left to delete?   ─┘
//! ```

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions, finalizers, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::{Event, EventKind},
    finalizers as finalizer,
    look::Look,
    object::{has_finalizer, is_deleting, name},
    plan::{Plan, Planned, Step},
};

use super::{
    calls::{Call, Verb},
    claim::{self, Vm, joined_as},
    health::{self, Confirmation, GiveUp, Health, Problem, Recovery, Remedy},
    node_sync,
    owned::Link,
    proof::{self, Proof},
    provider::{Provider, Retry},
    provision::{self, Provision},
    scope::Scope,
    snapshot::node_named,
    status::{StatusDraft, phase_since, since},
    terminate::{self, Stage},
    token, trace,
};
use crate::shared::clusters::{CONTROL, TARGET};
use crate::shared::{
    class_secrets,
    node::Node,
    ownership::{JOIN_TIMEOUT, JOINED, noted_node, vm_id},
};

/// How often the conditions of a Node that is still starting are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// Why a status is written that names a request which fails.
const FAILURE_REPORTED: &str = "the machine says which request fails";
/// The reason of a wait for the replacement budget.
const HELD_BACK: &str = "ReplacementHeld";

/// Plans for a Machine.
pub(super) fn plan(scope: &Scope<'_>) -> Plan<Call> {
    let mut plan = match scope.snapshot.secret_pending() {
        Some(message) => waiting(class_secrets::PENDING, message),
        None if is_deleting(scope.machine) => terminate(scope),
        None => maintain(scope),
    };
    plan.looks.extend(scope.snapshot.looks.iter().cloned());
    plan
}

/// Plans for a Machine that is not being deleted.
fn maintain(scope: &Scope<'_>) -> Plan<Call> {
    let (machine, claim) = (scope.machine, &scope.snapshot.claim);
    let mut plan = Plan { traceparent: Some(trace::current(machine)), ..Plan::idle() };
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("the machine has to outlive its VM", Step::edit(CONTROL, machine, add));
        return plan;
    }
    append(&mut plan, claim_reported(scope));
    if !plan.is_idle() {
        return plan;
    }
    let is_unprovisioned = provision::is_unprovisioned(machine.phase());
    let is_ambiguous = claim.is_ambiguous();
    let is_open = claim.vm == Vm::Unproven && (is_ambiguous || (!is_unprovisioned && scope.settings.has_target));
    if is_open {
        let proof = proof::prove(scope);
        let is_judged = matches!(proof, Proof::NotFound { contradicted_by: None, .. });
        append(&mut plan, proof_plan(scope, proof));
        if !is_judged {
            return plan;
        }
    }
    if is_ambiguous {
        return plan;
    }
    let is_healthy = health::has_healthy_node(scope);
    if *machine.phase() == MachinePhase::Failed && !is_healthy {
        plan.wait("Failed", "the machine set deletes and replaces a machine in phase Failed");
        return plan;
    }
    let rest = match vm_id(machine) {
        None => provision_plan(scope, provision::create(scope)),
        Some(_) if is_unprovisioned && !is_healthy => provision_plan(scope, provision::initialize(scope)),
        Some(_) if scope.settings.has_target => health_plan(scope, health::check(scope)),
        Some(_) => Plan::idle(),
    };
    append(&mut plan, rest);
    plan
}

/// Plans for a Machine that is being deleted.
fn terminate(scope: &Scope<'_>) -> Plan<Call> {
    let machine = scope.machine;
    let mut plan = Plan { traceparent: Some(trace::current(machine)), ..Plan::idle() };
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return plan;
    }
    if *machine.phase() != MachinePhase::Terminating {
        append(&mut plan, termination_begun(scope));
        return plan;
    }
    append(&mut plan, stage_plan(terminate::failure_reported(scope)));
    if !plan.is_idle() {
        return plan;
    }
    append(&mut plan, claim_reported(scope));
    if !plan.is_idle() {
        return plan;
    }
    for stage in terminate::STAGES {
        let stage = stage(scope);
        let is_over = stage.is_over;
        append(&mut plan, stage_plan(stage));
        if !is_over {
            return plan;
        }
    }
    let remove = finalizer::remove(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    let remove = remove.and_then(|remove| Step::edit(CONTROL, machine, remove));
    plan.then("nothing is left of the machine", remove);
    plan.event(scope.event(EventKind::Normal, reasons::machine::TERMINATED, "nothing is left"));
    plan.spans.extend(terminate::spans(scope));
    plan
}

/// Adds what another decision brings to a plan: its stages come after those that are there.
fn append(plan: &mut Plan<Call>, more: Plan<Call>) {
    plan.stages.extend(more.stages);
    plan.waits.extend(more.waits);
    plan.events.extend(more.events);
    plan.spans.extend(more.spans);
    plan.looks.extend(more.looks);
    plan.forgets_outcomes |= more.forgets_outcomes;
    wake(plan, more.wake);
}

fn wake(plan: &mut Plan<Call>, at: Option<Timestamp>) {
    if let Some(at) = at {
        plan.wake_at(at);
    }
}

fn waiting(reason: &'static str, message: impl Into<String>) -> Plan<Call> {
    let mut plan = Plan::idle();
    plan.wait(reason, message);
    plan
}

fn calling(why: &'static str, call: Call) -> Plan<Call> {
    let mut plan = Plan::idle();
    plan.then(why, Step::Call(call));
    plan
}

/// A write of the status, and an event if there is anything to write.
fn reporting(why: &'static str, step: Option<Step<Call>>, event: Event) -> Plan<Call> {
    let mut plan = Plan::idle();
    if step.is_some() {
        plan.then(why, step).event(event);
    }
    plan
}

fn stage_plan(stage: Stage) -> Plan<Call> {
    let Stage { is_over: _, steps, wait, wake, look, event } = stage;
    let (waits, looks, events) = (wait.into_iter().collect(), look.into_iter().collect(), event.into_iter().collect());
    let mut plan = Plan { waits, looks, events, wake, ..Plan::idle() };
    plan.stage(steps);
    plan
}

fn termination_begun(scope: &Scope<'_>) -> Plan<Call> {
    let (kind, state) = (OperationType::Delete, OperationState::Processing);
    let draft = scope
        .status()
        .phase(MachinePhase::Terminating)
        .timeout_active(false)
        .not_preserved()
        .not_held()
        .operation(kind, state, operations::GET_VM_STATUS, None);
    let text = if scope.snapshot.claim.is_settled() {
        "the node is drained, then the VM is removed"
    } else {
        "the machine is being deleted; only a VM that is proven to be its own is removed"
    };
    let mut plan = Plan::idle();
    plan.then("the machine is being deleted", draft.step(scope.machine));
    plan.event(scope.event(EventKind::Normal, reasons::machine::TERMINATING, text));
    plan
}

/// Says what is wrong with the claim of a Machine to its VM, or that nothing is any more.
fn claim_reported(scope: &Scope<'_>) -> Plan<Call> {
    let (machine, kind) = (scope.machine, conditions::machine::CONFIGURATION_VALID);
    let mut plan = Plan::idle();
    if let Some((reason, message)) = claim::problem(machine, &scope.snapshot.claim) {
        let draft = scope.status().condition(kind, false, reason, message.as_str());
        let event = scope.event(EventKind::Warning, reason, message.as_str());
        append(&mut plan, reporting("the machine's claim is not in order", draft.step(machine), event));
        plan.wait(reason, message);
    } else if claim::names_problem(machine) {
        plan.then("the machine's claim is in order again", scope.status().without(kind).step(machine));
    }
    plan
}

fn proof_plan(scope: &Scope<'_>, proof: Proof<'_>) -> Plan<Call> {
    let machine = scope.machine;
    match proof {
        Proof::Missing(provision) => provision_plan(scope, provision),
        Proof::Failed { error, due } => {
            let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
            let draft = scope.status().condition(kind, false, code, error.message.clone());
            let message = format!("{error}; until it says whose VM it is nothing is done; next attempt at {due}");
            let mut plan = waiting("ProviderFailed", message);
            plan.then("the provider has not said whose VM it is", draft.step(machine)).wake_at(due);
            plan
        }
        Proof::NotFound { again, contradicted_by } => {
            let mut plan = Plan::idle();
            match again {
                Retry::Now(call) => plan.then("is there still no VM?", Step::Call(call)),
                Retry::At(due) => plan.wake_at(due),
            };
            if let Some(node) = contradicted_by {
                let text = format!(
                    "the provider knows no VM {}, and yet node {} with its providerID is ready: check the credentials of the class",
                    vm_id(machine).unwrap_or_default(),
                    name(node)
                );
                plan.wait("VMNotFound", text);
            }
            plan
        }
        Proof::Proven(instance) => {
            let draft = scope.status().proven(machine, instance);
            let has_problem = claim::has_problem(machine, &scope.snapshot.claim);
            let draft = if has_problem { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
            let mut plan = Plan::idle();
            plan.then("the VM is the machine's", draft.step(machine));
            plan
        }
    }
}

fn provision_plan(scope: &Scope<'_>, provision: Provision<'_>) -> Plan<Call> {
    let machine = scope.machine;
    match provision {
        Provision::Wait(reason, message) => waiting(reason, message),
        Provision::Call(why, call) => calling(why, call),
        Provision::Invalid { reason, message } => {
            let step = provision::invalid_status(scope, reason, &message).and_then(|draft| draft.step(machine));
            let event = scope.event(EventKind::Warning, reason, message.as_str());
            let mut plan = reporting("the machine's class cannot be used", step, event);
            plan.wait(reason, message);
            plan
        }
        Provision::Failed { error, due } => {
            let step = provision::failed_status(scope, error).step(machine);
            let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
            let event = scope.event(EventKind::Warning, reasons::machine::FAILED_PROVISION, text);
            let mut plan = reporting("the provider refused", step, event);
            plan.wait("ProviderFailed", format!("{error}; next attempt at {due}")).wake_at(due);
            wake(&mut plan, scope.creation_deadline());
            plan
        }
        Provision::Foreign { error, due } => {
            let (step, reason) =
                (provision::foreign_status(scope, error).step(machine), reasons::machine::PROVIDER_ID_MISMATCH);
            let event = scope.event(EventKind::Warning, reason, error.message.as_str());
            let mut plan = reporting("the VM is another's", step, event);
            plan.wait(reason, error.message.as_str()).wake_at(due);
            wake(&mut plan, scope.creation_deadline());
            plan
        }
        Provision::Retired { call, due } => {
            let mut plan = waiting("Retired", "the machine's name has had its life: its set deletes it");
            match due {
                Some(due) => plan.wake_at(due),
                None => plan.then("is the name retired?", Step::Call(call)),
            };
            plan
        }
        Provision::Link(instance) => {
            let link = Link::of(machine, instance, scope.settings.has_target);
            let mut plan = Plan::idle();
            plan.then("the VM exists", Step::apply_pinned(CONTROL, machine, &link));
            plan
        }
        Provision::Done(evidence) => {
            let (draft, event) = provision::done_status(scope, evidence);
            let mut plan = Plan::idle();
            plan.then("the VM is made; its node has yet to join", draft.step(machine)).event(event);
            plan
        }
    }
}

fn health_plan(scope: &Scope<'_>, health: Health<'_>) -> Plan<Call> {
    let machine = scope.machine;
    match health {
        Health::Unreadable(text) => {
            let (kind, reason) = (conditions::machine::NODE_READABLE, unreadable::NODE);
            let step = scope.status().condition(kind, false, reason, text).step(machine);
            let event = scope.event(EventKind::Warning, reason, text);
            let mut plan = reporting("the machine's node cannot be read", step, event);
            plan.wait(reason, text);
            plan
        }
        Health::NodeDeleted(node, Ok(())) => {
            // As in machine-controller-manager: to delete a Node is to delete its Machine. The Node's finalizer keeps it until then.
            let mut plan = Plan::idle();
            plan.then(FAILURE_REPORTED, failure_status(scope, Some(node)));
            plan.then("is its node really being deleted?", Step::confirm_unchanged(TARGET, node));
            plan.then("its node is being deleted", Step::delete(CONTROL, machine));
            plan
        }
        Health::NodeDeleted(node, Err(held)) => {
            let mut plan = waiting(HELD_BACK, format!("node {} is being deleted; {}", name(node), held.message));
            wake(&mut plan, held.until);
            let (kind, text) = (
                conditions::machine::REMEDIATION_ALLOWED,
                format!("node {} is being deleted; {}", name(node), held.status),
            );
            let draft = scope.status().node_conditions(Some(node)).condition(kind, false, HELD_BACK, text);
            plan.then("the machine waits for its replacement", draft.step(machine));
            plan
        }
        Health::Healthy(node, recovery) => {
            let (mut plan, step) = recovery_plan(scope, node, &recovery);
            plan.stage(node_steps(scope, node, step));
            plan
        }
        Health::Unhealthy(problem, remedy) => {
            let (mut plan, step) = remedy_plan(scope, &problem, remedy);
            match problem.node {
                Some(node) => plan.stage(node_steps(scope, node, step)),
                None => plan.then("the machine has no node", step),
            };
            plan
        }
    }
}

/// Brings Node and Machine in step, beside the status. The status comes first: it must not depend on whether the Node can be
/// written.
fn node_steps(scope: &Scope<'_>, node: &Node, status: Option<Step<Call>>) -> impl Iterator<Item = Planned<Call>> {
    let machine = scope.machine;
    let sync = node_sync::sync(machine, node);
    // Not beside the status, which carries the Machine's version.
    let own = Step::edit(CONTROL, machine, sync.machine).filter(|_| status.is_none());
    let steps = [
        ("the node's health shows in the machine", status),
        ("the node lacks what its machine gives it", Step::edit(TARGET, node, sync.node)),
        ("the machine remembers its node, and what that gets", own),
    ];
    steps.into_iter().filter_map(|(why, step)| Some(Planned { why: why.into(), step: step? }))
}

/// What follows from a healthy Node, and the status that shows it.
fn recovery_plan(scope: &Scope<'_>, node: &Node, recovery: &Recovery) -> (Plan<Call>, Option<Step<Call>>) {
    let machine = scope.machine;
    let draft = scope.status().node_conditions(Some(node)).not_held().without(conditions::machine::NODE_READABLE);
    let (plan, kind, text) = match recovery {
        // Drop the outcomes of the calls that created thousands of Running machines, to bound memory.
        Recovery::None(None) => return (Plan { forgets_outcomes: true, ..Plan::idle() }, draft.step(machine)),
        Recovery::None(consistent) => return (Plan { wake: *consistent, ..Plan::idle() }, draft.step(machine)),
        Recovery::ComponentsAwaited => {
            let text = "the node is ready, but its critical components are not: a taint says so";
            let mut plan = waiting("CriticalComponentsNotReady", text);
            wake(&mut plan, scope.creation_deadline());
            return (plan, draft.step(machine));
        }
        Recovery::Joined => (joined_plan(scope, node), OperationType::Create, "joined"),
        Recovery::Rejoined => {
            let text = format!("node {} is healthy again", name(node));
            let mut plan = Plan::idle();
            plan.event(scope.event(EventKind::Normal, reasons::machine::HEALTHY, text));
            (plan, OperationType::HealthCheck, "re-joined")
        }
    };
    let text = format!("Machine {} successfully {text} the cluster", name(machine));
    let draft = draft
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .condition(conditions::machine::NODE_JOINED, true, JOINED, joined_as(machine, node))
        .without(conditions::machine::CONFIGURATION_VALID);
    (plan, draft.step(machine))
}

/// Tells of a Machine whose Node is healthy for the first time, and revokes its bootstrap token.
fn joined_plan(scope: &Scope<'_>, node: &Node) -> Plan<Call> {
    let machine = scope.machine;
    let mut plan = Plan::idle();
    plan.event(scope.event(EventKind::Normal, reasons::machine::JOINED, format!("node {} is ready", name(node))));
    let provisioned = since(machine, conditions::machine::INSTANCE_PROVISIONED).unwrap_or(scope.now());
    plan.span(trace::stage(machine, "boot and join", provisioned, scope.now()));
    plan.span(trace::born(machine, scope.now()));
    if let Some(class) = scope.snapshot.class.as_ref().ok().filter(|class| token::is_used(class)) {
        let drop = Step::Call(Provider::of(scope, class).call(Verb::DropToken));
        plan.then("the node has joined: its token is of no more use", drop);
    }
    plan
}

/// What follows from an unhealthy or missing Node, and the status that shows it.
fn remedy_plan(scope: &Scope<'_>, problem: &Problem<'_>, remedy: Remedy) -> (Plan<Call>, Option<Step<Call>>) {
    let (machine, why) = (scope.machine, problem.why.as_str());
    let draft = scope.status().node_conditions(problem.node).without(conditions::machine::NODE_READABLE);
    let mut plan = Plan::idle();
    let draft = match remedy {
        Remedy::Unknown(give_up) => return give_up_plan(scope, problem, give_up, draft),
        Remedy::None => draft.not_held(),
        Remedy::AwaitReport(until) => {
            let text = format!(
                "{why}, but that was reported before this manager led, or while an API server was away; it counts from \
                 {until:.0}, or with a new report"
            );
            plan.wait_until(until, "ReportAwaited", text);
            draft.not_held()
        }
        Remedy::MarkUnknown(deadline) => {
            let text = deadline.map_or(why.to_owned(), |deadline| deadline.text(why));
            let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(machine));
            plan.event(scope.event(EventKind::Warning, reasons::machine::UNHEALTHY, why));
            let draft = deadline.into_iter().fold(draft.not_held(), StatusDraft::health_deadline);
            checking(draft.phase(MachinePhase::Unknown).timeout_active(true), text)
        }
        Remedy::AwaitJoin => {
            plan.wait("Joining", why);
            wake(&mut plan, scope.creation_deadline());
            let step = draft.not_held().step(machine);
            // A Node that starts changes its conditions several times within a second or two: one copy is enough.
            let next = scope.context.status_written.and_then(|written| written.checked_add(COPY_PAUSE).ok());
            return match next.filter(|next| step.is_some() && *next > scope.now()) {
                None => (plan, step),
                next => {
                    wake(&mut plan, next);
                    (plan, None)
                }
            };
        }
        Remedy::JoinTimeout => {
            let timeout = scope.settings.creation_timeout_of(machine);
            let text = format!("Machine {} failed to join the cluster in {timeout:?}. {why}", name(machine));
            plan.event(scope.event(EventKind::Warning, reasons::machine::FAILED, text.as_str()));
            let node = noted_node(machine).unwrap_or_default();
            let draft = draft.not_held().condition(conditions::machine::NODE_JOINED, false, JOIN_TIMEOUT, node);
            failed(draft, OperationType::Create, text)
        }
    };
    (plan, draft.step(machine))
}

/// What becomes of an Unknown Machine, and the status that shows it.
fn give_up_plan(
    scope: &Scope<'_>,
    problem: &Problem<'_>,
    give_up: GiveUp,
    draft: StatusDraft,
) -> (Plan<Call>, Option<Step<Call>>) {
    let (machine, why) = (scope.machine, problem.why.as_str());
    let mut plan = Plan::idle();
    let draft = match give_up {
        GiveUp::Held(held) => {
            plan.wait(HELD_BACK, held.message);
            wake(&mut plan, held.until);
            let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.status);
            let kind = conditions::machine::REMEDIATION_ALLOWED;
            checking(draft.condition(kind, false, HELD_BACK, text.as_str()), text)
        }
        GiveUp::Never => {
            plan.wait("Unhealthy", format!("{why}; its health timeout is switched off"));
            draft.not_held().without(conditions::machine::HEALTH_TIMEOUT)
        }
        GiveUp::Later(deadline) => {
            let text = deadline.text(why);
            plan.wait_until(deadline.at, deadline.reason(), text.as_str());
            if deadline.is_announced(machine) {
                draft.not_held()
            } else {
                plan.event(scope.event(EventKind::Warning, reasons::machine::UNHEALTHY, text.as_str()));
                let text = format!("Machine {} is unhealthy. {text}", name(machine));
                checking(draft.not_held().health_deadline(deadline), text)
            }
        }
        GiveUp::Now => {
            let failure = failure_status(scope, problem.node);
            let is_reported = failure.is_some();
            plan.then(FAILURE_REPORTED, failure);
            let confirmation = health::confirm(scope, problem.node);
            let is_confirmed = !matches!(confirmation, Confirmation::Look(_, Some(_)));
            append(&mut plan, confirmation_plan(confirmation));
            // A status that names a failure comes first; the phase is written by the next plan, because each status carries
            // the Machine's version.
            if is_reported {
                return (plan, None);
            }
            if !is_confirmed {
                return (plan, draft.not_held().step(machine));
            }
            let since = phase_since(machine).unwrap_or(scope.now());
            let text = format!("Machine {} health checks failing since {since:.0}. {why}", name(machine));
            plan.event(scope.event(EventKind::Warning, reasons::machine::FAILED, text.as_str()));
            failed(draft.not_held(), OperationType::HealthCheck, text)
        }
    };
    (plan, draft.step(machine))
}

fn confirmation_plan(confirmation: Confirmation<'_>) -> Plan<Call> {
    let mut plan = Plan::idle();
    match confirmation {
        Confirmation::Read(node) => {
            let confirm = Step::confirm_unchanged(TARGET, node);
            plan.then("a node that has changed is judged again", confirm);
        }
        Confirmation::Look(node, pending) => {
            plan.look(Look::at::<Node>(TARGET, node_named(node)));
            if let Some(message) = pending {
                plan.wait("LookingForNode", message);
            }
        }
        Confirmation::Unneeded => {}
    }
    plan
}

fn checking(draft: StatusDraft, text: String) -> StatusDraft {
    draft.operation(OperationType::HealthCheck, OperationState::Processing, text, None)
}

fn failed(draft: StatusDraft, kind: OperationType, text: String) -> StatusDraft {
    draft.phase(MachinePhase::Failed).timeout_active(false).operation(kind, OperationState::Failed, text, None)
}

/// Names on a Machine that is to be replaced the request that keeps it from that.
fn failure_status(scope: &Scope<'_>, node: Option<&Node>) -> Option<Step<Call>> {
    let failure = scope.failure_to_report()?;
    let text = format!("Machine {} is to be replaced, and a request fails: {failure}", name(scope.machine));
    checking(scope.status().node_conditions(node).not_held(), text).step(scope.machine)
}
