//! Machine: one VM, and the Node that it becomes.
//!
//! * Until it is deleted: class and Secrets exist → VM created through the driver → VM initialized → Node joined and healthy
//!   (`Running`) → watched; unhealthy for too long → `Failed`, within a budget; then the MachineSet replaces it.
//! * Once it is deleted: Node cordoned → Pods gone → volumes detached → VM gone → Node gone → name retired → finalizer removed.
//!
//! Where a Machine stands is observed each time, from the object, its Node, the provider's answers: `snapshot` reads the
//! caches; `claim`, `ownership` and `proof` find whose its VM is, `provision` what the VM lacks, `cloud` what the Node lacks of what the
//! provider knows, `health` and `budget` whether the Machine fails, `force_drain` whether a drain is forced, `terminate` what is left to delete; `plan` puts the steps together.

mod budget;
mod caller;
mod calls;
mod claim;
mod cloud;
mod decision;
mod drain;
mod force_drain;
mod health;
mod mcm_metrics;
mod memory;
mod namesakes;
mod node_sync;
mod others;
mod ownership;
mod partial_plan;
mod plan;
mod preserve;
mod proof;
mod provider;
mod provision;
mod scope;
mod settings;
mod snapshot;
mod status;
mod terminate;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod update;
mod virtual_capacity;
mod volume_ids;
mod volumes;
mod waiting;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nodewright_api::{
    Machine, MachineClass, MachineSet, annotations, machine_config::MachineConfigPool, stored::LEDGER,
};
use nodewright_driver::Driver;
use nodewright_runtime::{
    cache::{Change, Stores, Unreadable},
    controller::{Controller, Watches},
    object::{Cluster, ObjectRef, annotation, name, namespace, uid},
};

pub(crate) use self::budget::brake::register as register_brake;
pub(crate) use self::caller::Caller;
pub use self::{
    budget::brake::BrakeSettings,
    calls::{Call, Outcome, Request, Verb},
    cloud::{CloudNodeMode, CloudNodeSettings},
    mcm_metrics::MachineMetrics,
    settings::{CallLimits, MachineSettings},
    trace::Traces,
};
use self::{
    budget::{
        DELETING_NODES, HEALTHY_BY_CLASS, HELD_BY_SET, LEAVING_BY_SET, PLACES_BY_SET, UNHEALTHY_BY_CLASS,
        WAITING_BY_SET,
    },
    memory::{Context, Note, Plan},
    provider::CALLING,
    scope::Scope,
    snapshot::{Snapshot, is_forced, needs_class},
};
use crate::shared::{
    CONTROL, TARGET, cloud_manager,
    disruption::{WAITING_NODES, waiting_nodes},
    driver::DriverProperties,
    indexes::{
        MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_CLASS, NODE_BY_INSTANCE, SET_BY_UID, instance_id, object_key,
    },
    membership::conflicting_machines,
    node::Node,
    ownership::{node_name, vm_id},
    wake_all,
};

/// Reconciles Machines.
#[derive(Clone)]
pub struct MachineController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Timeouts and periods.
    pub settings: Arc<MachineSettings>,
    /// The provider, for its deadlines.
    pub driver: Arc<dyn Driver>,
    /// The metrics of machine-controller-manager.
    pub metrics: MachineMetrics,
}

impl Controller for MachineController {
    const NAME: &'static str = "machine";
    const CALL_WAIT: &'static str = CALLING;
    type Primary = Machine;
    type Snapshot = Snapshot;
    type Effect = Call;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        let (settings, metrics) = (self.settings.clone(), self.metrics.clone());
        on.primary::<Machine>(CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .index(MACHINES_BY_CLASS)
            .index(WAITING_BY_SET)
            .index(PLACES_BY_SET)
            .index(HELD_BY_SET)
            .index(LEAVING_BY_SET)
            .index(HEALTHY_BY_CLASS)
            .index(UNHEALTHY_BY_CLASS)
            .sharing(Machine::share)
            // The place of the budget that a Machine holds is free once the Machine is healthy or gone.
            .wakes(move |change, stores, wake| {
                metrics.changed(change);
                budget::wake_next(change, stores, &settings, wake);
                // Machines that name the same VM wait for each other.
                change.sides().for_each(|machine| wake_all(conflicting_machines(stores, machine), wake));
            });
        on.kind::<MachineSet>(CONTROL, &self.namespace)
            .index(SET_BY_UID)
            .wakes_unreadable(|set, stores, wake| {
                wake_all(stores.of::<Machine>(CONTROL).owned_by(set.uid()), wake);
            })
            .wakes(machines_of_set);
        on.kind::<MachineClass>(CONTROL, &self.namespace)
            .wakes_unreadable(|class, stores, wake| machines_of_class(stores, class.namespace(), class.name(), wake))
            .wakes(|change, stores, wake| {
                if !change.differs_in(without_status) {
                    return;
                }
                let is_of_nodes = virtual_capacity(change.old.as_deref()) != virtual_capacity(change.new.as_deref());
                for class in change.sides() {
                    let (namespace, name) = (namespace(class.as_ref()), name(class.as_ref()));
                    if is_of_nodes {
                        wake_all(all_of_class(stores, namespace, name), wake);
                    } else {
                        machines_of_class(stores, namespace, name, wake);
                    }
                }
            });
        if self.settings.has_target {
            cloud_manager::watch_and_log(on, self.settings.cloud_node.mode);
            on.kind::<Node>(TARGET, "")
                .index(NODE_BY_INSTANCE)
                .index(DELETING_NODES)
                .wakes_unreadable(machines_of_unreadable_node)
                .wakes(machines_of_node);
        }
        if self.settings.has_target && self.settings.has_pools {
            on.kind::<Node>(TARGET, "").index(WAITING_NODES);
            on.kind::<MachineConfigPool>(TARGET, "").wakes(|change, stores, wake| {
                let machines = stores.of::<Machine>(CONTROL);
                for node in waiting_nodes(change, stores) {
                    wake_all(machines.by(MACHINE_BY_NODE, name(node.as_ref())), wake);
                }
            });
        }
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let driver = self.driver.as_ref();
        Snapshot::take(stores, key, (driver.name(), DriverProperties::of(driver)), self.settings.clone())
    }

