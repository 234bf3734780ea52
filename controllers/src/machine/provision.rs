//! How a Machine gets its VM: class and Secrets exist → VM created → Machine linked to it → VM initialized.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use nodewright_api::{
    Machine, MachinePhase, OperationState, OperationType, annotations, conditions, labels, operations, reasons,
    stored::AppliedKeys,
};
use nodewright_driver::{Class, DriverError, Instance};
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    object::{annotation, controller_uid, is_deleting},
    plan::Step,
};
use serde::Serialize;

use super::{
    calls::{Call, Outcome, Verb},
    claim::{self, NotOwned},
    decision::{Scope, Stage},
    node_sync::LONGEST_LABEL,
    ownership::{Ownership, ownership},
    provider::{Answer, CALLING, PASSING, PAUSE_OVER, Provider, VmStatus, creation_pause},
    snapshot::{ClassProblem, Owner, Snapshot},
    status::StatusDraft,
};
use crate::shared::{
    CONTROL,
    class_secrets::{USER_DATA, USER_DATA_MISSING},
};

/// Pause before a name that the ledger had retired is asked for again.
const RETIRED_PAUSE: Duration = Duration::from_secs(30);
const INITIALIZED: &str = "the VM is made; its node has yet to join";

pub(super) fn create(scope: &Scope<'_>) -> Stage {
    let snapshot = scope.snapshot;
    let class = match &snapshot.class {
        Ok(class) => class,
        Err(problem) => return invalid(scope, problem.reason, &problem.message),
    };
    if !snapshot.class_held {
        return Stage::waiting("ClassNotHeld", "the machine's class and its Secrets have yet to get their finalizers");
    }
    if let Some(problem) = snapshot.changed_identity.clone().or_else(|| lacks_user_data(class)) {
        return invalid(scope, problem.reason, &problem.message);
    }
    if let Some((reason, message)) = snapshot.ledger_problem() {
        return invalid(scope, reason, &message);
    }
    if let Some(message) = has_no_future(snapshot) {
        return Stage::waiting("Retired", message);
    }
    let provider = Provider::of(scope, class);
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Create]) {
        return Stage::waiting(CALLING, message);
    }
    let ask = || provider.ask("nothing is known of the machine's VM", Verb::Status);
    let Some(answer) = provider.newest(&[Verb::Status, Verb::Create]) else { return ask() };
    match answer.outcome {
        Outcome::Instance(instance) => match ownership(&provider, &answer, Some(instance)) {
            Ownership::Own => link(scope, instance),
            Ownership::Open(stage) => stage,
            Ownership::Foreign(why) => foreign(&provider, &answer, &why),
            Ownership::Unknown(why, due) => unknown(&provider, &why, due),
        },
        Outcome::Failed(error) if answer.call.verb == Verb::Status && error.mismatch.is_some() => {
            foreign(&provider, &answer, &NotOwned::by_tags(error))
        }
        Outcome::Retired if !is_of_owner(answer.call, scope.machine) => {
            provider.ask("another set has the machine now", Verb::Create)
        }
        // The ledger may have been read at a moment at which it was missing.
        Outcome::Retired => {
            let due = scope.pause_end(answer.ended, RETIRED_PAUSE);
            Stage::step("is the name retired?", due.is_none().then(|| Step::Call(answer.call.clone())))
                .and_wait("Retired", "the machine's name is retired: its set deletes it")
                .waking_at(due)
        }
        Outcome::Failed(_) if answer.call.verb == Verb::Status && answer.outcome.says_none() => {
            provider.ask("the machine has no VM", Verb::Create)
        }
        Outcome::Failed(error) => try_again(&provider, (&answer, error), Verb::Status),
        Outcome::Done | Outcome::Noted(_) | Outcome::Namesakes(_) => ask(),
    }
}

pub(super) fn link(scope: &Scope<'_>, instance: &Instance) -> Stage {
    let link = Link::of(scope.machine, instance, scope.settings.has_target);
    Stage::step("the VM exists", Step::apply_if_unchanged(CONTROL, scope.machine, &link))
}

