//! How a Machine gets its VM: class and Secrets exist → VM created → Machine linked to it → VM initialized.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase, OperationState, OperationType, conditions, operations};
use nodewright_driver::{Class, DriverError, Instance};
use nodewright_runtime::object::{controller_uid, is_deleting};

use super::{
    calls::{Call, Outcome, Verb},
    claim::has_problem,
    provider::{Answer, PAUSE_OVER, Provider, Retry, VmStatus, creation_pause},
    scope::Scope,
    snapshot::{ClassProblem, Owner, Snapshot},
    status::StatusDraft,
    token::USER_DATA,
};

/// Pause before a name that the ledger had retired is asked for again.
const RETIRED_PAUSE: Duration = Duration::from_secs(30);

/// What happens next to a Machine whose VM has yet to be created, linked or initialized.
pub(super) enum Provision<'a> {
    /// Something else has to happen first: a reason and a message.
    Wait(&'static str, &'static str),
    /// The class or the ledger cannot be used until somebody corrects it.
    Invalid {
        reason: &'static str,
        message: String,
    },
    Call(&'static str, Call),
    /// The provider refused. It is called again at `due`.
    Failed {
        error: &'a DriverError,
        due: Timestamp,
    },
    /// The VM belongs to another Machine and is left alone. The provider is asked again at `due`.
    Foreign {
        error: &'a DriverError,
        due: Timestamp,
    },
    /// The ledger retired the name. `call` asks again at `due`, or now.
    Retired {
        call: Call,
        due: Option<Timestamp>,
    },
    /// The VM exists. Link the Machine to it before anything else.
    Link(&'a Instance),
    /// The VM is initialized: the provider says that it is the Machine's, or, without an instance, cannot tell.
    Done(Option<&'a Instance>),
    /// The provider knows no such VM. It is gone already, or does not show yet: the creation timeout decides.
    NotFound,
}

impl Provision<'_> {
    /// A call has not been answered yet.
    pub(super) const CALLING: Self = Self::Wait("CallingProvider", "the provider has not answered yet");

    pub(super) fn invalid(problem: &ClassProblem) -> Self {
        Self::Invalid { reason: problem.reason, message: problem.message.clone() }
    }
}

/// For a Machine without a VM: ask for one, create it, link it.
pub(super) fn create<'a>(scope: &Scope<'a>) -> Provision<'a> {
    let snapshot = scope.snapshot;
    let class = match &snapshot.class {
        Ok(class) => class,
        Err(problem) => return Provision::invalid(problem),
    };
    if !snapshot.class_held {
        let message = "the machine's class and its Secrets have yet to get their finalizers";
        return Provision::Wait("ClassNotHeld", message);
    }
    if let Some(problem) = snapshot.changed_identity.clone().or_else(|| lacks_user_data(class)) {
        return Provision::invalid(&problem);
    }
    if let Some((reason, message)) = snapshot.ledger_problem() {
        return Provision::Invalid { reason, message };
    }
    if let Some(message) = has_no_future(snapshot) {
        return Provision::Wait("Retired", message);
    }
    let provider = Provider::of(scope, class);
    if provider.any_running(&[Verb::Status, Verb::Create]) {
        return Provision::CALLING;
    }
    let unknown = || Provision::Call("nothing is known of the machine's VM", provider.call(Verb::Status));
    let Some(answer) = provider.newest(&[Verb::Status, Verb::Create]) else { return unknown() };
    match answer.outcome {
        Outcome::Instance(instance) => Provision::Link(instance),
        Outcome::Retired if !is_of_owner(answer.call, scope.machine) => {
            Provision::Call("another set has the machine now", provider.call(Verb::Create))
        }
        // The ledger may have been read at a moment at which it was missing.
        Outcome::Retired => Provision::Retired {
            call: answer.call.clone(),
            due: answer.ended.checked_add(RETIRED_PAUSE).ok().filter(|due| *due > scope.now()),
        },
        Outcome::Failed(_) if answer.call.verb == Verb::Status && answer.outcome.says_none() => {
            Provision::Call("the machine has no VM", provider.call(Verb::Create))
        }
        Outcome::Failed(error) => try_again(&provider, (&answer, error), Verb::Status),
        Outcome::Done => unknown(),
    }
}

/// For a Machine that is linked to its VM: initialize that.
pub(super) fn initialize<'a>(scope: &Scope<'a>) -> Provision<'a> {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(problem) => return Provision::invalid(problem),
    };
    let provider = Provider::of(scope, class);
    if provider.any_running(&[Verb::Status, Verb::Initialize]) {
        return Provision::CALLING;
    }
    let instance = match provider.vm_status() {
        None => return ask_owner(&provider),
        Some(VmStatus::Foreign(answer, error)) => return foreign(&provider, &answer, error),
        Some(VmStatus::Failed(answer, error)) => return try_again(&provider, (&answer, error), Verb::Status),
        Some(VmStatus::NotFound(_)) => return Provision::NotFound,
        Some(VmStatus::Unimplemented) => return Provision::Done(None),
        Some(VmStatus::Proven(instance)) => instance,
    };
    // A VM that this process created is new, whatever the answer was.
    let is_new = provider.known(Verb::Create).is_some();
    match provider.newest(&[Verb::Initialize]).map(|answer| (answer.outcome, answer)) {
        Some((Outcome::Instance(instance), _)) => Provision::Done(Some(instance)),
        Some((Outcome::Failed(error), answer)) if !answer.outcome.says_none() => {
            try_again(&provider, (&answer, error), Verb::Initialize)
        }
        None if is_new || instance.uninitialized => {
            Provision::Call("the VM is not set up yet", provider.call(Verb::Initialize))
        }
        _ => Provision::Done(Some(instance)),
    }
}

