//! What a Machine that is to live decides.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use nodewright_api::{
    Code, Machine, MachinePhase, OperationState, OperationType, annotations, conditions, finalizers, operations,
    reasons,
};
use nodewright_runtime::{
    events::{Event, EventKind},
    finalizers as finalizer,
    object::{Cluster, annotation, has_finalizer, is_deleting, name, namespace, uid},
    plan::{Moment, Plan, Planned, Step, reference},
};

use super::{
    Context, Owner, World,
    calls::{Call, Origin, Outcome, Request, Verb},
    health::{self, Health},
    node_sync,
    owned::Link,
    status::{StatusDraft, since},
    token, trace,
};
use crate::{
    driver::{Class, DriverError, Instance, MachineRequest},
    ledger::Ledger,
};

/// How often the conditions of a Node that is still coming up are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn plan(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> Plan<Call> {
    let mut plan = Plan::idle();
    let machine = world.machine.as_ref();
    plan.traceparent = Some(trace::current(machine).to_string());
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("the machine has to outlive its VM", Step::edit(Cluster::CONTROL, machine, add));
        return plan;
    }
    if *machine.phase() == MachinePhase::Failed && !is_well(world, context) {
        plan.wait("Failed", "the machine set deletes and replaces a machine in phase Failed");
        return plan;
    }
    let unborn = matches!(machine.phase(), MachinePhase::Unset | MachinePhase::CrashLoopBackOff);
    match machine.provider_id() {
        None => create(&mut plan, at, world, context),
        Some(_) if unborn && !is_well(world, context) => set_up(&mut plan, at, world, context),
        Some(_) if context.settings.has_target => watch_over(&mut plan, at, world, context),
        Some(_) => {}
    }
    plan
}

/// Whether there is a healthy Node: then nothing that went wrong before matters any more.
fn is_well(world: &World, context: Context<'_>) -> bool {
    let node = world.node.as_deref().filter(|node| !is_deleting(*node));
    node.is_some_and(|node| health::judge(&world.machine, node, context.settings) == Health::Healthy)
}

// ---------------------------------------------------------------- birth

/// No VM is known: ask for it, make it, link it.
fn create(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let class = match &world.class {
        Ok(class) => class,
        Err(problem) => {
            refuse(plan, at, machine, problem.reason, &problem.message);
            return;
        }
    };
    if !world.class_held {
        plan.wait("ClassNotHeld", "the machine's class has yet to get its finalizer");
        return;
    }
    if let Some(reason) = has_no_future(world) {
        plan.wait("Retired", reason);
        return;
    }
    let (status, create) = (call(Verb::Status, world, class, context), call(Verb::Create, world, class, context));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&create) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return;
    }
    let asked = at.outcomes.get(&status).and_then(|known| known.last.as_ref());
    let made = at.outcomes.get(&create).and_then(|known| known.last.as_ref().map(|last| (known.failures, last)));
    match (made, asked) {
        (Some((_, (_, Outcome::Instance(instance)))), _) => link(plan, machine, instance, context),
        (Some((_, (_, Outcome::Retired))), _) => {
            plan.wait("Retired", "the machine's name has had its life: its set deletes it");
        }
        // The status was asked for after the last attempt, or there was none: it decides.
        (made, Some((when, outcome))) if made.is_none_or(|(_, (tried, _))| when > tried) => match outcome {
            Outcome::Instance(instance) => link(plan, machine, instance, context),
            Outcome::Failed(error) if matches!(error.code, Code::NotFound | Code::Unimplemented) => {
                plan.then("the machine has no VM", Step::Call(create));
            }
            outcome => {
                let failures = at.outcomes.get(&status).map_or(1, |known| known.failures);
                let failed = status.clone();
                retry(plan, at, world, context, &Attempt { failed, call: status, failures, ended: *when, outcome });
            }
        },
        (Some((failures, (tried, outcome))), _) => {
            let attempt = Attempt { failed: create, call: status, failures, ended: *tried, outcome };
            retry(plan, at, world, context, &attempt);
        }
        (None, _) => {
            plan.then("nothing is known of the machine's VM", Step::Call(status));
        }
    }
}

