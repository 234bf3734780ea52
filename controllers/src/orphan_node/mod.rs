//! Nodes without a Machine: this controller removes Nodewright's finalizer from them, and marks them as not managed.
//!
//! If a Machine is removed by force, or a cluster is handed over, Nodes would remain that no user could delete.
//!
//! # Guarantees
//! * A Node keeps the finalizer while any Machine of the namespace claims it: by providerID, by the label `node`, or by the
//!   name in the Node's label. It also keeps it while a Machine cannot be read, because that may be the one.
//! * Before the finalizer is removed, two lookups at the API server, with a grace period in between, check that no Machine with
//!   that name exists in any namespace: another controller manager may serve other namespaces.
//! * A Node without the label `node.gardener.cloud/machine-name` keeps the finalizer.
//! * The Node itself and its VM are left alone. The mark goes as soon as a Machine claims the Node.
//! * A Node that never had a Machine, as in a control plane, is not marked; machine-controller-manager marks those as well.
//!
//! # Caveats
//! Without the permission to list Machines in all namespaces nothing is removed.

mod decision;
mod lookup;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use nodewright_api::Machine;
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    object::ObjectRef,
    plan::{Context, Plan},
};

pub(crate) use self::lookup::look_up;
use self::{
    lookup::MachineSearch,
    snapshot::{Snapshot, is_due, is_orphan},
};
use crate::shared::{
    CONTROL, TARGET,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::{node_name, vm_id},
};

/// The controller of Nodes without a Machine.
#[derive(Clone, Debug)]
pub struct OrphanNodeController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// How long a Node that is being deleted keeps the finalizer after the first lookup has found no Machine.
    pub grace: Duration,
}

impl Controller for OrphanNodeController {
    const NAME: &'static str = "orphan-node";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = MachineSearch;
    type Note = nodewright_runtime::effect::Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.kind::<Node>(TARGET, "").index(NODE_BY_INSTANCE).wakes(|change, stores, wake| {
            // Kubelets change their Nodes frequently: only those that need it are planned.
            let changed = change.new.as_ref().filter(|_| !Node::is_heartbeat(change));
            if let Some(node) = changed.filter(|node| is_due(stores, node)) {
                wake(ObjectRef::of(TARGET, node.as_ref()));
            }
        });
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .wakes_unreadable(|_, stores, wake| {
                let nodes = stores.of::<Node>(TARGET).all();
                let orphans = nodes.iter().filter(|node| is_orphan(stores, node));
                orphans.for_each(|node| wake(ObjectRef::of(TARGET, node.as_ref())));
            })
            .wakes(wake_abandoned_and_claimed);
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, self.grace)
    }

    fn plan(context: &Context<'_, MachineSearch>, snapshot: &Snapshot) -> Plan<MachineSearch> {
        plan::plan(context, snapshot)
    }
}

/// Wakes the Nodes that a Machine claims since a change, and those that it no longer claims.
fn wake_abandoned_and_claimed(change: &Change<Machine>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let named = |machine: &Machine| (vm_id(machine).map(str::to_owned), node_name(machine).map(str::to_owned));
    if change.old.as_deref().map(named) == change.new.as_deref().map(named) {
        return;
    }
    let store = stores.of::<Node>(TARGET);
    for machine in change.sides() {
        let mut nodes = vm_id(machine).map(|id| store.by(NODE_BY_INSTANCE, instance_id(id))).unwrap_or_default();
        nodes.extend(node_name(machine).and_then(|node| store.by_name("", node)));
        for node in nodes.iter().filter(|node| is_due(stores, node)) {
            wake(ObjectRef::of(TARGET, node.as_ref()));
        }
    }
}
