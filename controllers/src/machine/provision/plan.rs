//! The steps by which a Machine gets its VM.

use nodewright_api::{MachinePhase, OperationState, OperationType, conditions, operations, reasons};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::plan::Step;

use super::{
    decision::{self, Obstacle, Provision},
    is_unprovisioned,
    link::Link,
};
use crate::{
    machine::{
        claim::{self, NotOwned},
        partial_plan::PartialPlan,
        provider::{CALLING, PASSING, Provider, creation_pause},
        scope::Scope,
        status::StatusDraft,
    },
    shared::CONTROL,
};

const INITIALIZED: &str = "the VM is made; its node has yet to join";

pub(in super::super) fn create(scope: &Scope<'_>) -> PartialPlan {
    match decision::creation_class(scope) {
        Err(obstacle) => blocked(scope, &obstacle),
        Ok(class) => {
            let provider = Provider::of(scope, class);
            carry_out(&provider, decision::creation(&provider))
        }
    }
}

pub(in super::super) fn initialize(scope: &Scope<'_>) -> PartialPlan {
    match &scope.snapshot.class {
        Err(error) => invalid(scope, error.reason, &error.message),
        Ok(class) => {
            let provider = Provider::of(scope, class);
            carry_out(&provider, decision::initialization(&provider))
        }
    }
}

fn blocked(scope: &Scope<'_>, obstacle: &Obstacle) -> PartialPlan {
    match obstacle {
        Obstacle::Invalid(reason, message) => invalid(scope, reason, message),
        Obstacle::AwaitFinalizers => {
            let text = "the machine's class and its Secrets have yet to get their finalizers";
            PartialPlan::waiting("ClassNotHeld", text)
        }
        Obstacle::NoFuture(why) => PartialPlan::waiting("Retired", *why),
    }
}

pub(in super::super) fn carry_out(provider: &Provider<'_>, provision: Provision<'_>) -> PartialPlan {
    let scope = &provider.scope;
    match provision {
        Provision::Await(text) => PartialPlan::waiting(CALLING, text),
        Provision::Call(why, verb) => provider.ask(why, verb),
        Provision::Namesakes(inquiry) => provider.inquire(inquiry),
        Provision::Retired(call, due) => {
            let again = due.is_none().then(|| Step::Call(call.clone()));
            PartialPlan::step("ask again whether the name is retired", again)
                .and_wait("Retired", "the machine's name is retired: its set deletes it")
                .waking_at(due)
        }
        Provision::Link(instance) => link(scope, instance),
        Provision::Foreign { why, due, is_reported } => {
            not_taken(scope, "the VM is another's", &why, is_reported).waking_at(due)
        }
        Provision::OwnerUnknown { why, due } => {
            not_taken(scope, "it is not known whose the VM is", &why, false).waking_at(due)
        }
        Provision::Failed { answer, error, due } => failed(scope, error, answer.is_reported(scope))
            .and_wait(error.code.name(), format!("{error}; next attempt at {due}"))
            .waking_at(due)
            .waking_at(scope.creation_deadline()),
        Provision::NotFound => not_found(scope),
        Provision::Note(notes) => {
            PartialPlan::step("the driver has notes to keep", scope.status().last_known_state(Some(notes)).step())
        }
        Provision::Initialized(instance) => initialized(scope, instance),
    }
}

pub(in super::super) fn link(scope: &Scope<'_>, instance: &Instance) -> PartialPlan {
    let link = Link::of(scope.machine, instance, scope.settings.has_target);
    PartialPlan::step("the VM exists", Step::apply_if_unchanged(CONTROL, scope.machine, link))
}

fn initialized(scope: &Scope<'_>, instance: Option<&Instance>) -> PartialPlan {
    let state = instance.and_then(|instance| instance.last_known_state.as_ref());
    let draft = created(scope).proven(instance).last_known_state(state);
    let draft = instance.filter(|_| !scope.settings.has_target).into_iter().fold(draft, StatusDraft::addresses);
    let text = match instance {
        Some(instance) => format!("VM {} exists", instance.provider_id),
        None => format!(
            "VM {} is taken for the machine's: the provider does not report its owner",
            scope.machine.spec.provider_id
        ),
    };
    PartialPlan::step(INITIALIZED, draft.step()).event(scope.normal(reasons::machine::PROVISIONED, text).routine())
}

fn not_found(scope: &Scope<'_>) -> PartialPlan {
    let text = format!("the provider knows no VM {}", scope.machine.spec.provider_id);
    let kind = conditions::machine::INSTANCE_PROVISIONED;
    let draft = created(scope).condition(kind, false, "NotFound", text.as_str());
    PartialPlan::step(INITIALIZED, draft.step()).event(scope.warning(reasons::machine::UNHEALTHY, text))
}

