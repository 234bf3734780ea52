//! How a Machine gets its VM: class and secrets are there → VM made → linked → set up.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachinePhase, OperationState, OperationType, conditions, operations, reasons};
use nodewright_driver::{Class, Instance};
use nodewright_runtime::{
    effect::Known,
    events::EventKind,
    object::{Cluster, controller_uid, is_deleting},
    plan::{Moment, Plan, Step},
};

use super::{
    ClassProblem, Owner, World,
    calls::{Call, Outcome, Verb},
    context::{Context, event},
    owned::Link,
    ownership::{Word, has_problem, word},
    proof::{is_unborn, refuted},
    retry,
    status::StatusDraft,
    world::USER_DATA,
};

/// Pause before a name is asked for again that the ledger said had had its life.
const RETIRED_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// No VM is known: ask for it, make it, link it.
pub(super) fn create(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let Some(class) = usable_class(plan, at, world) else { return };
    if !world.class_held {
        plan.wait("ClassNotHeld", "the machine's class and its Secrets have yet to get their finalizers");
        return;
    }
    if let Some(problem) = world.changed_identity.clone().or_else(|| lacks_user_data(class)) {
        refuse_class(plan, at, world, &problem);
        return;
    }
    if let Some((reason, text)) = world.unknown_life() {
        refuse(plan, at, world, reason, &text);
        return;
    }
    if let Some(reason) = has_no_future(world) {
        plan.wait("Retired", reason);
        return;
    }
    let (status, create) = (context.call(Verb::Status, world, class), context.call(Verb::Create, world, class));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&create) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return;
    }
    match newest(at, [&status, &create]) {
        None => {
            plan.then("nothing is known of the machine's VM", Step::Call(status));
        }
        Some(Answer { outcome: Outcome::Instance(instance), .. }) => link(plan, machine, instance, context),
        Some(Answer { call, outcome: Outcome::Retired, .. }) if !is_of_owner(call, machine) => {
            plan.then("another set has the machine now", Step::Call(create));
        }
        Some(Answer { call, ended, outcome: Outcome::Retired, .. }) => {
            // The ledger said so once; it may have been read in a moment in which it was not there.
            plan.wait("Retired", "the machine's name has had its life: its set deletes it");
            match ended.checked_add(RETIRED_PAUSE) {
                Ok(again) if again > at.now => plan.wake_at(again),
                _ => plan.then("is the name retired?", Step::Call(call.clone())),
            };
        }
        Some(answer) if answer.call.verb == Verb::Status && answer.outcome.says_none() => {
            plan.then("the machine has no VM", Step::Call(create));
        }
        Some(answer) => try_again(plan, at, world, context, &answer, status.clone()),
    }
}

/// Whether a call asked the ledger of the set that owns the Machine now.
fn is_of_owner(call: &Call, machine: &Machine) -> bool {
    call.request.origin.as_ref().is_none_or(|origin| controller_uid(machine) == Some(origin.uid.as_str()))
}

/// The newest answer to one of several calls.
pub(super) struct Answer<'a> {
    pub(super) call: &'a Call,
    pub(super) ended: Timestamp,
    pub(super) outcome: &'a Outcome,
    pub(super) known: &'a Known<Outcome>,
}

pub(super) fn newest<'a, const N: usize>(at: &'a Moment<'_, Call>, calls: [&Call; N]) -> Option<Answer<'a>> {
    let known = calls.into_iter().filter_map(|call| Some((at.outcomes.asked(call)?, at.outcomes.get(call)?)));
    let (call, known) = known.filter(|(_, known)| known.last.is_some()).max_by_key(|(_, known)| known.order)?;
    let (ended, outcome) = known.last.as_ref()?;
    Some(Answer { call, ended: *ended, outcome, known })
}

/// Whether a class or its Secrets have changed since a call was made with them.
pub(super) fn is_corrected(answer: &Answer<'_>, again: &Call) -> bool {
    answer.call.request.machine.class.revision != again.request.machine.class.revision
}

/// Says what went wrong, and makes the next call after a pause; at once when what was refused has been corrected.
fn try_again(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    answer: &Answer<'_>,
    next: Call,
) {
    let Some(error) = answer.outcome.error() else { return };
    let due = answer.ended.checked_add(retry::of_birth(error, answer.known.failures, context)).unwrap_or(at.now);
    if due <= at.now || is_corrected(answer, &next) {
        plan.then("the pause after a failed call is over", Step::Call(next));
        return;
    }
    let machine = world.machine.as_ref();
    let late = context.deadline(machine).is_some_and(|deadline| deadline <= at.now);
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
    context.wake_at_deadline(plan, at.now, machine);
}

/// Writes the durable link to the VM, in a write of its own, right after the answer.
pub(super) fn link(plan: &mut Plan<Call>, machine: &Machine, instance: &Instance, context: Context<'_>) {
    let link = Link::of(machine, instance, context.settings.has_target);
    plan.then("the VM exists", Step::apply_pinned(Cluster::CONTROL, machine, &link));
}

