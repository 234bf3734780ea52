//! What a Machine does next: the one place that makes plans of decisions.
//!
//! ```text
//! caches ── snapshot ─► Scope ─┬─ proof ─────► Proof       whose VM is it?           ─┐
//!                              ├─ provision ─► Provision   what does its VM lack?     ├─► Plan
//!                              ├─ health ────► Health      is it given up, and when?  │
//!                              └─ terminate ─► Stage       what is left to delete?   ─┘
//! ```

use jiff::SignedDuration;
use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions, finalizers, operations,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::EventKind,
    finalizers as finalizer,
    object::{has_finalizer, is_deleting, name},
    plan::{Plan, Step},
};

use super::{
    apply_configuration::Link,
    calls::{Call, Verb},
    claim::{self, Vm, joined_as},
    health::{self, GiveUp, Health, Problem, Recovery, Remedy},
    node_sync,
    proof::{self, Proof},
    provider::{Provider, Retry},
    provision::{self, Provision},
    scope::Scope,
    stage::Stage,
    status::{StatusDraft, phase_since, since},
    terminate, token, trace,
};
use crate::shared::{
    class_secrets,
    clusters::{CONTROL, TARGET},
    node::Node,
    ownership::{JOIN_TIMEOUT, JOINED, noted_node, vm_id},
};

/// How often the conditions of a Node that is still starting are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// Why a status is written that names a request which fails.
const FAILURE_REPORTED: &str = "the machine says which request fails";
/// Why the status of a Machine is written whose VM is initialized.
const INITIALIZED: &str = "the VM is made; its node has yet to join";
/// The reason of a wait for the replacement budget.
const HELD_BACK: &str = "ReplacementHeld";

pub(super) fn plan(scope: &Scope<'_>) -> Plan<Call> {
    let mut plan = if let Some(message) = scope.snapshot.secret_pending() {
        Stage::waiting(class_secrets::PENDING, message).plan
    } else {
        let is_deleting = is_deleting(scope.machine);
        let stage = run(scope, if is_deleting { &TERMINATION[..] } else { &MAINTENANCE });
        Plan { traceparent: Some(trace::current(scope.machine)), ..stage.plan }
    };
    plan.looks.extend(scope.snapshot.looks.iter().cloned());
    plan
}

type Decision = fn(&Scope<'_>) -> Stage;

/// For a Machine that is not being deleted.
const MAINTENANCE: [Decision; 4] = [finalizer_added, claim_reported, vm_proven, maintained];

/// For a Machine that is being deleted.
const TERMINATION: [Decision; 12] = [
    terminate::has_finalizer,
    terminate::begun,
    terminate::failure_reported,
    claim_reported,
    terminate::vm_proven,
    terminate::node_readable,
    terminate::drained,
    terminate::volumes_detached,
    terminate::vm_deleted,
    terminate::node_deleted,
    terminate::name_retired,
    terminate::finished,
];

/// What the decisions bring, up to the first that does not let the next one follow.
fn run(scope: &Scope<'_>, decisions: &[Decision]) -> Stage {
    let mut all = Stage::over();
    for decide in decisions {
        all = all.and(decide(scope));
        if !all.is_over {
            break;
        }
    }
    all
}

fn finalizer_added(scope: &Scope<'_>) -> Stage {
    let machine = scope.machine;
    if has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return Stage::over();
    }
    let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    Stage::step("the machine has to outlive its VM", Step::edit(CONTROL, machine, add))
}

/// Says what is wrong with the claim of a Machine to its VM, or that nothing is any more.
fn claim_reported(scope: &Scope<'_>) -> Stage {
    let (machine, kind) = (scope.machine, conditions::machine::CONFIGURATION_VALID);
    let stage = match claim::problem(machine, &scope.snapshot.claim) {
        Some((reason, message)) => {
            let draft = scope.status().condition(kind, false, reason, message.as_str());
            let event = scope.event(EventKind::Warning, reason, message.as_str());
            let stage = Stage::reporting("the machine's claim is not in order", draft.step(machine), event);
            stage.and_wait(reason, message)
        }
        None if claim::names_problem(machine) => {
            Stage::step("the machine's claim is in order again", scope.status().without(kind).step(machine))
        }
        None => Stage::over(),
    };
    stage.over_if_idle()
}

/// The VM that the Machine names is proven to be the Machine's, and neither Machines nor Nodes compete for it.
fn vm_proven(scope: &Scope<'_>) -> Stage {
    let claim = &scope.snapshot.claim;
    let is_ambiguous = claim.is_ambiguous();
    let is_provisioned = !provision::is_unprovisioned(scope.machine.phase());
    let is_open = claim.vm == Vm::Unproven && (is_ambiguous || (is_provisioned && scope.settings.has_target));
    let stage = if is_open { proof_stage(scope, proof::prove(scope)) } else { Stage::over() };
    Stage { is_over: stage.is_over && !is_ambiguous, ..stage }
}

