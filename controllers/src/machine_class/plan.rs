//! The plan of a MachineClass.

use json_patch::Patch;
use nodewright_api::{
    ClassIdentity, ConditionStatus, MachineClass, annotations as keys, conditions, finalizers, reasons::unreadable,
};
use nodewright_runtime::{
    annotations,
    cache::Lookup,
    clip::clip,
    events::Event,
    finalizers as finalizer,
    object::{has_finalizer, is_deleting},
    plan::{Context, Plan, Planned, Step, reference},
};

use super::{
    call::Validate,
    decision::{Decision, decide},
    snapshot::{NamedSecret, Snapshot},
    status::{VALIDATION_PENDING, naming, write},
    uninitialized,
    validation::{Validation, validation},
};
use crate::shared::{CONTROL, class_secrets};

const IN_USE: &str = "MachineClassInUse";
const INVALID: &str = "InvalidProviderSpec";

pub(super) fn plan(context: &Context<'_, Validate>, snapshot: &Snapshot) -> Plan<Validate> {
    let mut plan = Plan::idle();
    plan.scoped_watches.extend(snapshot.scoped_watches.iter().cloned());
    let class = snapshot.class.as_ref();
    plan.stage(snapshot.secrets.iter().filter_map(hold_secret));
    let validation = validation(context, snapshot);
    if let Validation::Awaited(call, until) | Validation::Unknown(call, until) = &validation {
        plan.beside("validate the providerSpec", call.clone().map(Step::Call));
        let text = "the driver has not answered whether it can read the providerSpec";
        plan.wait_until(*until, VALIDATION_PENDING, text);
    }
    if matches!(validation, Validation::Awaited(..)) {
        return plan;
    }
    let errors = validation.errors();
    match decide(snapshot, errors) {
        Decision::Hold(identity) => {
            let add = finalizer::add(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
            let patch = with_record(add, class, identity.as_ref());
            plan.beside("machines name the class", Step::edit(CONTROL, class, patch));
            return plan;
        }
        Decision::RecordIdentity(identity) => {
            let patch = with_record(Patch::default(), class, Some(&identity));
            plan.beside("record the class identity", Step::edit(CONTROL, class, patch));
            return plan;
        }
        Decision::Release => {
            let remove = finalizer::remove(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
            let patch = with_record(remove, class, None);
            plan.then("no machine names the class any more", Step::edit(CONTROL, class, patch));
            return plan;
        }
        Decision::AwaitReadable(text) => {
            plan.wait(unreadable::MACHINE, format!("{text}; until then it may name the class, which is kept"));
            if class.is_deleting() {
                plan.event(Event::warning(reference(class), unreadable::MACHINE, text));
            }
        }
        Decision::AwaitMachines(machines) => {
            plan.wait(IN_USE, format!("{}; it is kept until they are gone", naming(machines)));
            // Without the count, so that it stays one event while the number of Machines changes.
            let text = "machines still name the class: it is kept until they are gone";
            plan.event(Event::warning(reference(class), IN_USE, text));
        }
        Decision::Report => {}
    }
    report(context, snapshot, errors, &mut plan);
    plan
}

/// The patch, and the record of a class's identity.
fn with_record(mut patch: Patch, class: &MachineClass, identity: Option<&ClassIdentity>) -> Patch {
    let text = identity.map(ClassIdentity::to_string);
    patch.0.extend(annotations::set(&class.metadata, keys::IDENTITY, text.as_deref()).0);
    patch
}

/// What the status, or events in its place, say of the class.
fn report(context: &Context<'_, Validate>, snapshot: &Snapshot, errors: Option<&[String]>, plan: &mut Plan<Validate>) {
    let class = snapshot.class.as_ref();
    if let Some(errors) = errors.filter(|errors| !errors.is_empty() && !is_reported(class, errors)) {
        let text = format!("machines of this class cannot be made: {}", errors.join("; "));
        plan.event(Event::warning(reference(class), INVALID, text));
    }
    if let Some(secret) = snapshot.secrets.iter().find(|secret| matches!(secret.found, Lookup::Pending)) {
        plan.wait(class_secrets::PENDING, format!("Secret {} has yet to be read", secret.key));
    } else if snapshot.full_schema {
        let (uninitialized, next) = uninitialized::finding(context, class, snapshot.uninitialized.as_ref());
        write(context, snapshot, errors, uninitialized).add_to(plan);
        plan.wake_at(next);
    }
    // Only a status could report what is missing. Without one, as with machine-controller-manager's CRDs, an event does.
    if !snapshot.full_schema && snapshot.machines > 0 {
        let missing = snapshot.secrets.iter().filter(|secret| matches!(secret.found, Lookup::Missing));
        let events =
            missing.map(|secret| format!("Secret {} does not exist, or is not of type Opaque: create it", secret.key));
        for text in events {
            plan.event(Event::warning(reference(class), class_secrets::NOT_FOUND, text));
        }
        if snapshot.lacks_user_data() {
            let text = class_secrets::without_user_data();
            plan.event(Event::warning(reference(class), class_secrets::USER_DATA_MISSING, text));
        }
    }
}

fn hold_secret(secret: &NamedSecret) -> Option<Planned<Validate>> {
    let live = secret.found.found().filter(|_| secret.is_ours)?;
    if has_finalizer(live.as_ref(), finalizers::MACHINE_CONTROLLER) || is_deleting(live.as_ref()) {
        return None;
    }
    let add = finalizer::add(&live.metadata, finalizers::MACHINE_CONTROLLER);
    Planned::new("a class refers to the secret", Step::edit(CONTROL, live.as_ref(), add))
}

/// Whether the status reports the errors. If the schema has none, each plan reports them: as one event that is counted.
fn is_reported(class: &MachineClass, errors: &[String]) -> bool {
    let known = class.condition(conditions::machine_class::PROVIDER_SPEC_VALID);
    known.is_some_and(|known| known.status == ConditionStatus::False && known.message == clip(errors.join("; ")))
}
