//! What a class decides.

use nodewright_api::finalizers;
use nodewright_runtime::{
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{Cluster, has_finalizer},
    plan::{Moment, Plan, Step, reference},
};

use super::{MachineClassController, World, status};

/// Event: a class that is being deleted is still needed.
const IN_USE: &str = "MachineClassInUse";

pub(super) fn plan(controller: &MachineClassController, at: &Moment<'_, Never>, world: &World) -> Plan<Never> {
    let mut plan = Plan::idle();
    let class = world.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    if world.machines > 0 && !is_held && !class.is_deleting() {
        let add = finalizer::add(&class.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("machines name the class", Step::edit(Cluster::CONTROL, class, add));
        return plan;
    }
    if world.machines == 0 && is_held {
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
    if controller.full_schema {
        status::tell(&mut plan, at, world, &controller.check);
    }
    plan
}
