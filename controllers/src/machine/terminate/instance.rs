//! The stage in which the VM is deleted, and confirmed to be gone.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    Code, OperationState, OperationType, conditions, finalizers, labels, operations, reasons, stored::MissingClass,
};
use nodewright_driver::{DriverError, Instance, Mismatch};
use nodewright_runtime::{effect::Known, events::Event, object::name};

use super::super::{
    calls::{Outcome, Verb},
    claim::{NotOwned, Vm},
    ownership::{Ownership, namesakes, ownership},
    partial_plan::PartialPlan,
    provider::{Answer, CALLING, Inquiry, PAUSE_OVER, Provider, deletion_pause},
    provision::link,
    scope::Scope,
    snapshot::ClassError,
    status::true_since,
    token,
};
use crate::shared::{ownership::vm_id, usable_class::CLASS_NOT_FOUND};

/// How long after its deletion a VM that still exists is deleted again.
const DELETE_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// What is done about the VM of a Machine that is being deleted.
enum Deletion<'a> {
    /// There is none, or it stays with another Machine.
    Over,
    /// The provider has not answered yet.
    Await(String),
    /// The provider is asked, and why.
    Ask(&'static str, Verb),
    /// Whether another Machine has the name decides.
    Namesakes(Inquiry),
    /// The VM is the Machine's, which does not name it yet: so its Node is found.
    Link(&'a Instance),
    /// The VM has another Machine's token, and that Machine is gone.
    Adopt(&'a Instance),
    /// It is not known whose the VM is, and the API server is asked again then.
    OwnerUnknown(NotOwned, Timestamp),
    Delete,
    /// A call has failed. After a pause the next one is made.
    Failed(Answer<'a>, &'a DriverError, Verb),
    /// The driver has left notes with the deletion, for the calls that follow.
    Note(&'a String),
    /// The VM is being removed.
    Removing(Poll),
    /// Other VMs of the Machine are being removed: the provider is asked again then.
    RemovingOthers(Timestamp),
    /// A VM that was asked for may still appear until then: it would have no owner once the Machine is gone.
    Confirm(Timestamp),
}

/// How it is found out that a VM is gone.
#[derive(Clone, Copy)]
enum Poll {
    At(Timestamp),
    Now(&'static str, Verb),
}

fn decide<'a>(provider: &Provider<'a>) -> Deletion<'a> {
    let calls = [Verb::Status, Verb::Create, Verb::Initialize, Verb::Delete, Verb::DeleteOthers];
    if let Some(message) = provider.awaited(&calls) {
        return Deletion::Await(message);
    }
    let claim = &provider.scope.snapshot.claim;
    if claim.keeper.is_some() {
        return others_deleted(provider);
    }
    if claim.vm == Vm::None
        && let Some(decided) = unidentified(provider)
    {
        return decided;
    }
    // A deletion without the VM's id, or without its proof, was one of a VM that was not known yet.
    let Some(deleted) = provider.newest(&[Verb::Delete]).filter(|answer| provider.is_of_this_vm(answer)) else {
        return namesake_blocks(provider).unwrap_or(Deletion::Delete);
    };
    let error = deleted.outcome.error();
    match error.filter(|error| error.code != Code::NotFound && !is_left(&provider.scope, error)) {
        Some(error) if error.mismatch == Some(Mismatch::Machine) => disowned(provider, deleted, error),
        Some(error) => Deletion::Failed(deleted, error, Verb::Delete),
        None => unnoted(provider, &deleted).map_or_else(|| confirmed(provider, deleted.known), Deletion::Note),
    }
}

/// A provider whose VMs keep no token deletes by the name alone: then no other Machine may have the name. `None` if the VM may be
/// deleted.
fn namesake_blocks<'a>(provider: &Provider<'a>) -> Option<Deletion<'a>> {
    let scope = &provider.scope;
    if scope.snapshot.claim.vm == Vm::Proven || scope.driver.stores_owner {
        return None;
    }
    let status = provider.newest(&[Verb::Status]).map_or(0, |answer| answer.known.order);
    match namesakes(provider, status, "the provider deletes VMs by their names") {
        Ownership::Own => None,
        Ownership::Open(inquiry) => Some(Deletion::Namesakes(inquiry)),
        Ownership::Foreign(_) => Some(Deletion::Over),
        Ownership::Unknown(why, due) => Some(Deletion::OwnerUnknown(why, due)),
    }
}

