//! Asks the provider whether the VM that a Machine names is the Machine's: one call and one write for a Machine from a backup or
//! from machine-controller-manager. For one that is created here, the answer to the creation is the proof.

use std::time::Duration;

use nodewright_api::{OperationState, OperationType, conditions, operations};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::object::name;

use super::{
    calls::Verb,
    claim::{self, NotOwned, Vm},
    decision::{Scope, Stage},
    health,
    ownership::{Ownership, ownership},
    provider::{Answer, CALLING, PAUSE_OVER, Provider, VmStatus, creation_pause},
    provision::{foreign, invalid, is_unprovisioned, unknown},
    terminate,
};
use crate::shared::ownership::vm_id;

/// Pause before a provider that knows no VM is asked again: a new VM may not show at once.
const NOT_FOUND_PAUSE: Duration = Duration::from_secs(30);

/// For a Machine that is not being deleted: the VM that it names is proven to be its own, and neither Machines nor Nodes compete for it.
pub(super) fn vm_proven(scope: &Scope<'_>) -> Stage {
    let claim = &scope.snapshot.claim;
    let is_ambiguous = claim.is_ambiguous();
    let is_provisioned = !is_unprovisioned(scope.machine.phase());
    let is_open = claim.vm == Vm::Unproven && (is_ambiguous || (is_provisioned && scope.settings.has_target));
    let stage = if is_open { prove(scope) } else { Stage::over() };
    Stage { is_over: stage.is_over && !is_ambiguous, ..stage }
}

fn prove(scope: &Scope<'_>) -> Stage {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(problem) => return invalid(scope, problem.reason, &problem.message),
    };
    let provider = Provider::of(scope, class);
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Stage::waiting(CALLING, message);
    }
    match provider.vm_status() {
        None => provider.ask_owner(),
        Some(VmStatus::Foreign(answer, error)) => foreign(&provider, &answer, &NotOwned::by_tags(error)),
        Some(VmStatus::Failed(answer, error)) => failed(&provider, &answer, error),
        Some(VmStatus::NotFound(answer)) => not_found(&provider, &answer),
        Some(VmStatus::Proven(answer, instance)) => owned(&provider, &answer, Some(instance)),
        Some(VmStatus::Unimplemented(answer)) => owned(&provider, &answer, None),
    }
}

fn owned(provider: &Provider<'_>, answer: &Answer<'_>, instance: Option<&Instance>) -> Stage {
    match ownership(provider, answer, instance) {
        Ownership::Own => proven(&provider.scope, instance),
        Ownership::Open(stage) => stage,
        Ownership::Foreign(why) => foreign(provider, answer, &why),
        Ownership::Unknown(why, due) => unknown(provider, &why, due),
    }
}

fn failed(provider: &Provider<'_>, answer: &Answer<'_>, error: &DriverError) -> Stage {
    let scope = &provider.scope;
    let pause = creation_pause(error, answer.known.failures, scope.settings);
    let Some(due) = provider.due(answer, pause) else { return provider.ask(PAUSE_OVER, Verb::Status) };
    let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
    let draft = scope.status().condition(kind, false, code, error.message.clone());
    let message = format!("{error}; until it says whose VM it is nothing is done; next attempt at {due}");
    let step = draft.step_unless_told(answer.is_told(scope));
    Stage::step("the provider has not said whose VM it is", step).and_wait(code, message).waking_at(due)
}

/// The Machine is judged as one without a Node, unless a Node with the VM's id is ready: then probably the wrong provider was
/// asked, or with the wrong credentials.
fn not_found(provider: &Provider<'_>, answer: &Answer<'_>) -> Stage {
    let scope = &provider.scope;
    let stage = match scope.pause_end(answer.ended, NOT_FOUND_PAUSE) {
        None => provider.ask("is there still no VM?", Verb::Status),
        Some(due) => Stage::default().waking_at(due),
    };
    let node = scope.snapshot.claim.node.as_deref();
    let Some(node) = node.filter(|node| health::unhealthy_because(scope, node).is_none()) else {
        return Stage { is_over: true, ..stage };
    };
    let text = format!(
        "the provider knows no VM {}, and yet node {} with its providerID is ready: check the credentials of the class",
        vm_id(scope.machine).unwrap_or_default(),
        name(node)
    );
    stage.and_wait("VMNotFound", text)
}

