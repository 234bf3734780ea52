//! Nodes whose VM is gone: this controller deletes them, with `--cloud-node=on` or `auto`, as Kubernetes' cloud-node-lifecycle-controller does
//! where a cloud controller manager runs.
//!
//! ```text
//! Machine: the provider has said twice that it knows no VM ─┐
//! or no Machine: two lists have lacked the VM              ─┤
//! Node: not ready, of that VM, with the Machine's name     ─┴─► may more Nodes of the zone go? ─► delete, under UID and version
//! ```
//!
//! # Guarantees
//! * A Node that is ready is not deleted, nor one that has no condition Ready and is young.
//! * One Machine alone claims the Node, by the id of its proven VM, and its condition `InstanceExists` says that this VM is missing. The
//!   Node has the Machine's name in its label. So no namesake goes, and no Node of another provider.
//! * Or no Machine claims it, and it is marked: by [`orphan_vm`](super::orphan_vm), because two believed lists of its class, a grace apart,
//!   lacked its VM, or by [`machine`](super::machine), whose Machine reported that before it went. A Node that is ready again loses
//!   the mark.
//! * Of a zone no more than a tenth of the Nodes go in five minutes, at least one; none while more of them are not ready than the fleet brake
//!   allows for a zone (55 %), while a Machine cannot be decoded, or for a while after this process began to lead or was connected again.
//! * The deletion names UID and resource version: a Node that has reported since stays.
//!
//! # Caveats
//! * The brake forgets at a restart which Nodes have gone; therefore the pause after one.
//! * Of Nodes without a Machine those are kept that had none while this was on, and those of whose classes no list is believed.

mod brake;
mod decision;
mod memory;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use nodewright_api::Machine;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::ObjectRef,
};
use prometheus_client::metrics::counter::Counter;

pub(crate) use self::brake::Brake;
use self::{
    brake::DeletionRequest,
    memory::{Context, Plan},
    snapshot::{NODES_BY_ZONE, NOT_READY_BY_ZONE, Snapshot},
};
use crate::shared::{
    CONTROL, TARGET,
    cloud_manager::CloudNodeMode,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::{is_disputed, missing_vm, node_name, vm_id},
};

/// The controller of Nodes whose VM is gone.
#[derive(Clone, Debug)]
pub struct NodeLifecycleController {
    /// The namespace of the custom resources.
    pub(crate) namespace: String,
    /// Who does this (`--cloud-node`).
    pub(crate) mode: CloudNodeMode,
    /// How long no Node is deleted after this process began to lead, or was connected again (`--node-deletion-after-start`).
    pub(crate) after_start: Duration,
    /// The percentage of a zone's Nodes that are not ready above which none goes: the fleet brake's (`--fleet-brake-zone-percent`).
    pub(crate) most_not_ready: u8,
    pub(crate) counters: Counters,
}

/// What has become of Nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Those that have lost the taint of an uninitialized Node.
    pub(crate) initialized: Counter,
    /// Those that went, not ready, when their VM was gone.
    pub(crate) deleted: Counter,
}

impl Counters {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let counters = Self::default();
        metrics.register(|registry| {
            let help = "Nodes that have lost the taint of an uninitialized Node";
            registry.register("node_initializations", help, counters.initialized.clone());
            let help = "Nodes that went after their VM was gone";
            registry.register("node_deletions", help, counters.deleted.clone());
        });
        counters
    }

    fn count(&self, change: &Change<Node>, stores: &Stores) {
        match (change.old.as_deref(), change.new.as_deref()) {
            (Some(old), Some(new)) if old.is_uninitialized() && !new.is_uninitialized() => {
                self.initialized.inc();
            }
            (Some(old), None) if !old.is_ready() && snapshot::is_missing(stores, old) => {
                self.deleted.inc();
            }
            _ => {}
        }
    }
}

impl Controller for NodeLifecycleController {
    const NAME: &'static str = "node-lifecycle";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = DeletionRequest;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        let counters = self.counters.clone();
        let nodes = on.kind::<Node>(TARGET, "").index(NODE_BY_INSTANCE).index(NODES_BY_ZONE).index(NOT_READY_BY_ZONE);
        nodes.wakes(move |change, stores, wake| {
            counters.count(change, stores);
            for new in change.new.iter().filter(|new| is_due(stores, new)) {
                wake(ObjectRef::of(TARGET, new.as_ref()));
            }
        });
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .wakes_unreadable(|_, stores, wake| {
                let nodes = stores.of::<Node>(TARGET).all();
                let due = nodes.iter().filter(|node| is_due(stores, node));
                due.for_each(|node| wake(ObjectRef::of(TARGET, node.as_ref())));
            })
            .wakes(nodes_of_missing_vm);
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, (self.mode, self.after_start), self.most_not_ready)
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// Whether there is something to do, or to wait for.
fn is_due(stores: &Stores, node: &Node) -> bool {
    !node.is_ready() && snapshot::is_missing(stores, node) || snapshot::is_mismarked(stores, node)
}

/// Wakes the Nodes of a VM that is missing since a change, and those that a Machine claims no longer, or no longer disputes.
fn nodes_of_missing_vm(change: &Change<Machine>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    if old.map(claims) == new.map(claims) {
        return;
    }
    let store = stores.of::<Node>(TARGET);
    for machine in change.sides() {
        let ids = [vm_id(machine), missing_vm(machine).map(|missing| missing.id)];
        let mut nodes: Vec<_> =
            ids.into_iter().flatten().flat_map(|id| store.by(NODE_BY_INSTANCE, instance_id(id))).collect();
        nodes.extend(node_name(machine).and_then(|node| store.by_name("", node)));
        for node in nodes.iter().filter(|node| is_due(stores, node)) {
            wake(ObjectRef::of(TARGET, node.as_ref()));
        }
    }
}

/// What decides whether a Machine lets its Node go: its VM, its Node, whether the VM is missing, whether that is disputed.
fn claims(machine: &Machine) -> (Option<&str>, Option<&str>, Option<&str>, bool) {
    (vm_id(machine), node_name(machine), missing_vm(machine).map(|missing| missing.id), is_disputed(machine))
}
