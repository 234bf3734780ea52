//! What a Machine lacks of its VM, and what is done about it next.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_driver::{Class, DriverError, Instance};
use nodewright_runtime::object::{controller_uid, is_deleting};

use crate::{
    machine::{
        calls::{Call, Outcome, Verb},
        claim::NotOwned,
        ownership::{Ownership, ownership},
        provider::{Answer, Inquiry, PAUSE_OVER, Provider, VmStatus, creation_pause},
        scope::Scope,
        snapshot::{ClassError, Owner, Snapshot},
    },
    shared::class_secrets::{USER_DATA, USER_DATA_MISSING},
};

/// Pause before a name that the ledger had retired is asked for again.
const RETIRED_PAUSE: Duration = Duration::from_secs(30);

/// Why the provider is not asked for a VM.
pub(super) enum Obstacle {
    /// The class or the ledger has to be corrected: reason and message.
    Invalid(&'static str, String),
    /// The class and its Secrets have yet to get their finalizers.
    AwaitFinalizers,
    /// The Machine is about to be deleted, and why.
    NoFuture(&'static str),
}

pub(in super::super) enum Provision<'a> {
    /// A call has no answer yet.
    Await(String),
    /// The provider is called, and why.
    Call(&'static str, Verb),
    /// Whether another Machine has the name decides.
    Namesakes(Inquiry),
    /// The Machine's name is retired. It is asked for again, now or then.
    Retired(&'a Call, Option<Timestamp>),
    /// The VM exists: the Machine names it.
    Link(&'a Instance),
    /// The VM is another Machine's: it stays as it is, and the provider is asked again then.
    Foreign { why: NotOwned, due: Timestamp, is_reported: bool },
    /// It is not known whose the VM is, and the API server is asked again then.
    OwnerUnknown { why: NotOwned, due: Timestamp },
    /// A call has failed, and is made again then.
    Failed { answer: Answer<'a>, error: &'a DriverError, due: Timestamp },
    /// The provider knows no such VM. It is gone already, or does not show yet: the creation timeout decides.
    NotFound,
    /// The driver has left notes with the creation, for the calls that follow.
    Note(&'a String),
    /// The VM is set up: the provider says that it is the Machine's, or, without an instance, cannot say.
    Initialized(Option<&'a Instance>),
}

/// The class with which a VM can be created.
pub(super) fn creation_class<'a>(scope: &Scope<'a>) -> Result<&'a Class, Obstacle> {
    let snapshot = scope.snapshot;
    let class = snapshot.class.as_ref().map_err(invalid)?;
    if !snapshot.class_held {
        return Err(Obstacle::AwaitFinalizers);
    }
    if let Some(error) = snapshot.changed_identity.clone().or_else(|| lacks_user_data(class)) {
        return Err(invalid(&error));
    }
    if let Some((reason, message)) = snapshot.ledger_error() {
        return Err(Obstacle::Invalid(reason, message));
    }
    has_no_future(snapshot).map_or(Ok(class), |why| Err(Obstacle::NoFuture(why)))
}

pub(super) fn invalid(error: &ClassError) -> Obstacle {
    Obstacle::Invalid(error.reason, error.message.clone())
}

/// Only a creation needs user data: a VM is found and deleted without.
fn lacks_user_data(class: &Class) -> Option<ClassError> {
    let lacks = !class.secret.is_empty() && class.secret.get(USER_DATA).is_none();
    lacks.then(|| ClassError {
        reason: USER_DATA_MISSING,
        message: format!("the Secrets of MachineClass {:?} have no key {USER_DATA:?}: add it", class.name),
        never_used: false,
    })
}

fn has_no_future(snapshot: &Snapshot) -> Option<&'static str> {
    let is_retired = || snapshot.ledger_entry().is_some_and(|(ledger, ordinal)| ledger.is_retired(ordinal));
    match &snapshot.owner {
        Owner::Gone => Some("its machine set is gone"),
        Owner::Set(set) if is_deleting(set.as_ref()) => Some("its machine set is being deleted"),
        _ if is_retired() => Some("its name is retired: its machine set deletes it"),
        _ => None,
    }
}

pub(super) fn creation<'a>(provider: &Provider<'a>) -> Provision<'a> {
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Provision::Await(message);
    }
    let ask = Provision::Call("nothing is known of the machine's VM", Verb::Status);
    let Some(answer) = provider.newest(&[Verb::Status, Verb::Create]) else { return ask };
    match answer.outcome {
        Outcome::Instance(instance) => match ownership(provider, &answer, Some(instance)) {
            Ownership::Own => Provision::Link(instance),
            other => not_own(provider, &answer, other),
        },
        Outcome::Failed(error) if answer.call.verb == Verb::Status && error.mismatch.is_some() => {
            foreign(provider, &answer, NotOwned::by_tags(error))
        }
        Outcome::Retired if !is_of_owner(answer.call, provider.scope.machine) => {
            Provision::Call("another set has the machine now", Verb::Create)
        }
        // The ledger may have been read at a moment at which it was missing.
        Outcome::Retired => Provision::Retired(answer.call, provider.scope.pause_end(answer.ended, RETIRED_PAUSE)),
        Outcome::Failed(_) if answer.call.verb == Verb::Status && answer.outcome.found_no_vm() => {
            Provision::Call("the machine has no VM", Verb::Create)
        }
        Outcome::Failed(error) => failed(provider, answer, error, Verb::Status),
        Outcome::Done | Outcome::Noted(_) | Outcome::Namesakes(_) | Outcome::ForeignVolumes(_) => ask,
    }
}