/// The status notes the VM as proven, and its token is another Machine's: the status is older than the VM's tokens, or a restore has
/// brought it back. The VM is adopted if no other Machine has it, and else it stays.
fn disowned<'a>(provider: &Provider<'a>, deleted: Answer<'a>, error: &'a DriverError) -> Deletion<'a> {
    let Some(answer) = provider.newest(&[Verb::Status]).filter(|answer| answer.known.order > deleted.known.order)
    else {
        return Deletion::Ask("ask whose VM it is", Verb::Status);
    };
    match answer.outcome {
        Outcome::Instance(instance) if is_anothers(provider, instance) => {
            owned(provider, &answer, instance).unwrap_or(Deletion::Adopt(instance))
        }
        outcome if outcome.found_no_vm() => none_on_its_way(provider, answer.ended, Verb::Status),
        _ => Deletion::Failed(deleted, error, Verb::Delete),
    }
}

/// What follows unless a VM is the Machine's own.
fn owned<'a>(provider: &Provider<'a>, answer: &Answer<'a>, instance: &Instance) -> Option<Deletion<'a>> {
    match ownership(provider, answer, Some(instance)) {
        Ownership::Own => None,
        Ownership::Open(inquiry) => Some(Deletion::Namesakes(inquiry)),
        // It stays. One of the Machine's own may still appear.
        Ownership::Foreign(_) => Some(none_on_its_way(provider, answer.ended, Verb::Status)),
        Ownership::Unknown(why, due) => Some(Deletion::OwnerUnknown(why, due)),
    }
}

/// The VM stays with another Machine. The driver is not asked to delete or to find this one's VM, since it has taken the other's for
/// it. What the provider lists for this Machine goes.
fn others_deleted<'a>(provider: &Provider<'a>) -> Deletion<'a> {
    let Some(answer) = provider.newest(&[Verb::DeleteOthers]) else {
        return Deletion::Ask("another machine keeps the VM: ask whether this one has others", Verb::DeleteOthers);
    };
    match answer.outcome.error() {
        Some(_) if answer.outcome.found_no_vm() => none_on_its_way(provider, answer.ended, Verb::DeleteOthers),
        Some(error) => Deletion::Failed(answer, error, Verb::DeleteOthers),
        None => match provider.scope.pause_end(answer.ended, provider.scope.driver.poll) {
            Some(due) => Deletion::RemovingOthers(due),
            None => Deletion::Ask("ask whether its other VMs are gone", Verb::DeleteOthers),
        },
    }
}

/// The notes of the driver that the status does not have yet. A later answer may have newer ones.
fn unnoted<'a>(provider: &Provider<'a>, deleted: &Answer<'a>) -> Option<&'a String> {
    let Outcome::Noted(state) = deleted.outcome else { return None };
    let newest = provider.newest(&[Verb::Status, Verb::Delete])?;
    let is_unnoted = provider.scope.status().last_known_state(Some(state)).step().is_some();
    (is_unnoted && newest.known.order == deleted.known.order).then_some(state)
}

/// For a Machine that is not linked to a VM: `None` once the provider has said, since the deletion, that it knows none and none is on
/// its way, or that it knows several. A VM that only the provider knows is linked first.
fn unidentified<'a>(provider: &Provider<'a>) -> Option<Deletion<'a>> {
    for answer in [Verb::Status, Verb::Create].iter().filter_map(|verb| provider.newest(&[*verb])) {
        if let Outcome::Instance(instance) = answer.outcome {
            let decided = owned(provider, &answer, instance).unwrap_or(Deletion::Link(instance));
            return unless_over(decided);
        }
    }
    let Some(status) = provider.newest(&[Verb::Status]).filter(|answer| answer.call.request.deleting) else {
        return Some(Deletion::Ask("ask whether the machine has a VM", Verb::Status));
    };
    match status.outcome.error() {
        Some(error) if error.code == Code::NotFound || error.mismatch.is_some() => {
            unless_over(none_on_its_way(provider, status.ended, Verb::Status))
        }
        Some(error) if !matches!(error.code, Code::Unimplemented | Code::OutOfRange) => {
            Some(Deletion::Failed(status, error, Verb::Status))
        }
        _ => None,
    }
}