fn created<'a>(scope: &Scope<'a>) -> StatusDraft<'a> {
    let draft = scope.status().without(conditions::machine::CONFIGURATION_VALID);
    let (draft, state) = if scope.settings.has_target {
        (draft.phase(MachinePhase::Pending).timeout_active(true), OperationState::Processing)
    } else {
        (draft.phase(MachinePhase::Available), OperationState::Successful)
    };
    draft.operation(OperationType::Create, state, operations::CREATING_ON_PROVIDER, None)
}

/// The class or the ledger has to be corrected. The same condition may have a conflict of the claim to report instead.
pub(in super::super) fn invalid(scope: &Scope<'_>, reason: &'static str, message: &str) -> PartialPlan {
    let draft = scope.status().condition(conditions::machine::CONFIGURATION_VALID, false, reason, message);
    let draft = if is_unprovisioned(scope.machine.phase()) {
        let draft = draft.phase(MachinePhase::CrashLoopBackOff);
        draft.operation(OperationType::Create, OperationState::Processing, message, None)
    } else {
        draft
    };
    let step = draft.step().filter(|_| claim::conflict(scope.machine, &scope.snapshot.claim).is_none());
    PartialPlan::reporting("the machine's class cannot be used", step, scope.warning(reason, message))
        .and_wait(reason, message)
}

fn not_taken(scope: &Scope<'_>, because: &'static str, why: &NotOwned, is_reported: bool) -> PartialPlan {
    let draft = if is_unprovisioned(scope.machine.phase()) { back_off(scope, &why.error) } else { scope.status() };
    let message = why.error.message.as_str();
    let step = draft.foreign(why).step_unless_reported(is_reported);
    PartialPlan::reporting(because, step, scope.warning(why.reason, message))
        .and_wait(why.reason, message)
        .waking_at(scope.creation_deadline())
}

fn failed(scope: &Scope<'_>, error: &DriverError, is_reported: bool) -> PartialPlan {
    let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
    let draft = back_off(scope, error);
    // An attempt that ends like the one before it is no news.
    let is_news = draft.clone().step().is_some();
    let draft = draft.condition(kind, false, code, format!("{}{}", error.message, outlook(scope, error)));
    let step = draft.step_unless_reported(is_reported);
    let event = scope.warning(reasons::machine::FAILED_PROVISION, refusal(scope, error));
    let event = Some(event).filter(|_| is_news && step.is_some());
    event.into_iter().fold(PartialPlan::step("the provider refused", step), PartialPlan::event)
}

/// What ends the wait after a refusal, unless it ends soon. It follows from the object, the answer and the settings alone: a time of
/// this process would be replaced by that of another manager, again and again. The last operation goes without, because
/// `status.failedMachines` of sets and deployments has its text.
fn outlook(scope: &Scope<'_>, error: &DriverError) -> String {
    let longest = creation_pause(error, u32::MAX, scope.settings);
    if longest <= PASSING || scope.is_creation_overdue() {
        return String::new();
    }
    let end = scope.announced_creation_deadline();
    let end = end.map(|at| format!("; without a VM it fails at {at:.0}")).unwrap_or_default();
    format!("; it is tried again within {longest:?}{end}")
}

/// The provider was asked: what the class lacked before is there.
fn back_off<'a>(scope: &Scope<'a>, error: &DriverError) -> StatusDraft<'a> {
    let overdue = scope.is_creation_overdue();
    let phase = if overdue { MachinePhase::Failed } else { MachinePhase::CrashLoopBackOff };
    let text = refusal(scope, error);
    let (kind, state) = (OperationType::Create, OperationState::Failed);
    let draft = scope.status().last_known_state(error.last_known_state.as_ref()).phase(phase);
    let has_conflict = claim::conflict(scope.machine, &scope.snapshot.claim).is_some();
    let draft = if has_conflict { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
    draft.operation(kind, state, text, Some(error.code.name()))
}

/// The text of machine-controller-manager, and which capacity is exhausted. `status.failedMachines` has it, too.
fn refusal(scope: &Scope<'_>, error: &DriverError) -> String {
    let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
    let class = scope.machine.class_name();
    match error.exhausted.as_ref().map(|exhausted| exhausted.zone.as_deref()) {
        None => text,
        Some(None) => format!("{text}; exhausted for MachineClass {class:?}"),
        Some(Some(zone)) => format!("{text}; exhausted for MachineClass {class:?} in zone {zone:?}"),
    }
}
