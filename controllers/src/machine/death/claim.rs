//! Before anything is torn down: is the VM that the Machine names the Machine's, and nobody else's?

use nodewright_api::{OperationState, OperationType, conditions, operations, reasons};
use nodewright_driver::DriverError;
use nodewright_runtime::plan::{Moment, Plan};

use super::{
    super::{
        World,
        calls::Call,
        context::Context,
        ownership::{self, Vm, Word},
        status::{StatusDraft, own_condition},
    },
    drain::drain_deadline,
    instance::{Failed, try_again},
};

/// It is known whose VM it is, and no other Machine names it. What is another's, or not there, is not waited for: the
/// Machine ends without it, and without a Node.
pub(super) fn claimed(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    if ownership::report(plan, at, world) {
        return false;
    }
    match world.claim.vm {
        Vm::Unproven => told(plan, at, world, context),
        Vm::Proven if !world.claim.rivals.is_empty() => {
            tell_rivals(plan, at, world);
            false
        }
        Vm::Proven if !world.claim.twins.is_empty() => is_waited_for(plan, at, world, context),
        Vm::None | Vm::Proven => true,
    }
}

/// Says in the last operation, where people look first, that the deletion waits for other Machines.
fn tell_rivals(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World) {
    let Some((_, text)) = ownership::problem(world) else { return };
    let (machine, text) = (world.machine.as_ref(), format!("{}: {text}", operations::GET_VM_STATUS));
    let draft = StatusDraft::of(machine, at.now);
    let draft = draft.operation(OperationType::Delete, OperationState::Processing, text, None);
    plan.then("the deletion waits for other machines", draft.step(machine));
}

/// Several Nodes of one VM are waited for as the Pods of one Node would be.
fn is_waited_for(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let limit = drain_deadline(world, context).filter(|limit| *limit > at.now);
    match limit.filter(|_| !world.machine.is_force_deletion()) {
        Some(limit) => {
            plan.wake_at(limit);
            false
        }
        None => true,
    }
}

/// The provider has said whose VM it is, and that is noted.
fn told(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let machine = world.machine.as_ref();
    // The stage of the VM says what is wrong with the class.
    let Ok(class) = &world.class else { return true };
    let Some((said, status)) = ownership::ask(plan, at, (world, class), context) else { return false };
    let instance = match said {
        Word::Unasked => return false,
        Word::Failed(answer) => {
            if let Some(error) = answer.outcome.error() {
                try_again(plan, at, world, &Failed::of(error, &answer, &status), context);
            }
            return false;
        }
        Word::Absent(_) => return true,
        Word::Refuted(_, error) => {
            return !leave(plan, at, world, error);
        }
        Word::Owned(instance) => Some(instance),
        Word::Unimplemented if !world.claim.rivals.is_empty() => return false,
        Word::Unimplemented => None,
    };
    let draft = StatusDraft::of(machine, at.now).proven(machine, instance);
    plan.then("the VM is the machine's", draft.step(machine));
    false
}

/// Says that the VM stays, if that has not been said while the Machine lived. Returns whether it is said now.
fn leave(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, error: &DriverError) -> bool {
    let machine = world.machine.as_ref();
    let known = own_condition(machine, conditions::machine::INSTANCE_PROVISIONED);
    let is_said = known.is_some_and(|known| known.reason.as_deref() == Some(reasons::machine::PROVIDER_ID_MISMATCH));
    !is_said && ownership::refute(plan, machine, StatusDraft::of(machine, at.now), error)
}