/// A call that has failed, and the call to make next.
struct Attempt<'a> {
    failed: Call,
    call: Call,
    failures: u32,
    ended: Timestamp,
    outcome: &'a Outcome,
}

/// Says what went wrong, and tries again after a pause.
fn retry(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>, attempt: &Attempt<'_>) {
    let Some(error) = attempt.outcome.error() else { return };
    let pause = pause(error, attempt.failures, context);
    let due = attempt.ended.checked_add(pause).unwrap_or(at.now);
    let revision = |call: &Call| call.request.machine.class.revision.clone();
    let corrected = at.outcomes.asked(&attempt.failed).is_some_and(|asked| revision(asked) != revision(&attempt.call));
    if due <= at.now || corrected {
        plan.then("the pause after a failed call is over", Step::Call(attempt.call.clone()));
        return;
    }
    let machine = world.machine.as_ref();
    let late = deadline(machine, context).is_some_and(|deadline| deadline <= at.now);
    let phase = if late { MachinePhase::Failed } else { MachinePhase::CrashLoopBackOff };
    let description = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
    let draft = StatusDraft::of(machine, at.now)
        .phase(phase)
        .operation(OperationType::Create, OperationState::Failed, description.clone(), Some(error.code.name()))
        .condition(conditions::machine::INSTANCE_PROVISIONED, false, error.code.name(), error.message.clone());
    if let Some(step) = draft.step(machine) {
        plan.then("the provider refused", step);
        plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED_PROVISION, description));
    }
    plan.wait("ProviderFailed", format!("{error}; next attempt at {due}"));
    plan.wake_at(due);
    wake_at_deadline(plan, at, machine, context);
}

/// How long to wait after a failure: as machine-controller-manager, but the short pauses grow.
fn pause(error: &DriverError, failures: u32, context: Context<'_>) -> SignedDuration {
    let settings = context.settings;
    let pause = match error.code {
        Code::ResourceExhausted => settings.exhausted_retry,
        _ if error.is_passing() => {
            let grown = settings.short_retry.saturating_mul(1 << failures.saturating_sub(1).min(8));
            grown.min(Duration::from_mins(1)).max(settings.short_retry)
        }
        _ => settings.medium_retry,
    };
    SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX)
}

/// Writes the durable link to the VM, in a write of its own, right after the answer.
pub(super) fn link(plan: &mut Plan<Call>, machine: &Machine, instance: &Instance, context: Context<'_>) {
    let link = Link::of(machine, instance, context.settings.has_target);
    plan.then("the VM exists", Step::apply(Cluster::CONTROL, machine, &link));
}

/// The VM is linked: set it up, and say so.
fn set_up(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let class = match &world.class {
        Ok(class) => class,
        Err(problem) => {
            refuse(plan, at, machine, problem.reason, &problem.message);
            return;
        }
    };
    let of = |verb| call(verb, world, class, context);
    let (status, create, initialize) = (of(Verb::Status), of(Verb::Create), of(Verb::Initialize));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&initialize) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return;
    }
    let known = at.outcomes.get(&initialize).and_then(|known| known.last.as_ref().map(|last| (known.failures, last)));
    match known {
        Some((_, (_, Outcome::Instance(instance)))) => provisioned(plan, at, machine, Some(instance), context),
        Some((_, (_, Outcome::Failed(error)))) if matches!(error.code, Code::Unimplemented | Code::NotFound) => {
            provisioned(plan, at, machine, None, context);
        }
        Some((failures, (ended, outcome))) => {
            let failed = initialize.clone();
            retry(plan, at, world, context, &Attempt { failed, call: initialize, failures, ended: *ended, outcome });
        }
        None => {
            let made = at.outcomes.last(&create).or_else(|| at.outcomes.last(&status));
            match made {
                Some(Outcome::Instance(instance)) if !instance.uninitialized && at.outcomes.last(&create).is_none() => {
                    provisioned(plan, at, machine, Some(instance), context);
                }
                Some(Outcome::Instance(_)) => drop(plan.then("the VM is not set up yet", Step::Call(initialize))),
                Some(outcome @ Outcome::Failed(error))
                    if !matches!(error.code, Code::NotFound | Code::Unimplemented) =>
                {
                    let (failures, ended) = at.outcomes.get(&status).map_or((1, at.now), |known| {
                        (known.failures, known.last.as_ref().map_or(at.now, |(ended, _)| *ended))
                    });
                    let failed = status.clone();
                    retry(plan, at, world, context, &Attempt { failed, call: status, failures, ended, outcome });
                }
                // A provider without status, or a VM that is gone already: the creation timeout decides.
                Some(_) => provisioned(plan, at, machine, None, context),
                None => drop(plan.then("nothing is known of the VM since the last restart", Step::Call(status))),
            }
        }
    }
}