/// The Machine gets what its VM lacks, or is judged by its Node.
fn maintained(scope: &Scope<'_>) -> Stage {
    let phase = scope.machine.phase();
    let is_healthy = || health::has_healthy_node(scope);
    if *phase == MachinePhase::Failed && !is_healthy() {
        return Stage::waiting("Failed", "the machine set deletes and replaces a machine in phase Failed");
    }
    match vm_id(scope.machine) {
        None => provision_stage(scope, provision::create(scope)),
        Some(_) if provision::is_unprovisioned(phase) && !is_healthy() => {
            provision_stage(scope, provision::initialize(scope))
        }
        Some(_) if scope.settings.has_target => health_stage(scope, health::check(scope)),
        Some(_) => Stage::over(),
    }
}

fn proof_stage(scope: &Scope<'_>, proof: Proof<'_>) -> Stage {
    let machine = scope.machine;
    match proof {
        Proof::Missing(provision) => provision_stage(scope, provision),
        Proof::Failed { error, due } => {
            let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
            let draft = scope.status().condition(kind, false, code, error.message.clone());
            let message = format!("{error}; until it says whose VM it is nothing is done; next attempt at {due}");
            Stage::step("the provider has not said whose VM it is", draft.step(machine))
                .and_wait("ProviderFailed", message)
                .waking_at(due)
        }
        Proof::NotFound { again, contradicted_by } => {
            let stage = match again {
                Retry::Now(call) => Stage::step("is there still no VM?", Step::Call(call)),
                Retry::At(due) => Stage::default().waking_at(due),
            };
            let Some(node) = contradicted_by else { return Stage { is_over: true, ..stage } };
            let text = format!(
                "the provider knows no VM {}, and yet node {} with its providerID is ready: check the credentials of the class",
                vm_id(machine).unwrap_or_default(),
                name(node)
            );
            stage.and_wait("VMNotFound", text)
        }
        Proof::Proven(instance) => {
            let draft = scope.status().proven(machine, instance);
            let has_problem = claim::has_problem(machine, &scope.snapshot.claim);
            let draft = if has_problem { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
            Stage::step("the VM is the machine's", draft.step(machine))
        }
    }
}

fn provision_stage(scope: &Scope<'_>, provision: Provision<'_>) -> Stage {
    let machine = scope.machine;
    match provision {
        Provision::Wait(reason, message) => Stage::waiting(reason, message),
        Provision::Call(why, call) => Stage::step(why, Step::Call(call)),
        Provision::Invalid { reason, message } => {
            let step = provision::invalid_status(scope, reason, &message).and_then(|draft| draft.step(machine));
            let event = scope.event(EventKind::Warning, reason, message.as_str());
            Stage::reporting("the machine's class cannot be used", step, event).and_wait(reason, message)
        }
        Provision::Failed { error, due } => {
            let step = provision::failed_status(scope, error).step(machine);
            let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
            let event = scope.event(EventKind::Warning, reasons::machine::FAILED_PROVISION, text);
            Stage::reporting("the provider refused", step, event)
                .and_wait("ProviderFailed", format!("{error}; next attempt at {due}"))
                .waking_at(due)
                .waking_at(scope.creation_deadline())
        }
        Provision::Foreign { error, due } => {
            let (reason, message) = (reasons::machine::PROVIDER_ID_MISMATCH, error.message.as_str());
            let step = provision::foreign_status(scope, error).step(machine);
            Stage::reporting("the VM is another's", step, scope.event(EventKind::Warning, reason, message))
                .and_wait(reason, message)
                .waking_at(due)
                .waking_at(scope.creation_deadline())
        }
        Provision::Retired { call, due } => {
            let call = due.is_none().then_some(Step::Call(call));
            Stage::step("is the name retired?", call)
                .and_wait("Retired", "the machine's name has had its life: its set deletes it")
                .waking_at(due)
        }
        Provision::Link(instance) => {
            let link = Link::of(machine, instance, scope.settings.has_target);
            Stage::step("the VM exists", Step::apply_if_unchanged(CONTROL, machine, &link))
        }
        Provision::Done(instance) => {
            let (draft, text) = provision::done_status(scope, instance);
            let event = scope.event(EventKind::Normal, reasons::machine::PROVISIONED, text);
            Stage::step(INITIALIZED, draft.step(machine)).telling(event)
        }
        Provision::NotFound => {
            let (draft, text) = provision::not_found_status(scope);
            let event = scope.event(EventKind::Warning, reasons::machine::UNHEALTHY, text);
            Stage::step(INITIALIZED, draft.step(machine)).telling(event)
        }
    }
}

fn health_stage(scope: &Scope<'_>, health: Health<'_>) -> Stage {
    let machine = scope.machine;
    match health {
        Health::Unreadable(text) => {
            let (kind, reason) = (conditions::machine::NODE_READABLE, unreadable::NODE);
            let step = scope.status().condition(kind, false, reason, text).step(machine);
            let event = scope.event(EventKind::Warning, reason, text);
            Stage::reporting("the machine's node cannot be read", step, event).and_wait(reason, text)
        }
        // As in machine-controller-manager: to delete a Node is to delete its Machine. The Node's finalizer keeps it until then.
        Health::NodeDeleted(node, Ok(())) => Stage::step(FAILURE_REPORTED, failure_status(scope, Some(node)))
            .then("is its node really being deleted?", Step::confirm_unchanged(TARGET, node))
            .then("its node is being deleted", Step::delete(CONTROL, machine)),
        Health::NodeDeleted(node, Err(held)) => {
            let text = |why: String| format!("node {} is being deleted; {why}", name(node));
            let (kind, status) = (conditions::machine::REMEDIATION_ALLOWED, text(held.status));
            let draft = scope.status().node_conditions(Some(node)).condition(kind, false, HELD_BACK, status);
            Stage::step("the machine waits for its replacement", draft.step(machine))
                .and_wait(HELD_BACK, text(held.message))
                .waking_at(held.until)
        }
        Health::Healthy(node, recovery) => {
            let (stage, step) = recovered(scope, node, &recovery);
            with_node_sync(stage, scope, node, step)
        }
        Health::Unhealthy(problem, remedy) => {
            let (stage, step) = remedied(scope, &problem, remedy);
            match problem.node {
                Some(node) => with_node_sync(stage, scope, node, step),
                None => stage.then("the machine has no node", step),
            }
        }
    }
}

/// Brings Node and Machine in step, beside the status. The status comes first: it must not depend on whether the Node can be
/// written.
fn with_node_sync(stage: Stage, scope: &Scope<'_>, node: &Node, status: Option<Step<Call>>) -> Stage {
    let machine = scope.machine;
    let sync = node_sync::sync(machine, node);
    // Not beside the status, which carries the Machine's version.
    let own = Step::edit(CONTROL, machine, sync.machine).filter(|_| status.is_none());
    let steps = [
        ("the node's health shows in the machine", status),
        ("the node lacks what its machine gives it", Step::edit(TARGET, node, sync.node)),
        ("the machine remembers its node, and what that gets", own),
    ];
    stage.side_by_side(steps)
}

/// What follows from a healthy Node, and the status that shows it.
fn recovered(scope: &Scope<'_>, node: &Node, recovery: &Recovery) -> (Stage, Option<Step<Call>>) {
    let machine = scope.machine;
    let draft = scope.status().node_conditions(Some(node)).not_held().without(conditions::machine::NODE_READABLE);
    let (stage, kind, text) = match recovery {
        Recovery::None(consistent) => {
            let mut stage = Stage::default().waking_at(*consistent);
            // Drop the outcomes of the calls that created thousands of Running machines, to bound memory.
            stage.plan.forgets_outcomes = consistent.is_none();
            return (stage, draft.step(machine));
        }
        Recovery::ComponentsAwaited => {
            let text = "the node is ready, but its critical components are not: a taint says so";
            let stage = Stage::waiting("CriticalComponentsNotReady", text).waking_at(scope.creation_deadline());
            return (stage, draft.step(machine));
        }
        Recovery::Joined => (joined(scope, node), OperationType::Create, "joined"),
        Recovery::Rejoined => {
            let text = format!("node {} is healthy again", name(node));
            let event = scope.event(EventKind::Normal, reasons::machine::HEALTHY, text);
            (Stage::default().telling(event), OperationType::HealthCheck, "re-joined")
        }
    };
    let text = format!("Machine {} successfully {text} the cluster", name(machine));
    let draft = draft
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .condition(conditions::machine::NODE_JOINED, true, JOINED, joined_as(machine, node))
        .without(conditions::machine::CONFIGURATION_VALID);
    (stage, draft.step(machine))
}

/// Tells of a Machine whose Node is healthy for the first time, and revokes its bootstrap token.
fn joined(scope: &Scope<'_>, node: &Node) -> Stage {
    let (machine, now) = (scope.machine, scope.now());
    let class = scope.snapshot.class.as_ref().ok().filter(|class| token::is_used(class));
    let drop = class.map(|class| Step::Call(Provider::of(scope, class).call(Verb::DropToken)));
    let event = scope.event(EventKind::Normal, reasons::machine::JOINED, format!("node {} is ready", name(node)));
    let mut stage = Stage::step("the node has joined: its token is of no more use", drop).telling(event);
    let provisioned = since(machine, conditions::machine::INSTANCE_PROVISIONED).unwrap_or(now);
    stage.plan.spans = vec![trace::stage(machine, "boot and join", provisioned, now), trace::created(machine, now)];
    stage
}

/// What follows from an unhealthy or missing Node, and the status that shows it.
fn remedied(scope: &Scope<'_>, problem: &Problem<'_>, remedy: Remedy) -> (Stage, Option<Step<Call>>) {
    let (machine, why) = (scope.machine, problem.why.as_str());
    let draft = scope.status().node_conditions(problem.node).without(conditions::machine::NODE_READABLE);
    let (stage, draft) = match remedy {
        Remedy::Unknown(give_up) => return given_up(scope, problem, give_up, draft),
        Remedy::None => (Stage::default(), draft.not_held()),
        Remedy::AwaitReport(until) => {
            let text = format!(
                "{why}, but that was reported before this manager led, or while an API server was away; it counts from \
                 {until:.0}, or with a new report"
            );
            (Stage::waiting_until(until, "ReportAwaited", text), draft.not_held())
        }
        Remedy::MarkUnknown(deadline) => {
            let text = deadline.map_or(why.to_owned(), |deadline| deadline.text(why));
            let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(machine));
            let event = scope.event(EventKind::Warning, reasons::machine::UNHEALTHY, why);
            let draft = deadline.into_iter().fold(draft.not_held(), StatusDraft::health_deadline);
            let draft = draft.phase(MachinePhase::Unknown).timeout_active(true);
            (Stage::default().telling(event), checking(draft, text))
        }
        Remedy::AwaitJoin => {
            let (stage, step) = (Stage::waiting("Joining", why), draft.not_held().step(machine));
            // A Node that starts changes its conditions several times within a second or two: one copy is enough.
            let next = scope.context.status_written.and_then(|written| written.checked_add(COPY_PAUSE).ok());
            let next = next.filter(|next| step.is_some() && *next > scope.now());
            let stage = stage.waking_at(scope.creation_deadline()).waking_at(next);
            return (stage, step.filter(|_| next.is_none()));
        }
        Remedy::JoinTimeout => {
            let timeout = scope.settings.creation_timeout_of(machine);
            let text = format!("Machine {} failed to join the cluster in {timeout:?}. {why}", name(machine));
            let event = scope.event(EventKind::Warning, reasons::machine::FAILED, text.as_str());
            let node = noted_node(machine).unwrap_or_default();
            let draft = draft.not_held().condition(conditions::machine::NODE_JOINED, false, JOIN_TIMEOUT, node);
            (Stage::default().telling(event), failed(draft, OperationType::Create, text))
        }
    };
    (stage, draft.step(machine))
}