pub(super) fn initialize(scope: &Scope<'_>) -> Stage {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(problem) => return invalid(scope, problem.reason, &problem.message),
    };
    let provider = Provider::of(scope, class);
    if let Some(message) = provider.awaited(&[Verb::Status, Verb::Initialize]) {
        return Stage::waiting(CALLING, message);
    }
    let (answer, instance) = match provider.vm_status() {
        None => return provider.ask_owner(),
        Some(VmStatus::Foreign(answer, error)) => return foreign(&provider, &answer, &NotOwned::by_tags(error)),
        Some(VmStatus::Failed(answer, error)) => return try_again(&provider, (&answer, error), Verb::Status),
        Some(VmStatus::NotFound(_)) => return not_found(scope),
        Some(VmStatus::Unimplemented(answer)) => (answer, None),
        Some(VmStatus::Proven(answer, instance)) => (answer, Some(instance)),
    };
    match ownership(&provider, &answer, instance) {
        Ownership::Own => {}
        Ownership::Open(stage) => return stage,
        Ownership::Foreign(why) => return foreign(&provider, &answer, &why),
        Ownership::Unknown(why, due) => return unknown(&provider, &why, due),
    }
    let Some(instance) = instance else { return initialized(scope, None) };
    // A VM that this process created is new, whatever the answer was.
    let is_new = provider.known(Verb::Create).is_some();
    match provider.newest(&[Verb::Initialize]).map(|answer| (answer.outcome, answer)) {
        Some((Outcome::Instance(instance), _)) => initialized(scope, Some(instance)),
        Some((Outcome::Failed(error), answer)) if !answer.outcome.says_none() => {
            try_again(&provider, (&answer, error), Verb::Initialize)
        }
        None if is_new || instance.uninitialized => {
            noted(&provider).unwrap_or_else(|| provider.ask("the VM is not set up yet", Verb::Initialize))
        }
        _ => initialized(scope, Some(instance)),
    }
}

/// Keeps the notes that the driver has left with the creation, for the calls that follow.
fn noted(provider: &Provider<'_>) -> Option<Stage> {
    let Outcome::Instance(created) = provider.newest(&[Verb::Create])?.outcome else { return None };
    let notes = created.last_known_state.as_ref().filter(|notes| !notes.is_empty())?;
    let step = provider.scope.status().last_known_state(Some(notes)).step()?;
    Some(Stage::step("the driver has notes to keep", step))
}

/// The VM is initialized: the provider says that it is the Machine's, or, without an instance, cannot tell.
fn initialized(scope: &Scope<'_>, instance: Option<&Instance>) -> Stage {
    let state = instance.and_then(|instance| instance.last_known_state.as_ref());
    let draft = created(scope).proven(instance).last_known_state(state);
    let draft = instance.filter(|_| !scope.settings.has_target).into_iter().fold(draft, StatusDraft::addresses);
    let text = match instance {
        Some(instance) => format!("VM {} exists", instance.provider_id),
        None => format!("VM {} is taken for the machine's: the provider cannot tell", scope.machine.spec.provider_id),
    };
    Stage::step(INITIALIZED, draft.step()).telling(scope.normal(reasons::machine::PROVISIONED, text))
}

/// The provider knows no such VM. It is gone already, or does not show yet: the creation timeout decides.
fn not_found(scope: &Scope<'_>) -> Stage {
    let text = format!("the provider knows no VM {}", scope.machine.spec.provider_id);
    let kind = conditions::machine::INSTANCE_PROVISIONED;
    let draft = created(scope).condition(kind, false, "NotFound", text.as_str());
    Stage::step(INITIALIZED, draft.step()).telling(scope.warning(reasons::machine::UNHEALTHY, text))
}

fn created<'a>(scope: &Scope<'a>) -> StatusDraft<'a> {
    let draft = scope.status().without(conditions::machine::CONFIGURATION_VALID);
    let (draft, state) = if scope.settings.has_target {
        (draft.phase(MachinePhase::Pending).timeout_active(true), OperationState::Processing)
    } else {
        (draft.phase(MachinePhase::Available), OperationState::Successful)
    };
    draft.operation(OperationType::Create, state, operations::CREATING_ON_PROVIDER, None)
}

