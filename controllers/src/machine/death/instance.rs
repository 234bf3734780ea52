//! The stage of a death in which the VM goes, and is confirmed to be gone.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Code, OperationState, OperationType, conditions, finalizers, operations, reasons};
use nodewright_driver::{Class, DriverError, Instance, Mismatch};
use nodewright_runtime::{
    effect::Known,
    events::EventKind,
    plan::{Moment, Plan, Step},
};

use super::{
    super::{
        ClassProblem, World,
        birth::{Answer, is_corrected, link, newest},
        calls::{Call, Outcome, Verb},
        context::{Context, event},
        ownership::{Vm, is_verified},
        retry,
        status::{StatusDraft, own_condition, true_since},
        world::CLASS_NOT_FOUND,
    },
    tell_stage,
};
use crate::shared::ownership::vm_id;

/// Pause before the provider is asked again whether a VM is gone.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// After this a VM that is still there is asked to go once more.
const DELETE_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// The calls of one Machine.
struct Calls {
    status: Call,
    create: Call,
    initialize: Call,
    delete: Call,
}

impl Calls {
    fn of(world: &World, class: &Class, context: Context<'_>) -> Self {
        let of = |verb| context.call(verb, world, class);
        let (status, create) = (of(Verb::Status), of(Verb::Create));
        Self { status, create, initialize: of(Verb::Initialize), delete: of(Verb::Delete) }
    }

    fn any_running(&self, at: &Moment<'_, Call>) -> bool {
        [&self.status, &self.create, &self.initialize, &self.delete]
            .into_iter()
            .any(|call| at.outcomes.is_running(call))
    }
}

/// The provider has confirmed that there is no VM.
pub(super) fn vm_gone(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> bool {
    let class = match &world.class {
        Ok(class) => class,
        Err(problem) if never_had_a_vm(at, world, problem) => return true,
        Err(problem) => {
            let message = with_way_out(world, &problem.message);
            plan.wait(problem.reason, message.clone());
            tell(plan, at, world, problem.reason, &message);
            return false;
        }
    };
    let calls = Calls::of(world, class, context);
    if calls.any_running(at) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        tell(plan, at, world, "CallingProvider", "the VM is being removed");
        return false;
    }
    if world.claim.vm == Vm::None && !identified(plan, at, world, &calls, context) {
        return false;
    }
    // A deletion without the VM's id, or without its proof, was one of a VM that was not known yet.
    let (id, is_proven) = (vm_id(&world.machine), is_verified(&world.machine));
    let is_of_this_vm = |answer: &Answer<'_>| {
        let asked = &answer.call.request.machine;
        asked.provider_id.as_deref() == id && asked.is_proven == is_proven
    };
    let Some(deleted) = newest(at, [&calls.delete]).filter(is_of_this_vm) else {
        plan.then("the VM has to go", Step::Call(calls.delete));
        return false;
    };
    match deleted.outcome.error().filter(|error| error.code != Code::NotFound && !is_left(world, error)) {
        Some(error) => {
            try_again(plan, at, world, &Failed::of(error, &deleted, &calls.delete), context);
            false
        }
        None => confirmed(plan, at, world, context, calls, deleted.known),
    }
}

/// The provider has said, since the deletion, that it knows no VM of a machine that is not linked to one, and none is on
/// its way; or that it knows several. One of which only the provider knew is linked: then its Node is found, and a restart
/// knows of both. Whoever deleted it without an answer would never hear of its Node.
fn identified(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    calls: &Calls,
    context: Context<'_>,
) -> bool {
    if let Some(instance) = found(at, calls) {
        link(plan, world.machine.as_ref(), instance, context);
        return false;
    }
    let Some(status) = newest(at, [&calls.status]).filter(|answer| answer.call.request.deleting) else {
        plan.then("has the machine a VM?", Step::Call(calls.status.clone()));
        return false;
    };
    match status.outcome.error() {
        Some(error) if error.code == Code::NotFound => none_on_its_way(plan, at, world, calls, status.ended, context),
        Some(error) if !matches!(error.code, Code::Unimplemented | Code::OutOfRange) => {
            try_again(plan, at, world, &Failed::of(error, &status, &calls.status), context);
            false
        }
        _ => true,
    }
}