pub(super) fn ask_owner<'a>(provider: &Provider<'_>) -> Provision<'a> {
    Provision::Call("nobody has said yet whose VM it is", provider.call(Verb::Status))
}

/// Leaves a VM of another Machine alone, and asks again later, or once the class is corrected.
pub(super) fn foreign<'a>(provider: &Provider<'_>, answer: &Answer<'_>, error: &'a DriverError) -> Provision<'a> {
    match provider.retry(answer, Verb::Status, provider.scope.settings.medium_retry) {
        Retry::Now(call) => Provision::Call("is it still another's VM?", call),
        Retry::At(due) => Provision::Foreign { error, due },
    }
}

/// Calls the provider again after a pause, or once the class is corrected.
pub(super) fn try_again<'a>(
    provider: &Provider<'_>,
    (answer, error): (&Answer<'_>, &'a DriverError),
    next: Verb,
) -> Provision<'a> {
    let pause = creation_pause(error, answer.known.failures, provider.scope.settings);
    match provider.retry(answer, next, pause) {
        Retry::Now(call) => Provision::Call(PAUSE_OVER, call),
        Retry::At(due) => Provision::Failed { error, due },
    }
}

/// Whether a call asked the ledger of the set that owns the Machine now.
fn is_of_owner(call: &Call, machine: &Machine) -> bool {
    call.request.origin.as_ref().is_none_or(|origin| controller_uid(machine) == Some(origin.uid.as_str()))
}

/// Only a creation needs user data: a VM is found and deleted without.
fn lacks_user_data(class: &Class) -> Option<ClassProblem> {
    let lacks = !class.secret.is_empty() && class.secret.get(USER_DATA).is_none();
    lacks.then(|| ClassProblem {
        reason: "UserDataMissing",
        message: format!("the Secrets of MachineClass {:?} have no key {USER_DATA:?}: add it", class.name),
        never_used: false,
    })
}

/// Why a Machine without a VM gets none: it will be deleted.
fn has_no_future(snapshot: &Snapshot) -> Option<&'static str> {
    match &snapshot.owner {
        Owner::Gone => Some("its machine set is gone"),
        Owner::Set(set) if is_deleting(set.as_ref()) => Some("its machine set is being deleted"),
        _ if snapshot.is_retired() == Some(true) => Some("its name has had its life: its machine set deletes it"),
        _ => None,
    }
}

/// Whether the phase is one of a Machine whose VM has yet to be initialized.
pub(super) fn is_unprovisioned(phase: &MachinePhase) -> bool {
    matches!(phase, MachinePhase::Unset | MachinePhase::CrashLoopBackOff)
}

/// The status that says why the class cannot be used; `None` when the same condition has a problem of the claim to say.
pub(super) fn invalid_status(scope: &Scope<'_>, reason: &'static str, message: &str) -> Option<StatusDraft> {
    if has_problem(scope.machine, &scope.snapshot.claim) {
        return None;
    }
    let draft = scope.status().condition(conditions::machine::CONFIGURATION_VALID, false, reason, message);
    let creating =
        |draft: StatusDraft| draft.operation(OperationType::Create, OperationState::Processing, message, None);
    Some(if is_unprovisioned(scope.machine.phase()) { creating(draft) } else { draft })
}

pub(super) fn failed_status(scope: &Scope<'_>, error: &DriverError) -> StatusDraft {
    let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
    back_off(scope, error).condition(kind, false, code, error.message.clone())
}

pub(super) fn foreign_status(scope: &Scope<'_>, error: &DriverError) -> StatusDraft {
    let draft = if is_unprovisioned(scope.machine.phase()) { back_off(scope, error) } else { scope.status() };
    draft.foreign(error)
}

fn back_off(scope: &Scope<'_>, error: &DriverError) -> StatusDraft {
    let overdue = scope.is_creation_overdue();
    let phase = if overdue { MachinePhase::Failed } else { MachinePhase::CrashLoopBackOff };
    let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
    let (kind, state) = (OperationType::Create, OperationState::Failed);
    scope.status().phase(phase).operation(kind, state, text, Some(error.code.name()))
}

/// The status of a Machine that has its VM, and the message that says so.
pub(super) fn done_status(scope: &Scope<'_>, instance: Option<&Instance>) -> (StatusDraft, String) {
    let draft = initialized(scope).proven(scope.machine, instance);
    let Some(instance) = instance else {
        let id = &scope.machine.spec.provider_id;
        return (draft, format!("VM {id} is taken for the machine's: the provider cannot tell"));
    };
    (draft.last_known_state(instance.last_known_state.as_ref()), format!("VM {} exists", instance.provider_id))
}

/// The status of a Machine whose VM the provider does not know, and the message that says so.
pub(super) fn not_found_status(scope: &Scope<'_>) -> (StatusDraft, String) {
    let text = format!("the provider knows no VM {}", scope.machine.spec.provider_id);
    let kind = conditions::machine::INSTANCE_PROVISIONED;
    (initialized(scope).condition(kind, false, "NotFound", text.as_str()), text)
}

fn initialized(scope: &Scope<'_>) -> StatusDraft {
    let draft = scope.status().without(conditions::machine::CONFIGURATION_VALID);
    let (draft, state) = if scope.settings.has_target {
        (draft.phase(MachinePhase::Pending).timeout_active(true), OperationState::Processing)
    } else {
        (draft.phase(MachinePhase::Available), OperationState::Successful)
    };
    draft.operation(OperationType::Create, state, operations::CREATING_ON_PROVIDER, None)
}