fn provisioned(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    machine: &Machine,
    instance: Option<&Instance>,
    context: Context<'_>,
) {
    let state = instance.and_then(|instance| instance.last_known_state.as_ref());
    let draft = StatusDraft::of(machine, at.now)
        .condition(conditions::machine::INSTANCE_PROVISIONED, true, "Provisioned", machine.spec.provider_id.clone())
        .without(conditions::machine::CONFIGURATION_VALID)
        .last_known_state(state);
    let draft = if context.settings.has_target {
        let (kind, state) = (OperationType::Create, OperationState::Processing);
        draft.phase(MachinePhase::Pending).timeout_active(true).operation(
            kind,
            state,
            operations::CREATING_ON_PROVIDER,
            None,
        )
    } else {
        let (kind, state) = (OperationType::Create, OperationState::Successful);
        draft.phase(MachinePhase::Available).operation(kind, state, operations::CREATING_ON_PROVIDER, None)
    };
    plan.then("the VM is made; its node has yet to join", draft.step(machine));
    plan.event(event(
        machine,
        EventKind::Normal,
        reasons::machine::PROVISIONED,
        format!("VM {} exists", machine.spec.provider_id),
    ));
}

/// What is declared cannot be acted on: say what to do, and wait for it.
fn refuse(plan: &mut Plan<Call>, at: &Moment<'_, Call>, machine: &Machine, reason: &'static str, message: &str) {
    let draft = StatusDraft::of(machine, at.now)
        .operation(OperationType::Create, OperationState::Processing, message, None)
        .condition(conditions::machine::CONFIGURATION_VALID, false, reason, message);
    if let Some(step) = draft.step(machine) {
        plan.then("the machine's class cannot be used", step);
        plan.event(event(machine, EventKind::Warning, reason, message.to_owned()));
    }
    plan.wait(reason, message);
}

/// Why a Machine without a VM gets none: it will be deleted.
fn has_no_future(world: &World) -> Option<&'static str> {
    match &world.owner {
        Owner::Gone => Some("its machine set is gone"),
        Owner::Set(set) if is_deleting(set.as_ref()) => Some("its machine set is being deleted"),
        _ if is_retired(world) == Some(true) => Some("its name has had its life: its machine set deletes it"),
        _ => None,
    }
}

/// Whether the set's ledger has retired the Machine; `None` when the ledger does not know the Machine.
pub(super) fn is_retired(world: &World) -> Option<bool> {
    let Owner::Set(set) = &world.owner else { return None };
    let ledger: Ledger = annotation(set.as_ref(), annotations::LEDGER)?.parse().ok()?;
    let machine = world.machine.as_ref();
    let index = ledger.index(name(set.as_ref()), name(machine), annotation(machine, annotations::INDEX))?;
    Some(ledger.is_retired(index))
}

/// A call for this Machine.
pub(super) fn call(verb: Verb, world: &World, class: &Class, context: Context<'_>) -> Call {
    let machine = world.machine.as_ref();
    let origin = match &world.owner {
        Owner::Set(set) => annotation(set.as_ref(), annotations::LEDGER).and_then(|ledger| {
            let ledger: Ledger = ledger.parse().ok()?;
            let index = ledger.index(name(set.as_ref()), name(machine), annotation(machine, annotations::INDEX))?;
            Some(Origin { set: name(set.as_ref()).to_owned(), uid: uid(set.as_ref()).to_owned(), index })
        }),
        _ => None,
    };
    let request = MachineRequest {
        name: name(machine).to_owned(),
        namespace: namespace(machine).to_owned(),
        uid: uid(machine).to_owned(),
        provider_id: machine.provider_id().map(str::to_owned),
        last_known_state: machine.status.as_ref().map(|status| status.last_known_state.clone()).unwrap_or_default(),
        class: class.clone(),
        user_data: crate::driver::SecretText::default(),
    };
    Call {
        verb,
        request: Arc::new(Request {
            machine: request,
            origin,
            token_lifetime: creation_timeout(machine, context),
            deadline: context.driver.deadline(),
            traceparent: Some(trace::current(machine).to_string()),
        }),
    }
}

