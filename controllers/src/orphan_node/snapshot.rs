//! The snapshot of the controller of orphaned Nodes.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use nodewright_api::{Machine, annotations, finalizers};
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, annotation, has_finalizer, is_deleting},
};

use crate::shared::{
    CONTROL, TARGET,
    node::Node,
    node_claims::{is_claimed, machine_name},
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub node: Arc<Node>,
    pub is_claimed: bool,
    /// Why a Machine that may claim it cannot be read.
    pub unreadable: Option<String>,
    /// How long a Node that is being deleted keeps the finalizer after the first lookup has found no Machine.
    pub grace: SignedDuration,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, grace: Duration) -> Option<Self> {
        let node = stores.of::<Node>(TARGET).get(key)?;
        let unreadable = stores.of::<Machine>(CONTROL).unreadable();
        let unreadable = unreadable.first().map(|machine| machine.describe::<Machine>());
        let grace = SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX);
        Some(Self { is_claimed: is_claimed(stores, &node), unreadable, node, grace })
    }
}

/// Whether there is something to do or to wait for.
pub(super) fn is_due(stores: &Stores, node: &Node) -> bool {
    is_marked(node) && is_claimed(stores, node) || is_orphan(stores, node)
}

pub(super) fn is_orphan(stores: &Stores, node: &Node) -> bool {
    !is_abandoned(node) && machine_name(node).is_some() && !is_claimed(stores, node)
}

/// Whether nothing is left to be done for a Node without a Machine. One that is being deleted needs no mark.
pub(super) fn is_abandoned(node: &Node) -> bool {
    !has_finalizer(node, finalizers::NODE) && (is_marked(node) || is_deleting(node))
}

/// Whether a Node is marked as one without a Machine. machine-controller-manager ignores such a Node.
pub(super) fn is_marked(node: &Node) -> bool {
    annotation(node, annotations::NOT_MANAGED).is_some()
}