/// The class or the ledger has to be corrected. The same condition may have a problem of the claim to report instead.
pub(super) fn invalid(scope: &Scope<'_>, reason: &'static str, message: &str) -> Stage {
    let draft = scope.status().condition(conditions::machine::CONFIGURATION_VALID, false, reason, message);
    let draft = if is_unprovisioned(scope.machine.phase()) {
        let draft = draft.phase(MachinePhase::CrashLoopBackOff);
        draft.operation(OperationType::Create, OperationState::Processing, message, None)
    } else {
        draft
    };
    let step = draft.step().filter(|_| claim::problem(scope.machine, &scope.snapshot.claim).is_none());
    Stage::reporting("the machine's class cannot be used", step, scope.warning(reason, message))
        .and_wait(reason, message)
}

/// Leaves a VM of another Machine alone, and asks again later, or once the class is corrected.
pub(super) fn foreign(provider: &Provider<'_>, answer: &Answer<'_>, why: &NotOwned) -> Stage {
    let scope = &provider.scope;
    let Some(due) = provider.due(answer, scope.settings.medium_retry) else {
        return provider.ask("is it still another's VM?", Verb::Status);
    };
    not_taken(scope, "the VM is another's", why, (due, answer.is_told(scope)))
}

/// Takes no VM of which it is not known whose it is, until the API server has been asked again.
pub(super) fn unknown(provider: &Provider<'_>, why: &NotOwned, due: Timestamp) -> Stage {
    not_taken(&provider.scope, "whose VM it is is not known", why, (due, false))
}

fn not_taken(scope: &Scope<'_>, because: &'static str, why: &NotOwned, (due, is_told): (Timestamp, bool)) -> Stage {
    let draft = if is_unprovisioned(scope.machine.phase()) { back_off(scope, &why.error) } else { scope.status() };
    let message = why.error.message.as_str();
    let step = draft.foreign(why).step_unless_told(is_told);
    Stage::reporting(because, step, scope.warning(why.reason, message))
        .and_wait(why.reason, message)
        .waking_at(due)
        .waking_at(scope.creation_deadline())
}

fn try_again(provider: &Provider<'_>, (answer, error): (&Answer<'_>, &DriverError), next: Verb) -> Stage {
    let scope = &provider.scope;
    let pause = creation_pause(error, answer.known.failures, scope.settings);
    let Some(due) = provider.due(answer, pause) else { return provider.ask(PAUSE_OVER, next) };
    let (kind, code) = (conditions::machine::INSTANCE_PROVISIONED, error.code.name());
    let draft = back_off(scope, error);
    // An attempt that ends like the one before it is no news.
    let is_news = draft.clone().step().is_some();
    let draft = draft.condition(kind, false, code, format!("{}{}", error.message, outlook(scope, error)));
    let step = draft.step_unless_told(answer.is_told(scope));
    let is_news = is_news && step.is_some();
    let mut stage = Stage::step("the provider refused", step);
    if is_news {
        stage = stage.telling(scope.warning(reasons::machine::FAILED_PROVISION, refusal(scope, error)));
    }
    stage.and_wait(code, format!("{error}; next attempt at {due}")).waking_at(due).waking_at(scope.creation_deadline())
}

/// What ends the wait after a refusal, unless it ends soon. It follows from the object, the answer and the settings alone: a time of
/// this process would be replaced by that of another manager, again and again. The last operation goes without, because
/// `status.failedMachines` of sets and deployments has its text.
fn outlook(scope: &Scope<'_>, error: &DriverError) -> String {
    let longest = creation_pause(error, u32::MAX, scope.settings);
    if longest <= PASSING || scope.is_creation_overdue() {
        return String::new();
    }
    let end = scope.announced_creation_deadline();
    let end = end.map(|at| format!("; without a VM it is given up at {at:.0}")).unwrap_or_default();
    format!("; it is tried again within {longest:?}{end}")
}

