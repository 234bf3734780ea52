//! Asks the provider whose VM it is that a Machine names, and notes the answer: one call and one write for a Machine that
//! comes from a backup or from machine-controller-manager. One that is born here needs neither: the provider's answer to
//! its creation is the proof.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{MachinePhase, OperationState, OperationType, conditions, operations, reasons};
use nodewright_driver::DriverError;
use nodewright_runtime::{
    object::name,
    plan::{Moment, Plan, Step},
};

use super::{
    World,
    birth::{Answer, is_corrected, usable_class},
    calls::Call,
    context::Context,
    health::{self, Health},
    ownership::{Word, ask, has_problem, refute},
    retry,
    status::StatusDraft,
};
use crate::shared::ownership::vm_id;

/// Pause before a provider that knows no VM is asked again: a new VM may not show at once.
const ABSENT_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Proves the VM of a Machine that is not noted as proven. Returns whether the Machine is to be judged all the same, because
/// there is no VM.
pub(super) fn prove(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let machine = world.machine.as_ref();
    let Some(class) = usable_class(plan, at, world) else { return false };
    let Some((said, status)) = ask(plan, at, (world, class), context) else { return false };
    let instance = match said {
        Word::Unasked => return false,
        Word::Refuted(answer, error) => {
            refuted(plan, at, world, context, (&answer, error), status);
            return false;
        }
        Word::Failed(answer) => {
            unanswered(plan, at, world, context, &answer, status);
            return false;
        }
        Word::Absent(answer) => return absent(plan, at, world, context, answer.ended, status),
        Word::Owned(instance) => Some(instance),
        Word::Unimplemented => None,
    };
    let draft = StatusDraft::of(machine, at.now).proven(machine, instance);
    let draft = if has_problem(world) { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
    plan.then("the VM is the machine's", draft.step(machine));
    false
}

/// The VM is another's: that is said, nothing is done to it, and the provider is asked again later, or when the class has
/// been corrected.
pub(super) fn refuted(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    (answer, error): (&Answer<'_>, &DriverError),
    again: Call,
) {
    let machine = world.machine.as_ref();
    let due = later(answer.ended, context);
    if due <= at.now || is_corrected(answer, &again) {
        plan.then("is it still another's VM?", Step::Call(again));
        return;
    }
    let draft = StatusDraft::of(machine, at.now);
    let draft = if is_unborn(machine.phase()) {
        let late = context.deadline(machine).is_some_and(|deadline| deadline <= at.now);
        let phase = if late { MachinePhase::Failed } else { MachinePhase::CrashLoopBackOff };
        let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
        draft.phase(phase).operation(OperationType::Create, OperationState::Failed, text, Some(error.code.name()))
    } else {
        draft
    };
    refute(plan, machine, draft, error);
    plan.wait(reasons::machine::PROVIDER_ID_MISMATCH, error.message.clone());
    plan.wake_at(due);
    context.wake_at_deadline(plan, at.now, machine);
}

/// The provider has not said whose VM it is: the Machine stays as it is, and says why nothing is done.
fn unanswered(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    answer: &Answer<'_>,
    again: Call,
) {
    let Some(error) = answer.outcome.error() else { return };
    let due = answer.ended.checked_add(retry::of_birth(error, answer.known.failures, context)).unwrap_or(at.now);
    if due <= at.now || is_corrected(answer, &again) {
        plan.then("the pause after a failed call is over", Step::Call(again));
        return;
    }
    let machine = world.machine.as_ref();
    let kind = conditions::machine::INSTANCE_PROVISIONED;
    let draft = StatusDraft::of(machine, at.now).condition(kind, false, error.code.name(), error.message.clone());
    plan.then("the provider has not said whose VM it is", draft.step(machine));
    plan.wait(
        "ProviderFailed",
        format!("{error}; until it says whose VM it is nothing is done; next attempt at {due}"),
    );
    plan.wake_at(due);
}

/// The provider knows no such VM. The Machine is judged as one without a Node, unless a Node with the VM's id is ready:
/// then more likely the wrong provider, or with the wrong credentials, was asked.
fn absent(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    ended: Timestamp,
    again: Call,
) -> bool {
    let due = ended.checked_add(ABSENT_AGAIN).unwrap_or(at.now);
    if due <= at.now {
        plan.then("is there still no VM?", Step::Call(again));
    } else {
        plan.wake_at(due);
    }
    let machine = world.machine.as_ref();
    let lives = |node: &&crate::shared::node::Node| health::judge(machine, node, context.settings) == Health::Healthy;
    let Some(node) = world.claim.node.as_deref().filter(lives) else { return true };
    let text = format!(
        "the provider knows no VM {}, and yet node {} with its providerID is ready: check the credentials of the class",
        vm_id(machine).unwrap_or_default(),
        name(node)
    );
    plan.wait("VMNotFound", text);
    false
}

fn later(ended: Timestamp, context: Context<'_>) -> Timestamp {
    let pause = SignedDuration::try_from(context.settings.medium_retry).unwrap_or_default();
    ended.checked_add(pause).unwrap_or(ended)
}

/// Whether the phase is one of a Machine whose VM has yet to be set up.
pub(super) fn is_unborn(phase: &MachinePhase) -> bool {
    matches!(phase, MachinePhase::Unset | MachinePhase::CrashLoopBackOff)
}
