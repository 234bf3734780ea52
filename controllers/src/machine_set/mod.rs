//! MachineSet: exactly so many Machines from one template.
//!
//! * Machines are created under names from the set's ledger ([`crate::shared::ledger`]), so that none is made twice.
//! * A Machine is retired in the ledger before it is deleted, whether the set chose it, a user deleted it, or it failed.
//! * A Machine without an owner that the selector matches is adopted before any is created: a restored fleet is taken
//!   over as it is.
//! * A Machine in phase Failed that is not preserved is deleted and replaced.
//! * Fewer replicas: [`deletion_order`] decides who goes.
//! * Node template, timeouts and class kind of the template reach the Machines without a new Machine.
//! * The finalizer keeps a set until its last Machine is gone.

mod deletion_order;
mod owned;
mod plan;
mod status;
#[cfg(test)]
mod tests;
mod world;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    object::{Key, controller_uid, name},
    plan::{Moment, Plan},
};

pub use self::world::World;
use crate::shared::clusters::CONTROL;
use crate::shared::{
    indexes::{MACHINE_BY_INSTANCE, MACHINES_BY_SET_NAME, ORPHAN_MACHINES, SET_BY_UID},
    ledger::set_of,
    membership::selects,
    ownership::rivals,
    schema::FullSchema,
};

/// Keeps MachineSets.
#[derive(Clone, Debug)]
pub struct MachineSetController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with `status.selector`, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
}

impl Controller for MachineSetController {
    const NAME: &'static str = "machine-set";
    type Primary = MachineSet;
    type World = World;
    type Effect = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineSet>(CONTROL, &self.namespace).index(SET_BY_UID);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_SET_NAME)
            .index(ORPHAN_MACHINES)
            .index(MACHINE_BY_INSTANCE)
            .wakes_unreadable(|machine, stores, wake| {
                // One that can be read again may have other owners: all sets look. It is rare.
                let sets = stores.of::<MachineSet>(CONTROL).keys();
                sets.into_iter().filter(|set| &*set.namespace == machine.namespace()).for_each(wake);
            })
            .wakes(|change, stores, wake| {
                let sets = stores.of::<MachineSet>(CONTROL);
                for machine in change.sides() {
                    let owner =
                        controller_uid(machine.as_ref()).map(|uid| sets.by(SET_BY_UID, uid)).unwrap_or_default();
                    for set in &owner {
                        wake(Key::of(CONTROL, set.as_ref()));
                    }
                    if let (true, Some(set)) = (owner.is_empty(), set_of(name(machine.as_ref()))) {
                        wake(Key::of(CONTROL, machine.as_ref()).sibling(set));
                    }
                    if controller_uid(machine.as_ref()).is_none() {
                        let all = sets.all();
                        let takers = all.iter().filter(|set| selects(set, machine));
                        takers.for_each(|set| wake(Key::of(CONTROL, set.as_ref())));
                    }
                    // What another Machine named, too, may be taken once that one is gone.
                    for rival in rivals(stores, machine).iter().filter(|it| controller_uid(it.as_ref()).is_none()) {
                        let takers = sets.all().into_iter().filter(|set| selects(set, rival));
                        takers.for_each(|set| wake(Key::of(CONTROL, set.as_ref())));
                    }
                }
            });
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        World::observe(stores, key)
    }

    fn children(&self, world: &World) -> usize {
        world.machines.len()
    }

    fn plan(&self, at: &Moment<'_, Never>, world: &World) -> Plan<Never> {
        plan::plan(at, world, self.full_schema.get())
    }
}