fn unless_over(decided: Deletion<'_>) -> Option<Deletion<'_>> {
    Some(decided).filter(|decided| !matches!(decided, Deletion::Over))
}

/// No VM may still appear that the provider did not know at `answered`.
fn none_on_its_way<'a>(provider: &Provider<'a>, answered: Timestamp, next: Verb) -> Deletion<'a> {
    match uncertain_until(provider).filter(|until| *until > answered) {
        None => Deletion::Over,
        Some(until) if until > provider.scope.now() => Deletion::Confirm(until),
        Some(_) => Deletion::Ask("ask whether a late VM has appeared", next),
    }
}

/// Whether the provider says, after the deletion, that there is no VM.
fn confirmed<'a>(provider: &Provider<'a>, deleted: &Known<Outcome>) -> Deletion<'a> {
    let scope = &provider.scope;
    let ask = ("ask whether the VM is gone", Verb::Status);
    let answer = provider.newest(&[Verb::Status]).filter(|answer| answer.known.order > deleted.order);
    let Some(answer) = answer else { return Deletion::Ask(ask.0, ask.1) };
    // What else has its name was made for others, and becomes orphans with the Machine.
    let is_deleted = deleted.last.as_ref().is_some_and(|(_, outcome)| outcome.error().is_none());
    let is_gone = |error: &DriverError| is_left(scope, error) || is_deleted && is_of_others(error);
    match answer.outcome {
        outcome if outcome.found_no_vm() || outcome.error().is_some_and(is_gone) => {
            return none_on_its_way(provider, answer.ended, Verb::Status);
        }
        Outcome::Failed(error) if error.code != Code::OutOfRange => {
            return Deletion::Failed(answer, error, Verb::Status);
        }
        // The machine's own VM would be found first.
        Outcome::Instance(instance) if scope.snapshot.claim.vm == Vm::Proven && is_anothers(provider, instance) => {
            return none_on_its_way(provider, answer.ended, Verb::Status);
        }
        Outcome::Instance(instance) => {
            if let Some(decided) = owned(provider, &answer, instance) {
                return decided;
            }
        }
        _ => {}
    }
    let is_overdue = scope.now().duration_since(deleted.begun) >= DELETE_AGAIN;
    Deletion::Removing(match scope.pause_end(answer.ended, scope.driver.poll) {
        Some(due) => Poll::At(due),
        None if is_overdue => Poll::Now("the VM is still there", Verb::Delete),
        None => Poll::Now(ask.0, ask.1),
    })
}

/// Whether the token of a VM is another Machine's.
fn is_anothers(provider: &Provider<'_>, instance: &Instance) -> bool {
    instance.owner_uid.is_some() && !provider.owns(instance.owner_uid.as_deref())
}

/// Whether a VM that the Machine names is left where it is. A proven VM is not: its tags or the class have changed since. Nor
/// is one that bears the Machine's name in another cluster: most likely the class was edited.
fn is_left(scope: &Scope<'_>, error: &DriverError) -> bool {
    scope.snapshot.claim.vm != Vm::Proven && is_of_others(error)
}

/// Whether what the provider knows was not made for the Machine.
fn is_of_others(error: &DriverError) -> bool {
    error.mismatch == Some(Mismatch::Machine)
}

