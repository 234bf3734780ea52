//! Machine: one VM, and the Node that it becomes.
//!
//! Its life (`life`): class and secrets are there → VM created through the driver → VM initialised → Node joined and
//! healthy (`Running`) → watched; unhealthy for too long → `Failed`, within a budget; the MachineSet replaces it.
//!
//! Its death (`death`): Node cordoned → Pods gone → volumes detached → VM gone → Node gone → name retired → end.
//!
//! Where a Machine stands is observed each time: from the object, its Node, the provider's answers. No text is parsed,
//! and nothing is remembered that cannot be asked again.

mod applied;
mod birth;
mod budget;
mod caller;
mod calls;
mod context;
mod death;
mod health;
mod indexes;
mod life;
mod node_sync;
mod owned;
mod ownership;
mod proof;
mod retry;
mod settings;
mod status;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod world;

use std::sync::Arc;

use nodewright_api::{Machine, MachineClass, MachineSet, annotations};
use nodewright_driver::Driver;
use nodewright_runtime::{
    cache::{Change, Stores, Unreadable},
    controller::{Controller, Watches},
    object::{Cluster, Key, annotation, is_deleting, name, namespace, uid},
    plan::{Moment, Plan},
};

use self::indexes::{DELETING_NODES, HELD_BY_SET, LEAVING_BY_SET, PLACES_BY_SET, WAITING_BY_SET};
pub use self::{
    budget::Peers,
    caller::Caller,
    calls::{Call, Outcome, Request, Verb},
    ownership::{Claim, Vm},
    settings::Settings,
    world::{ClassProblem, Owner, UnseenNode, World},
};
use self::{
    context::Context,
    world::{is_forced, needs_class},
};
use crate::shared::{
    class_secrets,
    indexes::{
        MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_CLASS, NODE_BY_INSTANCE, SET_BY_UID, instance_id, place,
    },
    ledger::Ledger,
    node::Node,
    ownership::{node_name, vm_id},
};

/// Keeps Machines.
#[derive(Clone)]
pub struct MachineController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Timeouts and periods.
    pub settings: Settings,
    /// The provider, for its deadlines.
    pub driver: Arc<dyn Driver>,
}