fn creation_timeout(machine: &Machine, context: Context<'_>) -> Duration {
    let effective = annotation(machine, annotations::EFFECTIVE_CREATION_TIMEOUT);
    let effective = effective.and_then(|text| text.parse::<nodewright_api::GoDuration>().ok());
    let own = effective.as_ref().or(machine.spec.creation_timeout.as_ref());
    own.map_or(context.settings.creation_timeout, |own| own.to_std())
}

/// When the Machine has to have become a healthy Node.
fn deadline(machine: &Machine, context: Context<'_>) -> Option<Timestamp> {
    let created = machine.metadata.creation_timestamp.as_ref()?.0;
    created.checked_add(SignedDuration::try_from(creation_timeout(machine, context)).ok()?).ok()
}

// ---------------------------------------------------------------- life

/// There is a VM that is set up: its Node joins, is well, or is not.
fn watch_over(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let Some(node) = world.node.as_deref() else {
        lacks_node(plan, at, world, context);
        return;
    };
    if is_deleting(node) {
        // machine-controller-manager's contract: whoever deletes a Node deletes its Machine.
        plan.then("its node is being deleted", Step::delete(Cluster::CONTROL, machine));
        return;
    }
    let sync = Step::edit(Cluster::TARGET, node, node_sync::patch(machine, node));
    let mut steps: Vec<Planned<Call>> =
        sync.map(|step| Planned { why: "the node lacks what its machine gives it".into(), step }).into_iter().collect();
    let status = match health::judge(machine, node, context.settings) {
        Health::Healthy => well(plan, at, world, node, context),
        Health::Unhealthy(why) => unwell(plan, at, world, Some(node), &why, context),
    };
    steps.extend(status.map(|step| Planned { why: "the node's health shows in the machine".into(), step }));
    plan.stage(steps);
}

fn well(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: &Node,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let draft = StatusDraft::of(machine, at.now).node_conditions(Some(node));
    if *machine.phase() == MachinePhase::Running {
        return draft.step(machine);
    }
    if *machine.phase() == MachinePhase::Pending && health::lacks_critical_components(node) {
        plan.wait(
            "CriticalComponentsNotReady",
            "the node is ready, but its critical components are not: a taint says so",
        );
        wake_at_deadline(plan, at, machine, context);
        return draft.step(machine);
    }
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let joins = operation.is_none_or(|operation| {
        operation.operation_type == OperationType::Create && operation.state != OperationState::Successful
    });
    let (kind, text) = if joins {
        (OperationType::Create, format!("Machine {} successfully joined the cluster", name(machine)))
    } else {
        (OperationType::HealthCheck, format!("Machine {} successfully re-joined the cluster", name(machine)))
    };
    if joins {
        plan.event(event(
            machine,
            EventKind::Normal,
            reasons::machine::JOINED,
            format!("node {} is ready", name(node)),
        ));
        let provisioned = since(machine, conditions::machine::INSTANCE_PROVISIONED).unwrap_or(at.now);
        plan.span(trace::stage(machine, "boot and join", provisioned, at.now));
        plan.span(trace::born(machine, at.now));
        if let Ok(class) = &world.class
            && token::is_used(class)
        {
            plan.then(
                "the node has joined: its token is of no more use",
                Step::Call(call(Verb::DropToken, world, class, context)),
            );
        }
    } else {
        plan.event(event(
            machine,
            EventKind::Normal,
            reasons::machine::HEALTHY,
            format!("node {} is healthy again", name(node)),
        ));
    }
    draft
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .condition(conditions::machine::NODE_JOINED, true, "Joined", name(node))
        .without(conditions::machine::CONFIGURATION_VALID)
        .step(machine)
}

