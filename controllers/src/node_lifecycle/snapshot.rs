//! The snapshot of the controller of Nodes whose VM is gone.

use std::{sync::Arc, time::Duration};

use nodewright_api::{Machine, labels, stored::NODE_VM_MISSING};
use nodewright_runtime::{
    cache::{Index, Stores},
    object::{ObjectRef, label},
};

use crate::shared::{
    CONTROL, TARGET,
    cloud_manager::{CloudManager, CloudNodeMode},
    node::Node,
    node_claims::{is_claimed, is_missing_by_machine, is_of_namespace, machine_name},
};

/// Nodes by the zone of their label; those without one are of one zone.
pub(super) const NODES_BY_ZONE: Index<Node> = Index { name: "zone", key_of: |node| Some(zone_of(node).to_owned()) };

pub(super) const NOT_READY_BY_ZONE: Index<Node> =
    Index { name: "not-ready", key_of: |node| (!node.is_ready()).then(|| zone_of(node).to_owned()) };

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub node: Arc<Node>,
    /// Whether its VM is missing, as its only Machine says, or its mark.
    pub is_missing: bool,
    /// Whether it is marked although it is ready, or has a Machine or another VM.
    pub is_mismarked: bool,
    pub zone: Zone,
    /// Who initializes Nodes, and deletes them, as far as the cluster shows it.
    pub(crate) cloud_manager: CloudManager,
    pub after_start: Duration,
}

/// The Nodes of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    pub name: String,
    pub nodes: usize,
    pub not_ready: usize,
    /// The percentage of Nodes that are not ready above which none goes; 100 for no limit.
    pub most_not_ready: u8,
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        (mode, after_start): (CloudNodeMode, Duration),
        most_not_ready: u8,
    ) -> Option<Self> {
        let nodes = stores.of::<Node>(TARGET);
        let node = nodes.get(key)?;
        let zone = zone_of(&node);
        let (all, not_ready) = (nodes.count(NODES_BY_ZONE, zone), nodes.count(NOT_READY_BY_ZONE, zone));
        let zone = Zone { name: zone.to_owned(), nodes: all, not_ready, most_not_ready };
        let cloud_manager = CloudManager::take(stores, mode, None);
        let is_mismarked = is_mismarked(stores, &node);
        Some(Self { is_missing: is_missing(stores, &node), is_mismarked, node, zone, cloud_manager, after_start })
    }
}

fn zone_of(node: &Node) -> &str {
    label(node, labels::ZONE).unwrap_or_default()
}

/// Whether the VM of a Node is missing, as its Machine says, or as it is marked.
pub(super) fn is_missing(stores: &Stores, node: &Node) -> bool {
    stores.of::<Machine>(CONTROL).unreadable().is_empty()
        && (is_missing_by_machine(stores, node) || is_marked_rightly(stores, node) && is_of_namespace(stores, node))
}

/// Whether the mark of a Node is about its VM, and no Machine has that.
fn is_marked_rightly(stores: &Stores, node: &Node) -> bool {
    let marked = NODE_VM_MISSING.of(node);
    let is_without_machine = || !is_claimed(stores, node) || is_missing_by_machine(stores, node);
    marked.as_deref() == Some(node.provider_id().unwrap_or_default())
        && machine_name(node).is_some()
        && is_without_machine()
}

pub(super) fn is_mismarked(stores: &Stores, node: &Node) -> bool {
    NODE_VM_MISSING.of(node).is_some()
        && is_of_namespace(stores, node)
        && (node.is_ready() || !is_marked_rightly(stores, node))
}