    fn tolerates_unavailable(&self, machine: &Machine, cluster: Cluster, now: Timestamp) -> bool {
        cluster == TARGET && (is_forced(machine) || terminate::is_abandoned(&self.settings, machine, now))
    }

    /// A deletion does not wait for the target cluster for ever, and all others say that they do.
    fn plans_unlisted(&self, _: &Machine, cluster: Cluster) -> bool {
        cluster == TARGET
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(&Scope::of(snapshot, context, &OnceCell::new()))
    }
}

fn machines_of_node(change: &Change<Node>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    if Node::is_heartbeat(change) {
        return;
    }
    let machines = stores.of::<Machine>(CONTROL);
    let id = |node: &Arc<Node>| node.provider_id().map(|id| instance_id(id).to_owned());
    let ids: BTreeSet<_> = change.sides().filter_map(id).collect();
    let mut found: Vec<_> = ids.iter().flat_map(|id| machines.by(MACHINE_BY_INSTANCE, id)).collect();
    if let Some(node) = change.sides().last() {
        let named = machines.by(MACHINE_BY_NODE, name(node.as_ref()));
        found.extend(named.into_iter().filter(|it| vm_id(it).is_none_or(|id| !ids.contains(instance_id(id)))));
    }
    wake_all(found, wake);
}

/// Machines wait for these changes of their set: an ordinal is retired, the budget or the health timeouts change, or the set
/// appears after them.
fn machines_of_set(change: &Change<MachineSet>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    budget::wake_held(change, stores, wake);
    let machines = stores.of::<Machine>(CONTROL);
    let Some(set) = change.sides().last() else { return };
    let ledger = |set: &Option<Arc<MachineSet>>| {
        set.as_deref().and_then(|set| annotation(set, annotations::LEDGER)).map(str::to_owned)
    };
    let timeouts = |set: &Option<Arc<MachineSet>>| {
        set.as_deref().and_then(|set| annotation(set, annotations::HEALTH_TIMEOUTS)).map(str::to_owned)
    };
    let mut waiting = vec![];
    if timeouts(&change.old) != timeouts(&change.new) {
        waiting.extend(machines.by(WAITING_BY_SET, uid(set.as_ref())));
    }
    if change.new.is_none() || ledger(&change.old) != ledger(&change.new) {
        waiting.extend(machines.by(LEAVING_BY_SET, uid(set.as_ref())));
    }
    // Machines that have yet to get their VM also wait for a valid ledger.
    let is_invalid = |set: &Arc<MachineSet>| matches!(LEDGER.read(set.as_ref()), Some(Err(_)));
    let had_invalid = change.old.as_ref().is_some_and(is_invalid);
    if change.old.is_none() || had_invalid && ledger(&change.old) != ledger(&change.new) {
        waiting.extend(machines.owned_by(uid(set.as_ref())));
    }
    wake_all(waiting, wake);
}

/// Goes through all Machines, because it may be the Node of one whose Node has no name yet. It happens rarely.
fn machines_of_unreadable_node(node: &Unreadable, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let mut machines = stores.of::<Machine>(CONTROL).all();
    machines.retain(|machine| snapshot::may_be_node_of(machine, node_name(machine), node));
    wake_all(machines, wake);
}

/// The Machines that need their class. Each watches the Secrets of its class itself.
fn machines_of_class(stores: &Stores, namespace: &str, class: &str, wake: &mut dyn FnMut(ObjectRef)) {
    let mut machines = all_of_class(stores, namespace, class);
    machines.retain(|machine| needs_class(machine));
    wake_all(machines, wake);
}

fn all_of_class(stores: &Stores, namespace: &str, class: &str) -> Vec<Arc<Machine>> {
    stores.of::<Machine>(CONTROL).by(MACHINES_BY_CLASS, &object_key(namespace, class))
}

/// What Machines go by. The status changes with their number, and would wake all of them each time.
fn without_status(class: &MachineClass) -> MachineClass {
    let mut class = class.clone();
    class.metadata.resource_version = None;
    class.status = None;
    class
}

fn virtual_capacity(class: Option<&MachineClass>) -> Option<&BTreeMap<String, Quantity>> {
    class?.node_template.as_ref().map(|template| &template.virtual_capacity)
}
