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
    snapshot::{NamedSecret, Snapshot},
    status::{VALIDATION_PENDING, naming, write},
    validation::{Validation, validation},
};
use crate::shared::{CONTROL, class_secrets};

const IN_USE: &str = "MachineClassInUse";
const INVALID: &str = "InvalidProviderSpec";

pub(super) fn plan(context: &Context<'_, Validate>, snapshot: &Snapshot) -> Plan<Validate> {
    let mut plan = Plan::idle();
    plan.scoped_watches.extend(snapshot.scoped_watches.iter().cloned());
    let class = snapshot.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
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
    // A class that the driver cannot read creates no VM, so there are no VMs to identify.
    let identity = errors.is_some_and(<[_]>::is_empty).then_some(snapshot.provider.identity.as_slice());
    if let Some((why, patch)) = hold_class(snapshot, identity) {
        plan.beside(why, Step::edit(CONTROL, class, patch));
        return plan;
    }
    if let Some(text) = snapshot.unreadable.as_ref().filter(|_| snapshot.machines == 0 && is_held) {
        plan.wait(unreadable::MACHINE, format!("{text}; until then it may name the class, which is kept"));
        if class.is_deleting() {
            plan.event(Event::warning(reference(class), unreadable::MACHINE, text.clone()));
        }
    }
    if snapshot.machines == 0 && is_held && snapshot.unreadable.is_none() {
        let mut remove = finalizer::remove(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        remove.0.extend(record(class, None).0);
        plan.then("no machine names the class any more", Step::edit(CONTROL, class, remove));
        return plan;
    }
    if class.is_deleting() && snapshot.machines > 0 {
        plan.wait(IN_USE, format!("{}; it is kept until they are gone", naming(snapshot.machines)));
        // Without the count, so that it stays one event while the number of Machines changes.
        let text = "machines still name the class: it is kept until they are gone";
        plan.event(Event::warning(reference(class), IN_USE, text));
    }
    if let Some(errors) = errors.filter(|errors| !errors.is_empty() && !is_reported(class, errors)) {
        let text = format!("machines of this class cannot be made: {}", errors.join("; "));
        plan.event(Event::warning(reference(class), INVALID, text));
    }
    if let Some(secret) = snapshot.secrets.iter().find(|secret| matches!(secret.found, Lookup::Pending)) {
        plan.wait(class_secrets::PENDING, format!("Secret {} has yet to be read", secret.key));
    } else if snapshot.full_schema {
        write(context, snapshot, errors).add_to(&mut plan);
    }
    // Only a status could tell what is missing. Without one, as with machine-controller-manager's CRDs, an event does.
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
    plan
}

fn hold_secret(secret: &NamedSecret) -> Option<Planned<Validate>> {
    let live = secret.found.found().filter(|_| secret.is_ours)?;
    if has_finalizer(live.as_ref(), finalizers::MACHINE_CONTROLLER) || is_deleting(live.as_ref()) {
        return None;
    }
    let add = finalizer::add(&live.metadata, finalizers::MACHINE_CONTROLLER);
    let step = Step::edit(CONTROL, live.as_ref(), add)?;
    Some(Planned { why: "a class refers to the secret".into(), step })
}

/// Adds the finalizer to a class in use, and records `identity`: the fields that identify its VMs, if one can be created.
fn hold_class(snapshot: &Snapshot, identity: Option<&[String]>) -> Option<(&'static str, Patch)> {
    let class = snapshot.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    if snapshot.machines > 0 && snapshot.is_used && !is_held && !class.is_deleting() {
        let mut add = finalizer::add(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        // The record of an earlier use is replaced.
        let identity = identity.map(|fields| ClassIdentity::of(class, fields));
        add.0.extend(record(class, identity.as_ref()).0);
        return Some(("machines name the class", add));
    }
    let identity = ClassIdentity::in_force(class, identity?);
    let is_due = snapshot.machines > 0 && is_held && ClassIdentity::recorded(class).as_ref() != Some(&identity);
    is_due.then(|| ("by what the VMs of the class are found is remembered", record(class, Some(&identity))))
}

fn record(class: &MachineClass, identity: Option<&ClassIdentity>) -> Patch {
    let text = identity.map(ClassIdentity::to_string);
    annotations::set(&class.metadata, keys::IDENTITY, text.as_deref())
}

/// Whether the status reports the errors. If the schema has none, each plan reports them: as one event that is counted.
fn is_reported(class: &MachineClass, errors: &[String]) -> bool {
    let known = class.condition(conditions::machine_class::PROVIDER_SPEC_VALID);
    known.is_some_and(|known| known.status == ConditionStatus::False && known.message == clip(errors.join("; ")))
}