/// No VM may still come of which the provider did not know when it said, at `told`, that there is none. Such a one would be
/// nobody's once the machine is gone.
fn none_on_its_way(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    calls: &Calls,
    told: Timestamp,
    context: Context<'_>,
) -> bool {
    match uncertain_until(at, world, &calls.create, context).filter(|until| *until > told) {
        None => return true,
        Some(until) if until > at.now => {
            let message = format!("a VM that was asked for may still appear until {until}");
            plan.wait("Confirming", message.clone());
            plan.wake_at(until);
            tell(plan, at, world, "Confirming", &message);
        }
        Some(_) => {
            plan.then("is there a late VM?", Step::Call(calls.status.clone()));
        }
    }
    false
}

/// What ends the deletion of a Machine that names a VM where nobody can ask the provider for it any more.
fn with_way_out(world: &World, message: &str) -> String {
    match vm_id(&world.machine) {
        Some(id) => format!(
            "{message}; the class is needed to remove VM {id}: if that is not to be removed, take finalizer {} off the Machine",
            finalizers::MACHINE_CONTROLLER_MANAGER
        ),
        None => message.to_owned(),
    }
}

/// Whether no VM can have been asked for: the Machine has none, and its class never was, or could never be used (see
/// [`ClassProblem::never_used`]). That the class never was, the Machine's own status says: a VM is asked for only while
/// the class has its finalizer, and with that a class outlives its Machines. Without this rule, a typo in the name of a
/// class or of a Secret would end only when somebody makes an object of that name.
///
/// Caveat: if the finalizer is taken off a class by force, between the provider's answer and the link, the VM stays.
fn never_had_a_vm(at: &Moment<'_, Call>, world: &World, problem: &ClassProblem) -> bool {
    let machine = world.machine.as_ref();
    let said = own_condition(machine, conditions::machine::CONFIGURATION_VALID);
    let said = said.is_some_and(|said| said.status == "False" && said.reason.as_deref() == Some(CLASS_NOT_FOUND));
    let never_was = problem.reason == CLASS_NOT_FOUND && said;
    vm_id(machine).is_none() && (never_was || problem.never_used && at.outcomes.is_empty())
}

/// The provider says, after the deletion, that there is no VM.
fn confirmed(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    context: Context<'_>,
    calls: Calls,
    deleted: &Known<Outcome>,
) -> bool {
    let answer = newest(at, [&calls.status]).filter(|answer| answer.known.order > deleted.order);
    let Some(answer) = answer else {
        plan.then("is the VM gone?", Step::Call(calls.status));
        return false;
    };
    let (when, outcome) = (answer.ended, answer.outcome);
    match outcome {
        outcome if outcome.says_none() || outcome.error().is_some_and(|error| is_left(world, error)) => {
            return none_on_its_way(plan, at, world, &calls, when, context);
        }
        Outcome::Failed(error) if error.code != Code::OutOfRange => {
            try_again(plan, at, world, &Failed::of(error, &answer, &calls.status), context);
        }
        _ => {
            let again = at.now.duration_since(deleted.begun) >= DELETE_AGAIN;
            let due = when.checked_add(POLL).unwrap_or(at.now);
            match (due <= at.now, again) {
                (false, _) => drop(plan.wake_at(due)),
                (true, true) => drop(plan.then("the VM is still there", Step::Call(calls.delete))),
                (true, false) => drop(plan.then("is the VM gone?", Step::Call(calls.status))),
            }
            let message = match vm_id(&world.machine) {
                Some(id) => format!("VM {id} is being removed"),
                None => "all VMs of the machine's name are being removed".to_owned(),
            };
            plan.wait("RemovingVM", message.clone());
            tell(plan, at, world, "Removing", &message);
        }
    }
    false
}

/// Whether a VM that the Machine names, and that is not proven to be its own, is left where it is. One that was proven is
/// not: its tags or the class have changed since. Nor is one that bears the Machine's name in another cluster: most likely the
/// class was edited before anybody asked.
fn is_left(world: &World, error: &DriverError) -> bool {
    world.claim.vm != Vm::Proven && error.mismatch == Some(Mismatch::Machine)
}

