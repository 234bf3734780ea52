//! Asks the provider whether the VM that a Machine names is the Machine's: one call and one write for a Machine from a backup or
//! from machine-controller-manager. For one that is created here, the answer to the creation is the proof.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::{OperationState, OperationType, conditions, operations};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::object::name;

use super::{
    calls::Verb,
    claim::{self, NotOwned, Vm},
    health,
    ownership::{Ownership, ownership},
    partial_plan::PartialPlan,
    provider::{Answer, CALLING, Inquiry, Provider, VmStatus},
    provision::{
        ASK_OWNER, Provision, carry_out, failed as failed_status, foreign, invalid, is_unprovisioned, not_own,
    },
    scope::Scope,
    terminate,
};
use crate::shared::ownership::vm_id;

/// Pause before a provider that knows no VM is asked again: a new VM may not show at once.
const NOT_FOUND_PAUSE: Duration = Duration::from_secs(30);

/// For a Machine that is not being deleted: the VM that it names is proven to be its own, and neither Machines nor Nodes compete for it.
pub(super) fn vm_proven(scope: &Scope<'_>) -> PartialPlan {
    let claim = &scope.snapshot.claim;
    let is_ambiguous = claim.is_ambiguous();
    let is_provisioned = !is_unprovisioned(scope.machine.phase());
    let is_open = claim.vm == Vm::Unproven && (is_ambiguous || (is_provisioned && scope.settings.has_target));
    let part = if is_open { prove(scope) } else { PartialPlan::over() };
    PartialPlan { is_over: part.is_over && !is_ambiguous, ..part }
}

/// Whose the VM is that a Machine names.
enum Proof<'a> {
    /// It is the Machine's: the provider says so, or, without an instance, cannot say.
    Own(Option<&'a Instance>),
    /// The provider knows no such VM. It is asked again then, or now.
    Missing(Option<Timestamp>),
    /// The provider has not said it, and is asked again then.
    Failed { answer: Answer<'a>, error: &'a DriverError, due: Timestamp },
    /// It is another Machine's, or that is yet to be found out.
    Open(Provision<'a>),
}

fn proof<'a>(provider: &Provider<'a>) -> Proof<'a> {
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Proof::Open(Provision::Await(message));
    }
    match provider.vm_status() {
        None => Proof::Open(Provision::Call(ASK_OWNER, Verb::Status)),
        Some(VmStatus::Foreign(answer, error)) => Proof::Open(foreign(provider, &answer, NotOwned::by_tags(error))),
        Some(VmStatus::Failed(answer, error)) => match failed_status(provider, answer, error, Verb::Status) {
            Provision::Failed { answer, error, due } => Proof::Failed { answer, error, due },
            other => Proof::Open(other),
        },
        Some(VmStatus::NotFound(answer)) => Proof::Missing(provider.scope.pause_end(answer.ended, NOT_FOUND_PAUSE)),
        Some(VmStatus::Found(answer, instance)) => owned(provider, &answer, Some(instance)),
        Some(VmStatus::Unimplemented(answer)) => owned(provider, &answer, None),
    }
}

fn owned<'a>(provider: &Provider<'a>, answer: &Answer<'a>, instance: Option<&'a Instance>) -> Proof<'a> {
    match ownership(provider, answer, instance) {
        Ownership::Own => Proof::Own(instance),
        other => Proof::Open(not_own(provider, answer, other)),
    }
}

fn prove(scope: &Scope<'_>) -> PartialPlan {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(error) => return invalid(scope, error.reason, &error.message),
    };
    let provider = Provider::of(scope, class);
    match proof(&provider) {
        Proof::Own(instance) => proven(scope, instance),
        Proof::Missing(due) => missing(&provider, due),
        Proof::Failed { answer, error, due } => failed(scope, &answer, error, due),
        Proof::Open(provision) => carry_out(&provider, provision),
    }
}

fn failed(scope: &Scope<'_>, answer: &Answer<'_>, error: &DriverError, due: Timestamp) -> PartialPlan {
    let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
    let draft = scope.status().condition(kind, false, code, error.message.clone());
    let message = format!("{error}; waiting for the provider to report the owner of the VM; next attempt at {due}");
    let step = draft.step_unless_reported(answer.is_reported(scope));
    PartialPlan::step("the provider has not said whose VM it is", step).and_wait(code, message).waking_at(due)
}

/// The Machine is evaluated as one without a Node, unless a Node with the VM's id is ready: then probably the wrong provider was
/// asked, or with the wrong credentials.
fn missing(provider: &Provider<'_>, due: Option<Timestamp>) -> PartialPlan {
    let scope = &provider.scope;
    let part = match due {
        None => provider.ask("ask again whether there is a VM", Verb::Status),
        Some(due) => PartialPlan::default().waking_at(due),
    };
    let node = scope.snapshot.claim.node.as_deref();
    let Some(node) = node.filter(|node| health::unhealthy_because(scope, node).is_none()) else {
        return PartialPlan { is_over: true, ..part };
    };
    let text = format!(
        "the provider knows no VM {}, and yet node {} with its providerID is ready: check the credentials of the class",
        vm_id(scope.machine).unwrap_or_default(),
        name(node)
    );
    part.and_wait("VMNotFound", text)
}

