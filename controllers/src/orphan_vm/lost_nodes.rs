//! The Nodes of which both the Machine and the VM are gone.
//!
//! A list is about the Nodes that say to have had a Machine of its classes. Two that lack the VM, a grace apart, mark the Node;
//! [`node_lifecycle`](crate::node_lifecycle) deletes it. A Node without a provider ID has the VM whose tags name its Machine.

use std::sync::Arc;

use nodewright_api::{MachineClass, annotations, stored::NODE_VM_MISSING};
use nodewright_runtime::{
    cache::{Index, Stores},
    object::{annotation, is_deleting},
};

use crate::shared::{
    TARGET,
    node::Node,
    node_claims::{class_of_node, is_claimed, machine_name},
};

/// The Nodes that are not ready, or marked, by the class of their Machines.
pub(super) const LOST_BY_CLASS: Index<Node> = Index {
    name: "lost",
    key_of: |node| {
        let is_suspect = !node.is_ready() || NODE_VM_MISSING.of(node).is_some();
        annotation(node, annotations::MACHINE_CLASS).filter(|_| is_suspect).map(str::to_owned)
    },
};

/// The Nodes of these classes that no Machine claims.
pub(super) fn take(stores: &Stores, group: &[Arc<MachineClass>]) -> Vec<Arc<Node>> {
    if !stores.is_listed::<Node>(TARGET) {
        return vec![];
    }
    let nodes = stores.of::<Node>(TARGET);
    let mut lost: Vec<_> = group.iter().flat_map(|class| nodes.by(LOST_BY_CLASS, &class_of_node(class))).collect();
    let is_alone = |node: &Node| machine_name(node).is_some() && !is_claimed(stores, node) && !is_deleting(node);
    lost.retain(|node| is_alone(node));
    lost
}