/// Until when a VM may exist although the provider does not show one.
///
/// A new VM may be hidden for as long as the provider is not consistent. What an earlier process did is not known, but it acted
/// before this one began. Times in objects are by other clocks: they may lengthen the wait, and not shorten it.
fn uncertain_until(provider: &Provider<'_>) -> Option<Timestamp> {
    let scope = &provider.scope;
    let (hidden, since) = (scope.driver.consistency, scope.context.leader_since);
    let asked = provider.known(Verb::Create);
    if vm_id(scope.machine).is_some() {
        let answered = asked.and_then(|known| known.last.as_ref()).map_or(since, |(ended, _)| *ended);
        let noted = noted_as_created(scope).filter(|noted| *noted <= scope.now());
        return noted.map_or(answered, |noted| noted.max(answered)).checked_add(hidden).ok();
    }
    let settle = hidden.checked_add(scope.driver.deadline)?;
    asked.map_or(since, |known| known.begun).checked_add(settle).ok()
}

/// When the Machine's status says that it got its VM; else when the termination began.
fn noted_as_created(scope: &Scope<'_>) -> Option<Timestamp> {
    let machine = scope.machine;
    true_since(machine, conditions::machine::INSTANCE_PROVISIONED)
        .or_else(|| true_since(machine, conditions::machine::NODE_JOINED))
        .or_else(|| machine.phase_since())
}

/// Whether no VM can have been asked for: the Machine has none, and its class never existed, as its own status says, or could
/// never be used. Otherwise a typo in the name of a class or a Secret would keep the Machine for ever.
///
/// Caveat: if the finalizer of a class is removed by force between the provider's answer and the link, the VM stays.
fn never_had_a_vm(scope: &Scope<'_>, error: &ClassError) -> bool {
    let machine = scope.machine;
    let valid = machine.condition(conditions::machine::CONFIGURATION_VALID);
    let never_existed = error.reason == CLASS_NOT_FOUND && valid.and_then(MissingClass::of).is_some();
    vm_id(machine).is_none() && (never_existed || error.never_used && scope.context.outcomes.is_empty())
}

/// Whether this process has asked the provider to delete the VM: then the stages before are over.
pub(super) fn is_deletion_begun(scope: &Scope<'_>) -> bool {
    let Ok(class) = &scope.snapshot.class else { return false };
    Provider::of(scope, class).known(Verb::Delete).is_some()
}

pub(in super::super) fn vm_deleted(scope: &Scope<'_>) -> PartialPlan {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(error) if never_had_a_vm(scope, error) => return PartialPlan::over(),
        Err(error) => {
            let message = with_way_out(scope, &error.message);
            return lasting(scope, error.reason, &message).and_wait(error.reason, message);
        }
    };
    let provider = Provider::of(scope, class);
    let status = || scope.status();
    match decide(&provider) {
        Deletion::Over => PartialPlan::over(),
        Deletion::Await(message) => lasting(scope, CALLING, &message).and_wait(CALLING, message),
        Deletion::Ask(why, verb) => provider.ask(why, verb),
        Deletion::Namesakes(inquiry) => provider.inquire(inquiry),
        Deletion::Link(instance) => link(scope, instance),
        Deletion::Adopt(instance) => PartialPlan::step("the VM is adopted", status().proven(Some(instance)).step()),
        Deletion::OwnerUnknown(why, due) => owner_unknown(&provider, &why, due),
        Deletion::Delete => provider.ask("the VM has to go", Verb::Delete).event(undrained(scope)),
        Deletion::Failed(answer, error, next) => try_again(&provider, (&answer, error), next),
        Deletion::Note(state) => {
            PartialPlan::step("the driver has notes to keep", status().last_known_state(Some(state)).step())
        }
        Deletion::Removing(poll) => removing(&provider, poll),
        Deletion::RemovingOthers(due) => {
            PartialPlan::waiting("Removing", "the other VMs of the machine are being removed").waking_at(due)
        }
        Deletion::Confirm(until) => {
            let message = format!("a VM that was asked for may still appear until {until:.0}");
            lasting(scope, "Confirming", &message).and_wait("Confirming", message).waking_at(until)
        }
    }
}

fn removing(provider: &Provider<'_>, poll: Poll) -> PartialPlan {
    let scope = &provider.scope;
    let part = match poll {
        Poll::At(due) => PartialPlan::default().waking_at(due),
        Poll::Now(why, verb) => provider.ask(why, verb),
    };
    let message = match vm_id(scope.machine) {
        Some(id) => format!("VM {id} is being removed"),
        None => "all VMs of the machine's name are being removed".to_owned(),
    };
    show(part, scope, "Removing", &message).and_wait("Removing", message)
}

