//! What a class decides.

use json_patch::Patch;
use nodewright_api::{
    ClassIdentity, ConditionStatus, MachineClass, annotations as keys, conditions, finalizers, reasons::unreadable,
};
use nodewright_runtime::{
    annotations,
    cache::Lookup,
    clip::clip,
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{has_finalizer, is_deleting},
    plan::{Moment, Plan, Planned, Step, reference},
};

use super::{MachineClassController, NamedSecret, World, status};
use crate::shared::class_secrets;
use crate::shared::clusters::CONTROL;

/// Event: a class that is being deleted is still needed.
const IN_USE: &str = "MachineClassInUse";
/// Event: the driver cannot read the providerSpec.
const INVALID: &str = "InvalidProviderSpec";

pub(super) fn plan(controller: &MachineClassController, at: &Moment<'_, Never>, world: &World) -> Plan<Never> {
    let mut plan = Plan::idle();
    let class = world.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    let problems = (controller.check)(class);
    // No VM is made of a class with which the driver cannot do anything: there is none to be found.
    let is_usable = problems.is_empty();
    plan.stage(world.secrets.iter().filter_map(hold));
    if world.machines > 0 && world.is_used && !is_held && !class.is_deleting() {
        let mut add = finalizer::add(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        // What an earlier use has left there says nothing of this one.
        let identity = is_usable.then(|| ClassIdentity::of(class, &(controller.identity)(class)));
        add.0.extend(record(class, identity.as_ref()).0);
        plan.beside("machines name the class", Step::edit(CONTROL, class, add));
        return plan;
    }
    let identity = ClassIdentity::in_force(class, &(controller.identity)(class));
    if world.machines > 0 && is_held && is_usable && ClassIdentity::recorded(class).as_ref() != Some(&identity) {
        let record = record(class, Some(&identity));
        plan.beside("by what the VMs of the class are found is remembered", Step::edit(CONTROL, class, record));
        return plan;
    }
    if let Some(text) = world.unreadable.as_ref().filter(|_| world.machines == 0 && is_held) {
        plan.wait(unreadable::MACHINE, format!("{text}; until then it may name the class, which is kept"));
        if class.is_deleting() {
            plan.event(Event::warning(reference(class), unreadable::MACHINE, text.clone()));
        }
    }
    if world.machines == 0 && is_held && world.unreadable.is_none() {
        let remove = finalizer::remove(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        let step = remove.and_then(|mut remove| {
            remove.0.extend(record(class, None).0);
            Step::edit(CONTROL, class, remove)
        });
        plan.then("no machine names the class any more", step);
        return plan;
    }
    if class.is_deleting() && world.machines > 0 {
        plan.wait(IN_USE, format!("{} machines name the class; it is kept until they are gone", world.machines));
        // Without the count, so that it is one event however many machines go.
        let text = "machines still name the class: it is kept until they are gone";
        plan.event(Event::warning(reference(class), IN_USE, text));
    }
    if !problems.is_empty() && !is_told(class, &problems) {
        let text = format!("machines of this class cannot be made: {}", problems.join("; "));
        plan.event(Event::warning(reference(class), INVALID, text));
    }
    if let Some(secret) = world.secrets.iter().find(|secret| matches!(secret.found, Lookup::Pending)) {
        plan.wait(class_secrets::PENDING, format!("Secret {} has yet to be read", secret.key));
    } else if controller.full_schema.get() {
        status::tell(&mut plan, at, world, &problems);
    }
    plan
}

/// Keeps a secret, so that it outlives the class.
fn hold(secret: &NamedSecret) -> Option<Planned<Never>> {
    let live = secret.found.found().filter(|_| secret.is_ours)?;
    if has_finalizer(live.as_ref(), finalizers::MACHINE_CONTROLLER) || is_deleting(live.as_ref()) {
        return None;
    }
    let add = finalizer::add(&live.metadata, finalizers::MACHINE_CONTROLLER);
    let step = Step::edit(CONTROL, live.as_ref(), add)?;
    Some(Planned { why: "a class refers to the secret".into(), step })
}

/// Remembers on a class in use by what its VMs are found, so that a change of that can be told, and set back.
fn record(class: &MachineClass, identity: Option<&ClassIdentity>) -> Patch {
    let text = identity.map(ClassIdentity::to_text);
    annotations::set(&class.metadata, keys::IDENTITY, text.as_deref())
}

/// Whether the status says so already. Where the schema has none, it is said again with each plan: as one event, whose
/// count goes up.
fn is_told(class: &MachineClass, problems: &[String]) -> bool {
    let told = class.condition(conditions::machine_class::PROVIDER_SPEC_VALID);
    told.is_some_and(|told| told.status == ConditionStatus::False && told.message == clip(problems.join("; ")))
}