/// What becomes of an Unknown Machine, and the status that shows it.
fn given_up(
    scope: &Scope<'_>,
    problem: &Problem<'_>,
    give_up: GiveUp,
    draft: StatusDraft,
) -> (Stage, Option<Step<Call>>) {
    let (machine, why) = (scope.machine, problem.why.as_str());
    let (stage, draft) = match give_up {
        GiveUp::Held(held) => {
            let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.status);
            let kind = conditions::machine::REMEDIATION_ALLOWED;
            let draft = checking(draft.condition(kind, false, HELD_BACK, text.as_str()), text);
            (Stage::waiting(HELD_BACK, held.message).waking_at(held.until), draft)
        }
        GiveUp::Never => {
            let stage = Stage::waiting("Unhealthy", format!("{why}; its health timeout is switched off"));
            (stage, draft.not_held().without(conditions::machine::HEALTH_TIMEOUT))
        }
        GiveUp::Later(deadline) => {
            let text = deadline.text(why);
            let stage = Stage::waiting_until(deadline.at, deadline.reason(), text.as_str());
            if deadline.is_announced(machine) {
                return (stage, draft.not_held().step(machine));
            }
            let event = scope.event(EventKind::Warning, reasons::machine::UNHEALTHY, text.as_str());
            let text = format!("Machine {} is unhealthy. {text}", name(machine));
            (stage.telling(event), checking(draft.not_held().health_deadline(deadline), text))
        }
        GiveUp::Now => {
            let failure = failure_status(scope, problem.node);
            let is_reported = failure.is_some();
            let stage = Stage::step(FAILURE_REPORTED, failure).and(health::confirmed(scope, problem.node));
            // A status that names a failure comes first; the phase is written by the next plan, because each status carries
            // the Machine's version.
            if is_reported {
                return (stage, None);
            }
            if !stage.is_over {
                return (stage, draft.not_held().step(machine));
            }
            let since = phase_since(machine).unwrap_or(scope.now());
            let text = format!("Machine {} health checks failing since {since:.0}. {why}", name(machine));
            let event = scope.event(EventKind::Warning, reasons::machine::FAILED, text.as_str());
            (stage.telling(event), failed(draft.not_held(), OperationType::HealthCheck, text))
        }
    };
    (stage, draft.step(machine))
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