/// Nothing is deleted while it is not known whose VM it is.
pub(in super::super) fn owner_unknown(provider: &Provider<'_>, why: &NotOwned, due: Timestamp) -> PartialPlan {
    let scope = &provider.scope;
    let message = format!(
        "{}; if the VM is not this machine's, take finalizer {} off the Machine",
        why.error.message,
        finalizers::MACHINE_CONTROLLER_MANAGER
    );
    lasting(scope, why.reason, &message).and_wait(why.reason, message).waking_at(due)
}

/// Reports that the Pods of a Node end with the VM, because the deletion is forced: with the first call that deletes the VM.
fn undrained(scope: &Scope<'_>) -> Option<Event> {
    let node =
        scope.snapshot.node.as_deref().filter(|_| scope.machine.is_force_deletion() && !is_deletion_begun(scope))?;
    let text = format!(
        "label {} is set: node {} is not drained, and its pods end with the VM, ignoring disruption budgets",
        labels::FORCE_DELETION,
        name(node)
    );
    Some(scope.warning(reasons::machine::DRAIN_FORCED, text))
}

/// The bootstrap token of a Machine that has never joined is of no more use: no other machine may join with it. It is tried once: a
/// token expires by itself.
pub(in super::super) fn token_dropped(scope: &Scope<'_>) -> PartialPlan {
    let has_joined = true_since(scope.machine, conditions::machine::NODE_JOINED).is_some();
    let class = scope.snapshot.class.as_ref().ok().filter(|class| scope.settings.has_target && token::is_used(class));
    let Some(class) = class.filter(|_| !has_joined) else { return PartialPlan::over() };
    let provider = Provider::of(scope, class);
    match provider.known(Verb::DropToken) {
        None => provider.ask("the machine has not joined: delete its token", Verb::DropToken),
        Some(known) if known.running && !scope.machine.is_force_deletion() => {
            PartialPlan::waiting("DroppingToken", "the bootstrap token of the machine is being deleted")
        }
        _ => PartialPlan::over(),
    }
}

fn with_way_out(scope: &Scope<'_>, message: &str) -> String {
    match vm_id(scope.machine) {
        Some(id) => format!(
            "{message}; the class is needed to remove VM {id}: if that is not to be removed, take finalizer {} off the Machine",
            finalizers::MACHINE_CONTROLLER_MANAGER
        ),
        None => message.to_owned(),
    }
}

pub(in super::super) fn try_again(
    provider: &Provider<'_>,
    (answer, error): (&Answer<'_>, &DriverError),
    next: Verb,
) -> PartialPlan {
    let scope = &provider.scope;
    let pause = deletion_pause(error, answer.known.failures, scope.settings);
    let Some(due) = provider.due(answer, pause) else { return provider.ask(PAUSE_OVER, next) };
    let text = format!("{}: {error}", operations::INITIATE_VM_DELETION);
    let draft = scope
        .status()
        .last_known_state(error.last_known_state.as_ref())
        .operation(OperationType::Delete, OperationState::Failed, text, Some(error.code.name()))
        .condition(conditions::machine::INSTANCE_TERMINATED, false, error.code.name(), error.message.clone());
    let event = scope.warning(reasons::machine::FAILED_TERMINATION, error.to_string());
    PartialPlan::reporting("the provider refused", draft.step_unless_reported(answer.is_reported(scope)), event)
        .and_wait(error.code.name(), format!("{error}; next attempt at {due}"))
        .waking_at(due)
}

fn lasting(scope: &Scope<'_>, reason: &'static str, message: &str) -> PartialPlan {
    show(PartialPlan::default(), scope, reason, message)
}

fn show(part: PartialPlan, scope: &Scope<'_>, reason: &'static str, message: &str) -> PartialPlan {
    let operation = format!("{}: {message}", operations::INITIATE_VM_DELETION);
    part.showing(scope, (&operation, conditions::machine::INSTANCE_TERMINATED), (reason, message))
}