/// The VM is linked: set it up, and say so.
pub(super) fn set_up(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let Some(class) = usable_class(plan, at, world) else { return };
    let of = |verb| context.call(verb, world, class);
    let (status, create, initialize) = (of(Verb::Status), of(Verb::Create), of(Verb::Initialize));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&initialize) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return;
    }
    let instance = match word(at, &status, &create) {
        Word::Unasked => {
            plan.then("nobody has said yet whose VM it is", Step::Call(status));
            return;
        }
        Word::Refuted(answer, error) => return refuted(plan, at, world, context, (&answer, error), status),
        Word::Failed(answer) => return try_again(plan, at, world, context, &answer, status),
        // It is gone already, or does not show yet: the creation timeout decides.
        Word::Absent(_) => return provisioned(plan, at, machine, Proof::None, context),
        Word::Unimplemented => return provisioned(plan, at, machine, Proof::Claim, context),
        Word::Owned(instance) => instance,
    };
    // A VM that this process has made is new, whatever became of the answer.
    let is_new = at.outcomes.get(&create).is_some();
    match newest(at, [&initialize]) {
        Some(Answer { outcome: Outcome::Instance(instance), .. }) => {
            provisioned(plan, at, machine, Proof::Instance(instance), context);
        }
        Some(answer) if answer.outcome.says_none() => {
            provisioned(plan, at, machine, Proof::Instance(instance), context);
        }
        Some(answer) => try_again(plan, at, world, context, &answer, initialize.clone()),
        None if !is_new && !instance.uninitialized => {
            provisioned(plan, at, machine, Proof::Instance(instance), context);
        }
        None => {
            plan.then("the VM is not set up yet", Step::Call(initialize));
        }
    }
}

/// What says that a VM is the Machine's.
#[derive(Clone, Copy)]
enum Proof<'a> {
    /// The provider.
    Instance(&'a Instance),
    /// The Machine: the provider cannot tell.
    Claim,
    /// Nothing: the provider knows no such VM.
    None,
}

fn provisioned(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    machine: &Machine,
    proof: Proof<'_>,
    context: Context<'_>,
) {
    let draft = StatusDraft::of(machine, at.now).without(conditions::machine::CONFIGURATION_VALID);
    let id = machine.spec.provider_id.as_str();
    let (draft, text) = match proof {
        Proof::Instance(instance) => {
            let draft = draft.proven(machine, Some(instance)).last_known_state(instance.last_known_state.as_ref());
            (draft, format!("VM {} exists", instance.provider_id))
        }
        Proof::Claim => {
            (draft.proven(machine, None), format!("VM {id} is taken for the machine's: the provider cannot tell"))
        }
        Proof::None => {
            let text = format!("the provider knows no VM {id}");
            (draft.condition(conditions::machine::INSTANCE_PROVISIONED, false, "NotFound", text.clone()), text)
        }
    };
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
    plan.event(match proof {
        Proof::None => event(machine, EventKind::Warning, reasons::machine::UNHEALTHY, text),
        Proof::Instance(_) | Proof::Claim => event(machine, EventKind::Normal, reasons::machine::PROVISIONED, text),
    });
}

/// The class, if it can be acted on; else what to do is said, and waited for.
pub(super) fn usable_class<'a>(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &'a World) -> Option<&'a Class> {
    match &world.class {
        Ok(class) => Some(class),
        Err(problem) => {
            refuse_class(plan, at, world, problem);
            None
        }
    }
}

/// What a birth needs of a class, and nothing else does: a VM can be found and removed without user data.
fn lacks_user_data(class: &Class) -> Option<ClassProblem> {
    let lacks = !class.secret.is_empty() && class.secret.get(USER_DATA).is_none();
    lacks.then(|| ClassProblem {
        reason: "UserDataMissing",
        message: format!("the Secrets of MachineClass {:?} have no key {USER_DATA:?}: add it", class.name),
        never_used: false,
    })
}

/// Says what is wrong with the class, and waits until it is corrected.
fn refuse_class(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, problem: &ClassProblem) {
    refuse(plan, at, world, problem.reason, &problem.message);
}

/// Says what keeps a VM from being made, and waits.
fn refuse(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, reason: &'static str, message: &str) {
    let machine = world.machine.as_ref();
    let draft =
        StatusDraft::of(machine, at.now).condition(conditions::machine::CONFIGURATION_VALID, false, reason, message);
    let draft = if is_unborn(machine.phase()) {
        draft.operation(OperationType::Create, OperationState::Processing, message, None)
    } else {
        draft
    };
    // The condition says one thing at a time.
    if let Some(step) = draft.step(machine).filter(|_| !has_problem(world)) {
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
        _ if world.is_retired() == Some(true) => Some("its name has had its life: its machine set deletes it"),
        _ => None,
    }
}
