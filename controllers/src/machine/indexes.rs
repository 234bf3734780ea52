//! The indexes that only the Machine controller uses, and what puts an object into them.

use nodewright_api::{Machine, MachinePhase, conditions};
use nodewright_runtime::{
    cache::Index,
    object::{controller_uid, is_deleting},
};

use super::status::own_condition;
use crate::shared::{node::Node, ownership::is_disputed};

/// Machines that hold a place of the replacement budget, by the UID of their set.
pub(super) const PLACES_BY_SET: Index<Machine> = Index {
    name: "places",
    key_of: |machine| controller_uid(machine).filter(|_| holds_place(machine)).map(str::to_owned),
};

/// Machines that were refused a place of the replacement budget and say so, by the UID of their set.
pub(super) const HELD_BY_SET: Index<Machine> =
    Index { name: "held", key_of: |machine| controller_uid(machine).filter(|_| is_held(machine)).map(str::to_owned) };

/// Machines that are unhealthy and not given up yet, by the UID of their set.
pub(super) const WAITING_BY_SET: Index<Machine> = Index {
    name: "waiting",
    key_of: |machine| controller_uid(machine).filter(|_| may_be_replaced(machine)).map(str::to_owned),
};

/// Machines that are being deleted, by the UID of their set.
pub(super) const LEAVING_BY_SET: Index<Machine> = Index {
    name: "leaving",
    key_of: |machine| controller_uid(machine).filter(|_| is_deleting(machine)).map(str::to_owned),
};

/// Nodes that are being deleted, all under one key.
pub(super) const DELETING_NODES: Index<Node> =
    Index { name: "deleting", key_of: |node| is_deleting(node).then(String::new) };

/// Whether a Machine is being created, replaced or deleted, and so holds a place of the replacement budget.
pub(super) fn holds_place(machine: &Machine) -> bool {
    let preserved = machine.status.as_ref().is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
    let waiting = matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available | MachinePhase::Unknown);
    !preserved && (!waiting || is_deleting(machine))
}

/// Whether the status of a Machine says that it waits for a place of the replacement budget.
pub(super) fn is_held(machine: &Machine) -> bool {
    let condition = own_condition(machine, conditions::machine::REMEDIATION_ALLOWED);
    condition.is_some_and(|condition| condition.status == "False") && !is_deleting(machine) && !is_disputed(machine)
}

/// Whether the replacement of a Machine is limited by the budget. A disputed Machine is not judged, so it must not hold up
/// those that come after it.
pub(super) fn may_be_replaced(machine: &Machine) -> bool {
    let waits = matches!(machine.phase(), MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed);
    waits && !is_deleting(machine) && !is_disputed(machine)
}