impl std::fmt::Debug for MachineController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineController")
            .field("namespace", &self.namespace)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Controller for MachineController {
    const NAME: &'static str = "machine";
    type Primary = Machine;
    type World = World;
    type Effect = Call;

    fn watch(&self, on: &mut Watches<'_>) {
        let settings = self.settings.clone();
        on.primary::<Machine>(Cluster::CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .index(MACHINES_BY_CLASS)
            .index(WAITING_BY_SET)
            .index(PLACES_BY_SET)
            .index(HELD_BY_SET)
            .index(LEAVING_BY_SET)
            .sharing(Machine::share)
            // A place that one Machine has held is free once that Machine is well or gone.
            .wakes(move |change, stores, wake| {
                budget::wake_next(change, stores, &settings, wake);
                rivals(change, stores, wake);
            });
        on.kind::<MachineSet>(Cluster::CONTROL, &self.namespace)
            .index(SET_BY_UID)
            .wakes_unreadable(|set, stores, wake| {
                let machines = stores.of::<Machine>(Cluster::CONTROL).owned_by(set.uid());
                for machine in &machines {
                    wake(Key::of(Cluster::CONTROL, machine.as_ref()));
                }
            })
            .wakes(machines_of_set);
        on.kind::<MachineClass>(Cluster::CONTROL, &self.namespace)
            .wakes_unreadable(|class, stores, wake| machines_of_class(stores, class.namespace(), class.name(), wake))
            .wakes(|change, stores, wake| {
                for class in change.sides() {
                    machines_of_class(stores, namespace(class.as_ref()), name(class.as_ref()), wake);
                }
            });
        if self.settings.has_target {
            on.kind::<Node>(Cluster::TARGET, "")
                .index(NODE_BY_INSTANCE)
                .index(DELETING_NODES)
                .wakes_unreadable(machines_of_unreadable_node)
                .wakes(machines_of_node);
        }
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        World::observe(stores, key, self.driver.name())
    }

    fn goes_on_without(&self, machine: &Machine, cluster: Cluster) -> bool {
        cluster == Cluster::TARGET && is_forced(machine)
    }

    fn plan(&self, at: &Moment<'_, Call>, world: &World) -> Plan<Call> {
        let context = Context { settings: &self.settings, driver: self.driver.as_ref() };
        let mut plan = match world.secret_pending() {
            Some(text) => {
                let mut plan = Plan::idle();
                plan.wait(class_secrets::PENDING, text);
                plan
            }
            None if is_deleting(world.machine.as_ref()) => death::plan(at, world, context),
            None => life::plan(at, world, context),
        };
        plan.looks.extend(world.looks.iter().cloned());
        plan
    }
}

fn machines_of_node(change: &Change<Node>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let machines = stores.of::<Machine>(Cluster::CONTROL);
    for node in change.sides() {
        let id = node.provider_id().map(instance_id);
        let mut found = id.map(|id| machines.by(MACHINE_BY_INSTANCE, id)).unwrap_or_default();
        found.extend(machines.by(MACHINE_BY_NODE, name(node.as_ref())));
        for machine in &found {
            wake(Key::of(Cluster::CONTROL, machine.as_ref()));
        }
    }
}

/// Machines that name one VM wait for one another.
fn rivals(change: &Change<Machine>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    for machine in change.sides() {
        let Some(id) = vm_id(machine) else { continue };
        let all = stores.of::<Machine>(Cluster::CONTROL).by(MACHINE_BY_INSTANCE, instance_id(id));
        for other in all.iter().filter(|other| uid(other.as_ref()) != uid(machine.as_ref())) {
            wake(Key::of(Cluster::CONTROL, other.as_ref()));
        }
    }
}

/// A Machine waits for its set to see its index retired, for the budget that the set says, and, where the set comes
/// after the Machine, to see that there is one. Of nothing else that a set says.
fn machines_of_set(change: &Change<MachineSet>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    budget::wake_all(change, stores, wake);
    let machines = stores.of::<Machine>(Cluster::CONTROL);
    let Some(set) = change.sides().last() else { return };
    let ledger = |set: &Option<Arc<MachineSet>>| {
        set.as_deref().and_then(|set| annotation(set, annotations::LEDGER)).map(str::to_owned)
    };
    let mut waiting = vec![];
    if change.new.is_none() || ledger(&change.old) != ledger(&change.new) {
        waiting.extend(machines.by(LEAVING_BY_SET, uid(set.as_ref())));
    }
    // Whatever was waiting for the ledger may be a Machine that has yet to get its VM.
    let had_invalid = ledger(&change.old).is_some_and(|ledger| ledger.parse::<Ledger>().is_err());
    if change.old.is_none() || had_invalid && ledger(&change.old) != ledger(&change.new) {
        waiting.extend(machines.owned_by(uid(set.as_ref())));
    }
    for machine in &waiting {
        wake(Key::of(Cluster::CONTROL, machine.as_ref()));
    }
}

/// Rare enough to go through all Machines: it may be the Node of one whose Node has yet to be named.
fn machines_of_unreadable_node(node: &Unreadable, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    for machine in stores.of::<Machine>(Cluster::CONTROL).all() {
        if world::may_be_node_of(&machine, node_name(&machine), node) {
            wake(Key::of(Cluster::CONTROL, machine.as_ref()));
        }
    }
}

/// The Machines that need their class. They look at its Secrets themselves.
fn machines_of_class(stores: &Stores, namespace: &str, class: &str, wake: &mut dyn FnMut(Key)) {
    let machines = stores.of::<Machine>(Cluster::CONTROL).by(MACHINES_BY_CLASS, &place(namespace, class));
    for machine in machines.iter().filter(|machine| needs_class(machine)) {
        wake(Key::of(Cluster::CONTROL, machine.as_ref()));
    }
}
