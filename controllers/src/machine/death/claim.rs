//! Before anything is torn down: is the VM that the Machine names the Machine's, and nobody else's?

use nodewright_runtime::{
    events::EventKind,
    plan::{Moment, Plan, Step},
};

use nodewright_api::{conditions, reasons};

use super::{
    super::{
        World,
        calls::{Call, Verb},
        context::{Context, event},
        ownership::{self, Vm, Word, word},
        status::{StatusDraft, own_condition},
    },
    drain::drain_deadline,
    instance::{Failed, try_again},
};
use crate::driver::DriverError;

/// It is known whose VM it is, and no other Machine names it. What is another's, or not there, is not waited for: the
/// Machine ends without it, and without a Node.
pub(super) fn claimed(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    if ownership::report(plan, at, world) {
        return false;
    }
    match world.claim.vm {
        Vm::Unproven => told(plan, at, world, context),
        Vm::Proven if !world.claim.rivals.is_empty() => false,
        Vm::Proven if !world.claim.twins.is_empty() => is_waited_for(plan, at, world, context),
        Vm::None | Vm::Proven => true,
    }
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
    let (status, create) = (context.call(Verb::Status, world, class), context.call(Verb::Create, world, class));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&create) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return false;
    }
    let instance = match word(at, &status, &create) {
        Word::Unasked => {
            plan.then("nobody has said yet whose VM it is", Step::Call(status));
            return false;
        }
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
    let (machine, reason) = (world.machine.as_ref(), reasons::machine::PROVIDER_ID_MISMATCH);
    let kind = conditions::machine::INSTANCE_PROVISIONED;
    if own_condition(machine, kind).is_some_and(|known| known.reason.as_deref() == Some(reason)) {
        return false;
    }
    let draft = StatusDraft::of(machine, at.now).condition(kind, false, reason, error.message.clone());
    plan.then("the VM is another's", draft.step(machine));
    plan.event(event(machine, EventKind::Warning, reason, error.message.clone()));
    true
}
