//! The snapshot of a Node that may have no Machine.

use std::{sync::Arc, time::Duration};

use nodewright_api::{Machine, MachineClass};
use nodewright_driver::Class;
use nodewright_runtime::{cache::Stores, object::ObjectRef, scoped_watch::ScopedWatch};

use crate::shared::{
    CONTROL, TARGET,
    class_secrets::{self, ClassSecrets},
    cloud_manager::{CloudManager, CloudNodeMode},
    driver::{DriverProperties, Provider},
    node::Node,
    node_claims::{is_claimed, machine_name},
    usable_class::{group_of, leads, usable},
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub node: Arc<Node>,
    /// Whether it has no Machine: none claims it, and each can be read.
    pub is_unowned: bool,
    /// Whether the driver describes VMs that were not made for a Machine.
    pub is_described: bool,
    /// With which classes the provider is asked: one for each cluster and credentials.
    pub classes: Vec<Class>,
    /// Why a class cannot be used.
    pub error: Option<String>,
    pub scoped_watches: Vec<ScopedWatch>,
    /// Who initializes Nodes, as far as the cluster shows it.
    pub(crate) cloud_manager: CloudManager,
    /// The deadline of a call.
    pub deadline: Duration,
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        mode: CloudNodeMode,
        (provider, driver): (&Provider, DriverProperties),
    ) -> Option<Self> {
        let node = stores.of::<Node>(TARGET).get(key)?;
        let is_known = stores.of::<Machine>(CONTROL).unreadable().is_empty();
        let is_unowned = is_known && machine_name(&node).is_none() && !is_claimed(stores, &node);
        let mut snapshot = Self {
            is_unowned,
            is_described: driver.describes_unowned,
            classes: vec![],
            error: None,
            scoped_watches: vec![],
            cloud_manager: CloudManager::take(stores, mode, Some(&node)),
            deadline: driver.deadline,
            node,
        };
        // Most Nodes are initialized: nothing else is looked up for them.
        if snapshot.is_unowned && snapshot.node.is_uninitialized() {
            snapshot.add_classes(stores, provider);
        }
        Some(snapshot)
    }

    fn add_classes(&mut self, stores: &Stores, provider: &Provider) {
        let mut classes = stores.of::<MachineClass>(CONTROL).all();
        classes.retain(|class| leads(&group_of(stores, class, provider), class));
        classes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for class in classes {
            self.scoped_watches.extend(class_secrets::scoped_watches(&class));
            match usable(&ClassSecrets::of(stores, &class), &class, &provider.name) {
                Ok(class) => self.classes.push(class),
                Err(error) => self.error = Some(error.message),
            }
        }
    }
}