fn proven(scope: &Scope<'_>, instance: Option<&Instance>) -> PartialPlan {
    let draft = scope.status().proven(instance);
    let has_conflict = claim::conflict(scope.machine, &scope.snapshot.claim).is_some();
    let draft = if has_conflict { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
    PartialPlan::step("the VM is the machine's", draft.step())
}

/// For a Machine that is being deleted: the owner of the VM is known, and no other Machine names it. A Machine whose VM is
/// another's, or missing, ends without it, and so does one that shares it with a Machine that had it before.
pub(super) fn vm_settled(scope: &Scope<'_>) -> PartialPlan {
    let claim = &scope.snapshot.claim;
    match claim.vm {
        Vm::Unproven => settle(scope),
        Vm::Proven if claim.keeper.is_some() => PartialPlan::over(),
        Vm::Proven if !claim.conflicting.is_empty() => wait_for_conflicting(scope),
        Vm::Proven if !claim.duplicate_nodes.is_empty() => wait_for_duplicate_nodes(scope),
        Vm::None | Vm::Proven => PartialPlan::over(),
    }
}

fn wait_for_conflicting(scope: &Scope<'_>) -> PartialPlan {
    let Some((_, text)) = claim::conflict(scope.machine, &scope.snapshot.claim) else { return PartialPlan::default() };
    let text = format!("{}: {text}", operations::GET_VM_STATUS);
    let draft = scope.status().operation(OperationType::Delete, OperationState::Processing, text, None);
    PartialPlan::step("the deletion waits for other machines", draft.step())
}

/// Several Nodes of one VM are waited for as long as the Pods of one Node would be.
fn wait_for_duplicate_nodes(scope: &Scope<'_>) -> PartialPlan {
    let limit = scope.settings.drain_deadline(scope.machine).filter(|limit| *limit > scope.now());
    match limit.filter(|_| !scope.machine.is_force_deletion()) {
        Some(limit) => PartialPlan::default().waking_at(limit),
        None => PartialPlan::over(),
    }
}

/// Whose the VM of a Machine is that is being deleted.
enum Settlement<'a> {
    Own(Option<&'a Instance>),
    /// It is another Machine's, and stays.
    Foreign(NotOwned),
    /// There is none.
    Missing,
    /// The provider cannot say, and other Machines name the VM, too: these are waited for.
    Shared,
    Await(String),
    Ask,
    Namesakes(Inquiry),
    Failed(Answer<'a>, &'a DriverError),
    Unknown(NotOwned, Timestamp),
}

fn settlement<'a>(provider: &Provider<'a>) -> Settlement<'a> {
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Settlement::Await(message);
    }
    let (answer, instance) = match provider.vm_status() {
        None => return Settlement::Ask,
        Some(VmStatus::Failed(answer, error)) => return Settlement::Failed(answer, error),
        Some(VmStatus::NotFound(_)) => return Settlement::Missing,
        Some(VmStatus::Foreign(_, error)) => return Settlement::Foreign(NotOwned::by_tags(error)),
        Some(VmStatus::Unimplemented(_)) if !provider.scope.snapshot.claim.conflicting.is_empty() => {
            return Settlement::Shared;
        }
        Some(VmStatus::Found(answer, instance)) => (answer, Some(instance)),
        Some(VmStatus::Unimplemented(answer)) => (answer, None),
    };
    match ownership(provider, &answer, instance) {
        Ownership::Own => Settlement::Own(instance),
        Ownership::Open(inquiry) => Settlement::Namesakes(inquiry),
        Ownership::Foreign(why) => Settlement::Foreign(why),
        Ownership::Unknown(why, due) => Settlement::Unknown(why, due),
    }
}

fn settle(scope: &Scope<'_>) -> PartialPlan {
    // If the class is not usable, the deletion of the VM reports why.
    let Ok(class) = &scope.snapshot.class else { return PartialPlan::over() };
    let provider = Provider::of(scope, class);
    match settlement(&provider) {
        Settlement::Own(instance) => {
            PartialPlan::step("the VM is the machine's", scope.status().proven(instance).step())
        }
        Settlement::Foreign(why) => leave(scope, &why),
        Settlement::Missing => PartialPlan::over(),
        Settlement::Shared => PartialPlan::default(),
        Settlement::Await(message) => PartialPlan::waiting(CALLING, message),
        Settlement::Ask => provider.ask(ASK_OWNER, Verb::Status),
        Settlement::Namesakes(inquiry) => provider.inquire(inquiry),
        Settlement::Failed(answer, error) => terminate::try_again(&provider, (&answer, error), Verb::Status),
        Settlement::Unknown(why, due) => terminate::owner_unknown(&provider, &why, due),
    }
}

/// Reports that the VM stays, unless that was reported before the Machine was deleted.
fn leave(scope: &Scope<'_>, why: &NotOwned) -> PartialPlan {
    let (condition, reason) = (conditions::machine::INSTANCE_PROVISIONED, why.reason);
    if scope.machine.condition(condition).is_some_and(|known| known.reason.as_deref() == Some(reason)) {
        return PartialPlan::over();
    }
    let event = scope.warning(reason, why.error.message.as_str());
    PartialPlan::reporting("the VM is another's", scope.status().foreign(why).step(), event).over_if_idle()
}