fn lacks_node(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let why = match &world.stranger {
        Some(stranger) => format!("node {} belongs to another VM", name(stranger.as_ref())),
        None => format!("there is no node with providerID {}", world.machine.spec.provider_id),
    };
    let step = unwell(plan, at, world, None, &why, context);
    plan.then("the machine has no node", step);
}

fn unwell(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: Option<&Node>,
    why: &str,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let draft = StatusDraft::of(machine, at.now).node_conditions(node);
    match machine.phase() {
        MachinePhase::Running => {
            let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {why}", name(machine));
            plan.event(event(machine, EventKind::Warning, reasons::machine::UNHEALTHY, why.to_owned()));
            draft
                .phase(MachinePhase::Unknown)
                .timeout_active(true)
                .operation(OperationType::HealthCheck, OperationState::Processing, text, None)
                .step(machine)
        }
        MachinePhase::Unknown => give_up_when_due(plan, at, world, draft, why, context),
        MachinePhase::Pending => join_or_fail(plan, at, machine, draft, why, context),
        _ => draft.step(machine),
    }
}

/// Unknown for too long is Failed, as far as the budget goes.
fn give_up_when_due(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    draft: StatusDraft,
    why: &str,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let Some(due) = health::given_up_at(machine, context.settings) else {
        plan.wait("Unhealthy", format!("{why}; its health timeout is switched off"));
        return draft.step(machine);
    };
    if due > at.now {
        plan.wait("Unhealthy", format!("{why}; it is given up at {due}"));
        plan.wake_at(due);
        return draft.step(machine);
    }
    if let Err(held) = health::permit(world, context.settings, at.now) {
        plan.wait("ReplacementHeld", held);
        let text = format!(
            "Machine {} is unhealthy for too long; it is replaced once fewer machines of its deployment are (annotation {})",
            name(machine),
            annotations::REMEDIATION_MAX_IN_FLIGHT
        );
        return draft.operation(OperationType::HealthCheck, OperationState::Processing, text, None).step(machine);
    }
    let text = format!("Machine {} health checks failing since {}. {why}", name(machine), due);
    plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED, text.clone()));
    draft
        .phase(MachinePhase::Failed)
        .timeout_active(false)
        .operation(OperationType::HealthCheck, OperationState::Failed, text, None)
        .step(machine)
}

/// A Machine that has not joined in time is Failed.
fn join_or_fail(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    machine: &Machine,
    draft: StatusDraft,
    why: &str,
    context: Context<'_>,
) -> Option<Step<Call>> {
    if deadline(machine, context).is_some_and(|deadline| deadline <= at.now) {
        let text = format!(
            "Machine {} failed to join the cluster in {:?}. {why}",
            name(machine),
            creation_timeout(machine, context)
        );
        plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED, text.clone()));
        return draft
            .phase(MachinePhase::Failed)
            .timeout_active(false)
            .operation(OperationType::Create, OperationState::Failed, text, None)
            .condition(conditions::machine::NODE_JOINED, false, "Timeout", why)
            .step(machine);
    }
    plan.wait("Joining", why);
    wake_at_deadline(plan, at, machine, context);
    // A node that comes up changes its conditions several times within a second or two: one copy tells enough.
    let step = draft.step(machine)?;
    let next = at.status_written.and_then(|written| written.checked_add(COPY_PAUSE).ok()).filter(|next| *next > at.now);
    match next {
        Some(next) => {
            plan.wake_at(next);
            None
        }
        None => Some(step),
    }
}

fn wake_at_deadline(plan: &mut Plan<Call>, at: &Moment<'_, Call>, machine: &Machine, context: Context<'_>) {
    if let Some(deadline) = deadline(machine, context).filter(|deadline| *deadline > at.now) {
        plan.wake_at(deadline);
    }
}

pub(super) fn event(machine: &Machine, kind: EventKind, reason: &'static str, message: String) -> Event {
    Event { regarding: reference(machine), kind, reason, message }
}
