//! The indexes that only the Machine controller uses.

use nodewright_api::Machine;
use nodewright_runtime::{
    cache::Index,
    object::{controller_uid, is_deleting},
};

use super::{
    budget::{holds_place, is_held},
    health::may_be_replaced,
};
use crate::shared::node::Node;

/// Machines that hold a place of the replacement budget, by the UID of their set.
pub(crate) const PLACES_BY_SET: Index<Machine> = Index {
    name: "places",
    key_of: |machine| controller_uid(machine).filter(|_| holds_place(machine)).map(str::to_owned),
};

/// Machines that were refused a place of the replacement budget and say so, by the UID of their set.
pub(crate) const HELD_BY_SET: Index<Machine> =
    Index { name: "held", key_of: |machine| controller_uid(machine).filter(|_| is_held(machine)).map(str::to_owned) };

/// Machines that are unhealthy and not given up yet, by the UID of their set.
pub(crate) const WAITING_BY_SET: Index<Machine> = Index {
    name: "waiting",
    key_of: |machine| controller_uid(machine).filter(|_| may_be_replaced(machine)).map(str::to_owned),
};

/// Machines that are being deleted, by the UID of their set.
pub(crate) const LEAVING_BY_SET: Index<Machine> = Index {
    name: "leaving",
    key_of: |machine| controller_uid(machine).filter(|_| is_deleting(machine)).map(str::to_owned),
};

/// Nodes that are being deleted, all under one key.
pub(crate) const DELETING_NODES: Index<Node> =
    Index { name: "deleting", key_of: |node| is_deleting(node).then(String::new) };
