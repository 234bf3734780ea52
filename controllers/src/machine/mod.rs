//! Machine: one VM, and the Node that it becomes.
//!
//! Its life ([`life`]): class and secrets are there → VM created through the driver → VM initialised → Node joined and
//! healthy (`Running`) → watched; unhealthy for too long → `Failed`, within a budget; the MachineSet replaces it.
//!
//! Its death ([`death`]): Node cordoned → Pods gone → volumes detached → VM gone → Node gone → name retired → end.
//!
//! Where a Machine stands is observed each time: from the object, its Node, the provider's answers. No text is parsed,
//! and nothing is remembered that cannot be asked again.

mod caller;
mod calls;
mod death;
mod health;
mod life;
mod node_sync;
mod owned;
mod settings;
mod status;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod world;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Secret};
use nodewright_api::{Machine, MachineClass, MachineSet, labels};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    object::{Cluster, Key, controller_uid, is_deleting, label, name, uid},
    plan::{Moment, Plan},
};

pub use self::{
    caller::Caller,
    calls::{Call, Outcome, Request, Verb},
    settings::Settings,
    world::{ClassProblem, Owner, World},
};
use crate::{driver::Driver, machine_set::BY_UID};

/// Nodes and Machines by the provider's id of the VM.
const BY_CLUSTER_ID: &str = "instance-id";
/// Nodes by the name of their Machine; Machines by the name of their Node.
const BY_MACHINE_NAME: &str = "machine-name";
/// Machines by their class.
const BY_CLASS: &str = "class";
/// Machines that wait for the replacement budget, and Machines that are being deleted, by the UID of their set.
const WAITING_BY_SET: &str = "waiting";
const LEAVING_BY_SET: &str = "leaving";

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

/// The last part of a providerID: `i-0abc` of `aws:///eu-west-1a/i-0abc`. Providers and kubelets agree on this part
/// even where they differ in the rest.
fn instance_id(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or(provider_id)
}

impl Controller for MachineController {
    const NAME: &'static str = "machine";
    type Primary = Machine;
    type World = World;
    type Effect = Call;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Machine>(Cluster::CONTROL, &self.namespace)
            .index(BY_CLUSTER_ID, |machine: &Machine| machine.provider_id().map(|id| instance_id(id).to_owned()))
            .index(BY_MACHINE_NAME, |machine: &Machine| machine.node_name().map(str::to_owned))
            .index(BY_CLASS, |machine: &Machine| Some(machine.class_name().to_owned()))
            .index(WAITING_BY_SET, |machine: &Machine| {
                controller_uid(machine).filter(|_| health::may_be_replaced(machine)).map(str::to_owned)
            })
            .index(LEAVING_BY_SET, |machine: &Machine| {
                controller_uid(machine).filter(|_| is_deleting(machine)).map(str::to_owned)
            })
            // A budget that one Machine has used up is free again once that Machine is well or gone.
            .wakes(|change, stores, wake| waiting_peers(change.sides().last(), stores, wake));
        on.kind::<MachineSet>(Cluster::CONTROL, &self.namespace)
            .index(BY_UID, |set: &MachineSet| set.metadata.uid.clone())
            .wakes(|change, stores, wake| leaving_machines(change.sides().last(), stores, wake));
        on.kind::<MachineClass>(Cluster::CONTROL, &self.namespace).wakes(|change, stores, wake| {
            for class in change.sides() {
                unborn_of_class(stores, name(class.as_ref()), wake);
            }
        });
        on.kind::<Secret>(Cluster::CONTROL, &self.namespace).wakes(|change, stores, wake| {
            let secret = change.sides().last().map(|secret| name(secret.as_ref())).unwrap_or_default();
            for class in stores.of::<MachineClass>(Cluster::CONTROL).all() {
                if class.secret_names().any(|(_, name)| name == secret) {
                    unborn_of_class(stores, name(class.as_ref()), wake);
                }
            }
        });
        if self.settings.has_target {
            on.kind::<Node>(Cluster::TARGET, "")
                .index(BY_CLUSTER_ID, |node: &Node| {
                    let id = node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())?;
                    Some(instance_id(id).to_owned())
                })
                .index(BY_MACHINE_NAME, |node: &Node| label(node, labels::MACHINE_NAME).map(str::to_owned))
                .wakes(machines_of_node);
        }
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        World::observe(stores, key)
    }

    fn plan(&self, at: &Moment<'_, Call>, world: &World) -> Plan<Call> {
        let context = Context { settings: &self.settings, driver: self.driver.as_ref() };
        if is_deleting(world.machine.as_ref()) {
            death::plan(at, world, context)
        } else {
            life::plan(at, world, context)
        }
    }
}

/// What a plan knows besides the world.
#[derive(Clone, Copy)]
struct Context<'a> {
    settings: &'a Settings,
    driver: &'a dyn Driver,
}

fn machines_of_node(change: &nodewright_runtime::cache::Change<Node>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let machines = stores.of::<Machine>(Cluster::CONTROL);
    for node in change.sides() {
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).map(instance_id);
        let mut found = id.map(|id| machines.by(BY_CLUSTER_ID, id)).unwrap_or_default();
        found.extend(machines.by(BY_MACHINE_NAME, name(node.as_ref())));
        for machine in &found {
            wake(Key::of(Cluster::CONTROL, machine.as_ref()));
        }
    }
}

/// A Machine waits for its set only to see its index retired.
fn leaving_machines(set: Option<&Arc<MachineSet>>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let Some(set) = set else { return };
    for machine in stores.of::<Machine>(Cluster::CONTROL).by(LEAVING_BY_SET, uid(set.as_ref())) {
        wake(Key::of(Cluster::CONTROL, machine.as_ref()));
    }
}

fn unborn_of_class(stores: &Stores, class: &str, wake: &mut dyn FnMut(Key)) {
    for machine in stores.of::<Machine>(Cluster::CONTROL).by(BY_CLASS, class) {
        if machine.provider_id().is_none() || is_deleting(machine.as_ref()) {
            wake(Key::of(Cluster::CONTROL, machine.as_ref()));
        }
    }
}

fn waiting_peers(machine: Option<&Arc<Machine>>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let Some(owner) = machine.and_then(|machine| controller_uid(machine.as_ref())) else { return };
    let sets = stores.of::<MachineSet>(Cluster::CONTROL);
    let Some(set) = sets.by(BY_UID, owner).into_iter().next() else { return };
    let family = match controller_uid(set.as_ref()) {
        Some(deployment) => sets.owned_by(deployment),
        None => vec![set],
    };
    let machines = stores.of::<Machine>(Cluster::CONTROL);
    for peer in family.iter().flat_map(|set| machines.by(WAITING_BY_SET, uid(set.as_ref()))) {
        wake(Key::of(Cluster::CONTROL, peer.as_ref()));
    }
}