/// The VM that the newest answers speak of.
fn found<'a>(at: &'a Moment<'_, Call>, calls: &Calls) -> Option<&'a Instance> {
    [&calls.status, &calls.create].into_iter().find_map(|call| match at.outcomes.last(call) {
        Some(Outcome::Instance(instance)) => Some(instance),
        _ => None,
    })
}

fn terminating_since(world: &World) -> Option<Timestamp> {
    world.machine.status.as_ref()?.current_status.last_update_time.as_ref().map(|time| time.0)
}

/// Until when a VM may exist although the provider does not show one.
///
/// One that was made just now may be hidden for as long as the provider is not consistent, even if it has become a Node
/// meanwhile: the cluster has seen the Node, and not the provider. What this process did it knows, for as long as the machine
/// does not run; what an earlier one did it cannot know, and that one acted at the latest when this one began. Times that
/// stand in objects are by other clocks, or by one that somebody has set since: they may lengthen the wait, and not shorten it.
fn uncertain_until(at: &Moment<'_, Call>, world: &World, create: &Call, context: Context<'_>) -> Option<Timestamp> {
    let hidden = SignedDuration::try_from(context.driver.consistency()).ok()?;
    let asked = at.outcomes.get(create);
    if vm_id(&world.machine).is_some() {
        let told = asked.and_then(|known| known.last.as_ref()).map_or(at.since, |(ended, _)| *ended);
        let noted = noted_as_made(world).filter(|noted| *noted <= at.now);
        return noted.map_or(told, |noted| noted.max(told)).checked_add(hidden).ok();
    }
    let settle = hidden.checked_add(SignedDuration::try_from(context.driver.deadline()).ok()?)?;
    asked.map_or(at.since, |known| known.begun).checked_add(settle).ok()
}

/// When the machine's status says that it got its VM; without that word, when it began to go.
fn noted_as_made(world: &World) -> Option<Timestamp> {
    let machine = world.machine.as_ref();
    true_since(machine, conditions::machine::INSTANCE_PROVISIONED)
        .or_else(|| true_since(machine, conditions::machine::NODE_JOINED))
        .or_else(|| terminating_since(world))
}

/// A call that failed, and the one to make next.
pub(super) struct Failed<'a> {
    error: &'a DriverError,
    ended: Timestamp,
    times: u32,
    /// Whether the class has been corrected since.
    is_corrected: bool,
    again: Call,
}

impl<'a> Failed<'a> {
    pub(super) fn of(error: &'a DriverError, answer: &Answer<'_>, again: &Call) -> Self {
        let is_corrected = is_corrected(answer, again);
        Self { error, ended: answer.ended, times: answer.known.failures, is_corrected, again: again.clone() }
    }
}

pub(super) fn try_again(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    failed: &Failed<'_>,
    context: Context<'_>,
) {
    let Failed { error, ended, times, is_corrected, again } = failed;
    let due = ended.checked_add(retry::of_death(error, *times, context)).unwrap_or(at.now);
    if due <= at.now || *is_corrected {
        plan.then("the pause after a failed call is over", Step::Call(again.clone()));
        return;
    }
    let machine = world.machine.as_ref();
    let text = format!("{}: {error}", operations::INITIATE_VM_DELETION);
    let draft = StatusDraft::of(machine, at.now)
        .operation(OperationType::Delete, OperationState::Failed, text, Some(error.code.name()))
        .condition(conditions::machine::INSTANCE_TERMINATED, false, error.code.name(), error.message.clone());
    if let Some(step) = draft.step(machine) {
        plan.then("the provider refused", step);
        plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED_TERMINATION, error.to_string()));
    }
    plan.wait("ProviderFailed", format!("{error}; next attempt at {due}"));
    plan.wake_at(due);
}

fn tell(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, reason: &str, message: &str) {
    let condition = conditions::machine::INSTANCE_TERMINATED;
    let description = format!("{}: {message}", operations::INITIATE_VM_DELETION);
    tell_stage(plan, at, world, &description, condition, reason, message);
}
