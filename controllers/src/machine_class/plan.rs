//! What a class decides.

use nodewright_api::{ConditionStatus, MachineClass, conditions, finalizers, reasons::unreadable};
use nodewright_runtime::{
    clip::clip,
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{Cluster, has_finalizer},
    plan::{Moment, Plan, Step, reference},
};

use super::{MachineClassController, World, status};

/// Event: a class that is being deleted is still needed.
const IN_USE: &str = "MachineClassInUse";
/// Event: the driver cannot read the providerSpec.
const INVALID: &str = "InvalidProviderSpec";

pub(super) fn plan(controller: &MachineClassController, at: &Moment<'_, Never>, world: &World) -> Plan<Never> {
    let mut plan = Plan::idle();
    let class = world.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    if world.machines > 0 && world.is_used && !is_held && !class.is_deleting() {
        let add = finalizer::add(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("machines name the class", Step::edit(Cluster::CONTROL, class, add));
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
        let step = remove.and_then(|remove| Step::edit(Cluster::CONTROL, class, remove));
        plan.then("no machine names the class any more", step);
        return plan;
    }
    if class.is_deleting() && world.machines > 0 {
        plan.wait(IN_USE, format!("{} machines name the class; it is kept until they are gone", world.machines));
        // Without the count, so that it is one event however many machines go.
        let text = "machines still name the class: it is kept until they are gone";
        plan.event(Event::warning(reference(class), IN_USE, text));
    }
    let problems = (controller.check)(class);
    if !problems.is_empty() && !is_told(class, &problems) {
        let text = format!("machines of this class cannot be made: {}", problems.join("; "));
        plan.event(Event::warning(reference(class), INVALID, text));
    }
    if controller.full_schema.get() {
        status::tell(&mut plan, at, world, &problems);
    }
    plan
}

/// Whether the status says so already. Where the schema has none, it is said again with each plan: as one event, whose
/// count goes up.
fn is_told(class: &MachineClass, problems: &[String]) -> bool {
    let told = class.condition(conditions::machine_class::PROVIDER_SPEC_VALID);
    told.is_some_and(|told| told.status == ConditionStatus::False && told.message == clip(problems.join("; ")))
}