/// The provider was asked: what the class lacked before is there.
fn back_off<'a>(scope: &Scope<'a>, error: &DriverError) -> StatusDraft<'a> {
    let overdue = scope.is_creation_overdue();
    let phase = if overdue { MachinePhase::Failed } else { MachinePhase::CrashLoopBackOff };
    let text = refusal(scope, error);
    let (kind, state) = (OperationType::Create, OperationState::Failed);
    let draft = scope.status().last_known_state(error.last_known_state.as_ref()).phase(phase);
    let has_problem = claim::problem(scope.machine, &scope.snapshot.claim).is_some();
    let draft = if has_problem { draft } else { draft.without(conditions::machine::CONFIGURATION_VALID) };
    draft.operation(kind, state, text, Some(error.code.name()))
}

/// The text of machine-controller-manager, and which capacity is exhausted. `status.failedMachines` has it, too.
fn refusal(scope: &Scope<'_>, error: &DriverError) -> String {
    let text = format!("{}{error}", operations::PROVIDER_MESSAGE_PREFIX);
    let class = scope.machine.class_name();
    match error.exhausted.as_ref().map(|exhausted| exhausted.zone.as_deref()) {
        None => text,
        Some(None) => format!("{text}; exhausted for MachineClass {class:?}"),
        Some(Some(zone)) => format!("{text}; exhausted for MachineClass {class:?} in zone {zone:?}"),
    }
}

fn is_of_owner(call: &Call, machine: &Machine) -> bool {
    call.request.origin.as_ref().is_none_or(|origin| controller_uid(machine) == Some(origin.uid.as_str()))
}

/// Only a creation needs user data: a VM is found and deleted without.
fn lacks_user_data(class: &Class) -> Option<ClassProblem> {
    let lacks = !class.secret.is_empty() && class.secret.get(USER_DATA).is_none();
    lacks.then(|| ClassProblem {
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

pub(super) fn is_unprovisioned(phase: &MachinePhase) -> bool {
    matches!(phase, MachinePhase::Unset | MachinePhase::CrashLoopBackOff)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Link {
    metadata: LinkMeta,
    spec: LinkSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct LinkMeta {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct LinkSpec {
    #[serde(rename = "providerID")]
    provider_id: String,
}

impl Link {
    fn of(machine: &Machine, instance: &Instance, has_target: bool) -> Self {
        let mut metadata = LinkMeta::default();
        // A longer name cannot be a label's value. The Node is found by its providerID anyway.
        if has_target && (1..=LONGEST_LABEL).contains(&instance.node_name.len()) {
            metadata.labels.insert(labels::NODE.to_owned(), instance.node_name.clone());
        }
        // The autoscaler and users lower it; a value from before there was a VM stays.
        let priority = annotation(machine, annotations::MACHINE_PRIORITY).map(str::to_owned);
        let priority = priority.unwrap_or_else(|| annotations::MACHINE_PRIORITY_DEFAULT.to_string());
        metadata.annotations.insert(annotations::MACHINE_PRIORITY.to_owned(), priority);
        // What the Node will get is recorded before there is a Node.
        if let Some(applied) = AppliedKeys::new(&machine.spec.node_template).to_text().filter(|_| has_target) {
            metadata.annotations.insert(annotations::APPLIED_NODE_TEMPLATE.to_owned(), applied);
        }
        Self { metadata, spec: LinkSpec { provider_id: instance.provider_id.clone() } }
    }
}

impl ApplyConfiguration for Link {
    type Of = Machine;

    fn extract(live: &Machine) -> Self {
        let some = |map: Option<&BTreeMap<String, String>>, keys: &[&str]| {
            let found = keys.iter().filter_map(|key| map?.get_key_value(*key));
            found.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Self {
            metadata: LinkMeta {
                labels: some(live.metadata.labels.as_ref(), &[labels::NODE]),
                annotations: some(
                    live.metadata.annotations.as_ref(),
                    &[annotations::MACHINE_PRIORITY, annotations::APPLIED_NODE_TEMPLATE],
                ),
            },
            spec: LinkSpec { provider_id: live.spec.provider_id.clone() },
        }
    }
}