/// It is the Machine's VM: the provider says so, or, without an instance, cannot tell.
fn proven(scope: &Scope<'_>, instance: Option<&Instance>) -> Stage {
    let draft = scope.status().proven(instance);
    let has_problem = claim::problem(scope.machine, &scope.snapshot.claim).is_some();
    let draft = if has_problem { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
    Stage::step("the VM is the machine's", draft.step())
}

/// For a Machine that is being deleted: the owner of the VM is known, and no other Machine names it. A Machine whose VM is
/// another's, or missing, ends without it, and so does one that shares it with a Machine that had it before.
pub(super) fn vm_settled(scope: &Scope<'_>) -> Stage {
    let claim = &scope.snapshot.claim;
    match claim.vm {
        Vm::Unproven => settle(scope),
        Vm::Proven if claim.keeper.is_some() => Stage::over(),
        Vm::Proven if !claim.rivals.is_empty() => wait_for_rivals(scope),
        Vm::Proven if !claim.duplicate_nodes.is_empty() => wait_for_duplicate_nodes(scope),
        Vm::None | Vm::Proven => Stage::over(),
    }
}

fn wait_for_rivals(scope: &Scope<'_>) -> Stage {
    let Some((_, text)) = claim::problem(scope.machine, &scope.snapshot.claim) else { return Stage::default() };
    let text = format!("{}: {text}", operations::GET_VM_STATUS);
    let draft = scope.status().operation(OperationType::Delete, OperationState::Processing, text, None);
    Stage::step("the deletion waits for other machines", draft.step())
}

/// Several Nodes of one VM are waited for as long as the Pods of one Node would be.
fn wait_for_duplicate_nodes(scope: &Scope<'_>) -> Stage {
    let limit = scope.settings.drain_deadline(scope.machine).filter(|limit| *limit > scope.now());
    match limit.filter(|_| !scope.machine.is_force_deletion()) {
        Some(limit) => Stage::default().waking_at(limit),
        None => Stage::over(),
    }
}

fn settle(scope: &Scope<'_>) -> Stage {
    // If the class is not usable, the stage of the VM says why.
    let Ok(class) = &scope.snapshot.class else { return Stage::over() };
    let provider = Provider::of(scope, class);
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Stage::waiting(CALLING, message);
    }
    match provider.vm_status() {
        None => provider.ask_owner(),
        Some(VmStatus::Failed(answer, error)) => terminate::try_again(&provider, (&answer, error), Verb::Status),
        Some(VmStatus::NotFound(_)) => Stage::over(),
        Some(VmStatus::Foreign(_, error)) => leave(scope, &NotOwned::by_tags(error)),
        Some(VmStatus::Unimplemented(_)) if !scope.snapshot.claim.rivals.is_empty() => Stage::default(),
        Some(VmStatus::Proven(answer, instance)) => settle_owned(&provider, &answer, Some(instance)),
        Some(VmStatus::Unimplemented(answer)) => settle_owned(&provider, &answer, None),
    }
}

fn settle_owned(provider: &Provider<'_>, answer: &Answer<'_>, instance: Option<&Instance>) -> Stage {
    match ownership(provider, answer, instance) {
        Ownership::Own => note(&provider.scope, instance),
        Ownership::Open(stage) => stage,
        Ownership::Foreign(why) => leave(&provider.scope, &why),
        Ownership::Unknown(why, due) => terminate::owner_unknown(provider, &why, due),
    }
}

fn note(scope: &Scope<'_>, instance: Option<&Instance>) -> Stage {
    let draft = scope.status().proven(instance);
    Stage::step("the VM is the machine's", draft.step())
}

/// Says that the VM stays, unless that was said before the Machine was deleted.
fn leave(scope: &Scope<'_>, why: &NotOwned) -> Stage {
    let (condition, reason) = (conditions::machine::INSTANCE_PROVISIONED, why.reason);
    if scope.machine.condition(condition).is_some_and(|known| known.reason.as_deref() == Some(reason)) {
        return Stage::over();
    }
    let event = scope.warning(reason, why.error.message.as_str());
    Stage::reporting("the VM is another's", scope.status().foreign(why).step(), event).over_if_idle()
}
