//! Before anything is torn down: is the VM that the Machine names the Machine's, and nobody else's?

use nodewright_api::{OperationState, OperationType, conditions, operations, reasons};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::{events::EventKind, plan::Step};

use super::{
    super::{
        calls::Verb,
        claim::{self, Vm},
        provider::{Provider, VmStatus},
        scope::Scope,
        stage::Stage,
        status::own_condition,
    },
    instance::try_again,
};

/// The owner of the VM is known, and no other Machine names it. A VM that is another's, or missing, is not waited for: the
/// Machine ends without it, and without a Node.
pub(in super::super) fn vm_proven(scope: &Scope<'_>) -> Stage {
    let claim = &scope.snapshot.claim;
    match claim.vm {
        Vm::Unproven => prove(scope),
        Vm::Proven if !claim.rivals.is_empty() => wait_for_rivals(scope),
        Vm::Proven if !claim.twins.is_empty() => wait_for_twins(scope),
        Vm::None | Vm::Proven => Stage::over(),
    }
}

/// Says in the last operation, where people look first, that the deletion waits for other Machines.
fn wait_for_rivals(scope: &Scope<'_>) -> Stage {
    let Some((_, text)) = claim::problem(scope.machine, &scope.snapshot.claim) else { return Stage::default() };
    let text = format!("{}: {text}", operations::GET_VM_STATUS);
    let draft = scope.status().operation(OperationType::Delete, OperationState::Processing, text, None);
    Stage::step("the deletion waits for other machines", draft.step(scope.machine))
}

/// Several Nodes of one VM are waited for as long as the Pods of one Node would be.
fn wait_for_twins(scope: &Scope<'_>) -> Stage {
    let limit = scope.settings.drain_deadline(scope.machine).filter(|limit| *limit > scope.now());
    match limit.filter(|_| !scope.machine.is_force_deletion()) {
        Some(limit) => Stage::default().waking_at(limit),
        None => Stage::over(),
    }
}

/// The provider says whose VM it is, and the status notes the answer.
fn prove(scope: &Scope<'_>) -> Stage {
    // If the class is not usable, the stage of the VM says why.
    let Ok(class) = &scope.snapshot.class else { return Stage::over() };
    let provider = Provider::of(scope, class);
    if provider.any_running(&[Verb::Status, Verb::Create]) {
        return Stage::waiting("CallingProvider", "the provider has not answered yet");
    }
    match provider.vm_status() {
        None => Stage::step("nobody has said yet whose VM it is", Step::Call(provider.call(Verb::Status))),
        Some(VmStatus::Failed(answer, error)) => try_again(&provider, (&answer, error), Verb::Status),
        Some(VmStatus::NotFound(_)) => Stage::over(),
        Some(VmStatus::Foreign(_, error)) => leave(scope, error),
        Some(VmStatus::Proven(instance)) => note(scope, Some(instance)),
        Some(VmStatus::Unimplemented) if !scope.snapshot.claim.rivals.is_empty() => Stage::default(),
        Some(VmStatus::Unimplemented) => note(scope, None),
    }
}

fn note(scope: &Scope<'_>, instance: Option<&Instance>) -> Stage {
    let draft = scope.status().proven(scope.machine, instance);
    Stage::step("the VM is the machine's", draft.step(scope.machine))
}

/// Says that the VM stays, unless that was said before the Machine was deleted.
fn leave(scope: &Scope<'_>, error: &DriverError) -> Stage {
    let machine = scope.machine;
    let (condition, reason) = (conditions::machine::INSTANCE_PROVISIONED, reasons::machine::PROVIDER_ID_MISMATCH);
    if own_condition(machine, condition).is_some_and(|known| known.reason.as_deref() == Some(reason)) {
        return Stage::over();
    }
    let event = scope.event(EventKind::Warning, reason, error.message.as_str());
    Stage::reporting("the VM is another's", scope.status().foreign(error).step(machine), event).over_if_idle()
}
