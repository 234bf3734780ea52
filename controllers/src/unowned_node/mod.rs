//! Nodes that never had a Machine, as those of a control plane: with `--cloud-node=on` or `auto` this controller initializes them, as
//! Kubernetes' cloud-node-controller does where a cloud controller manager runs.
//!
//! ```text
//! Node: tainted, no Machine ──► one class after the other: does its provider know the VM? ──► addresses ──► labels, no taint
//! ```
//!
//! # Guarantees
//! * A Node with the label of a Machine, or that a Machine claims, is left to the [`machine`](super::machine) controller; so is one whose VM
//!   was made for a Machine, as the provider says with any of the classes. One whose credentials are refused says nothing.
//! * No Node without an address is untainted. A failure or an empty list of addresses changes nothing.
//! * Nothing is asked for Nodes that are initialized.
//!
//! # Assumptions
//! The Node's `spec.providerID` is the word of its kubelet, as for each cloud controller manager: a kubelet that names another VM gets the
//! addresses and labels of that one.
//!
//! # Caveats
//! Later the addresses of such a Node are not kept up to date, and it is not deleted.

mod call;
mod decision;
mod memory;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use nodewright_api::{Machine, MachineClass};
use nodewright_driver::Driver;
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    object::ObjectRef,
};

pub(crate) use self::call::Describer;
use self::{
    call::Describe,
    memory::{Context, Plan, Reported},
    snapshot::Snapshot,
};
use crate::shared::{
    CONTROL, TARGET,
    cloud_manager::{self, CloudNodeMode, UNINITIALIZED},
    driver::{DriverProperties, Provider},
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE},
    node::Node,
    node_claims::machine_name,
    ownership::{node_name, vm_id},
};

/// The controller of Nodes that never had a Machine.
#[derive(Clone)]
pub struct UnownedNodeController {
    /// The namespace of the custom resources.
    pub(crate) namespace: String,
    /// Who initializes Nodes (`--cloud-node`).
    pub(crate) mode: CloudNodeMode,
    /// For its properties. It is not called.
    pub(crate) driver: Arc<dyn Driver>,
}

impl Controller for UnownedNodeController {
    const NAME: &'static str = "unowned-node";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = Describe;
    type Note = Reported;

    fn watch(&self, on: &mut Watches<'_>) {
        cloud_manager::watch(on, self.mode);
        on.kind::<Node>(TARGET, "").index(UNINITIALIZED).wakes(|change, _, wake| {
            for node in change.new.iter().filter(|node| node.is_uninitialized() && machine_name(node).is_none()) {
                wake(ObjectRef::of(TARGET, node.as_ref()));
            }
        });
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .wakes_unreadable(|_, stores, wake| wake_uninitialized(stores, wake))
            .wakes(|change: &Change<Machine>, stores, wake| {
                let named =
                    |machine: &Machine| (vm_id(machine).map(str::to_owned), node_name(machine).map(str::to_owned));
                if change.differs_in(named) {
                    wake_uninitialized(stores, wake);
                }
            });
        on.kind::<MachineClass>(CONTROL, &self.namespace).wakes(|change, stores, wake| {
            // Its status is another controller's.
            if change.differs_in(|class| (class.metadata.generation, class.provider_spec.clone())) {
                wake_uninitialized(stores, wake);
            }
        });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let driver = self.driver.as_ref();
        Snapshot::take(stores, key, self.mode, (&Provider::of(driver), DriverProperties::of(driver)))
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// Wakes the Nodes that have yet to be initialized, and have no Machine. Mostly there is none.
fn wake_uninitialized(stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    for node in stores.of::<Node>(TARGET).by(UNINITIALIZED, "").iter().filter(|node| machine_name(node).is_none()) {
        wake(ObjectRef::of(TARGET, node.as_ref()));
    }
}