pub(super) fn initialization<'a>(provider: &Provider<'a>) -> Provision<'a> {
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Initialize]) {
        return Provision::Await(message);
    }
    let (answer, instance) = match provider.vm_status() {
        None => return Provision::Call(ASK_OWNER, Verb::Status),
        Some(VmStatus::Foreign(answer, error)) => return foreign(provider, &answer, NotOwned::by_tags(error)),
        Some(VmStatus::Failed(answer, error)) => return failed(provider, answer, error, Verb::Status),
        Some(VmStatus::NotFound(_)) => return Provision::NotFound,
        Some(VmStatus::Unimplemented(answer)) => (answer, None),
        Some(VmStatus::Found(answer, instance)) => (answer, Some(instance)),
    };
    let instance = match (ownership(provider, &answer, instance), instance) {
        (Ownership::Own, Some(instance)) => instance,
        (Ownership::Own, None) => return Provision::Initialized(None),
        (other, _) => return not_own(provider, &answer, other),
    };
    if !provider.scope.driver.initializes {
        return Provision::Initialized(Some(instance));
    }
    // A VM that this process created is new, whatever the answer was.
    let is_new = provider.known(Verb::Create).is_some();
    match provider.newest(&[Verb::Initialize]).map(|answer| (answer.outcome, answer)) {
        Some((Outcome::Instance(instance), _)) => Provision::Initialized(Some(instance)),
        Some((Outcome::Failed(error), answer)) if !answer.outcome.found_no_vm() => {
            failed(provider, answer, error, Verb::Initialize)
        }
        None if is_new || instance.uninitialized => {
            unnoted(provider).map_or(Provision::Call("the VM is not set up yet", Verb::Initialize), Provision::Note)
        }
        _ => Provision::Initialized(Some(instance)),
    }
}

/// Why the provider is asked about a VM of which it has said nothing yet.
pub(in super::super) const ASK_OWNER: &str = "the provider has not said yet whose VM it is";

/// What follows if a VM is not the Machine's own.
pub(in super::super) fn not_own<'a>(
    provider: &Provider<'a>,
    answer: &Answer<'a>,
    ownership: Ownership,
) -> Provision<'a> {
    match ownership {
        Ownership::Own => Provision::Call(ASK_OWNER, Verb::Status),
        Ownership::Open(inquiry) => Provision::Namesakes(inquiry),
        Ownership::Foreign(why) => foreign(provider, answer, why),
        Ownership::Unknown(why, due) => Provision::OwnerUnknown { why, due },
    }
}

/// Leaves a VM of another Machine alone, and asks again later, or once the class is corrected.
pub(in super::super) fn foreign<'a>(provider: &Provider<'a>, answer: &Answer<'a>, why: NotOwned) -> Provision<'a> {
    match provider.due(answer, provider.scope.settings.medium_retry) {
        None => Provision::Call("ask whether the VM is still another machine's", Verb::Status),
        Some(due) => Provision::Foreign { why, due, is_reported: answer.is_reported(&provider.scope) },
    }
}

/// Asks again after a pause.
pub(in super::super) fn failed<'a>(
    provider: &Provider<'a>,
    answer: Answer<'a>,
    error: &'a DriverError,
    next: Verb,
) -> Provision<'a> {
    let pause = creation_pause(error, answer.known.failures, provider.scope.settings);
    match provider.due(&answer, pause) {
        None => Provision::Call(PAUSE_OVER, next),
        Some(due) => Provision::Failed { answer, error, due },
    }
}

/// The notes of the driver that the status does not have yet.
fn unnoted<'a>(provider: &Provider<'a>) -> Option<&'a String> {
    let Outcome::Instance(created) = provider.newest(&[Verb::Create])?.outcome else { return None };
    let notes = created.last_known_state.as_ref().filter(|notes| !notes.is_empty())?;
    provider.scope.status().last_known_state(Some(notes)).step().map(|_| notes)
}

fn is_of_owner(call: &Call, machine: &Machine) -> bool {
    call.request.origin.as_ref().is_none_or(|origin| controller_uid(machine) == Some(origin.uid.as_str()))
}
