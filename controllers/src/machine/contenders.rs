//! Which Machines count for the replacement budget of their deployment, and the indexes that find them.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase, MachineSet, annotations, conditions};
use nodewright_runtime::{
    cache::{Index, Stores},
    object::{annotation, controller_uid, is_deleting, uid},
};

use crate::shared::{
    CONTROL, TARGET,
    indexes::{MACHINE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::{is_disputed, is_node_of},
};

/// The other Machines of the deployment: those that hold a place, and those that are unhealthy and not given up yet.
#[derive(Clone, Debug, Default)]
pub struct Contenders {
    pub places: Vec<Arc<Machine>>,
    pub waiting: Vec<Arc<Machine>>,
    /// Those whose Nodes are being deleted, and since when.
    pub nodeless: Vec<(Arc<Machine>, Timestamp)>,
    /// How many Machines the deployment has; counted only if the budget is a percentage.
    pub total: usize,
}

impl Contenders {
    pub(super) fn of(stores: &Stores, machine: &Machine, set: &Arc<MachineSet>) -> Self {
        let machines = stores.of::<Machine>(CONTROL);
        let sets = sibling_sets(stores, set);
        let is_other = |other: &Arc<Machine>| uid(other.as_ref()) != uid(machine);
        let by = |index| sets.iter().flat_map(|set| machines.by(index, uid(set.as_ref()))).filter(is_other).collect();
        let total = match budget_text(set) {
            Some(text) if text.ends_with('%') => {
                sets.iter().map(|set| machines.owned_by(uid(set.as_ref())).len()).sum()
            }
            _ => 0,
        };
        let is_member = |other: &Machine| {
            let owner = controller_uid(other);
            !is_deleting(other) && sets.iter().any(|set| Some(uid(set.as_ref())) == owner)
        };
        let of_node = |node: Arc<Node>| {
            let since = node.metadata.deletion_timestamp.as_ref()?.0;
            let found = machines.by(MACHINE_BY_INSTANCE, instance_id(node.provider_id()?));
            let other =
                found.into_iter().filter(is_other).find(|other| is_member(other) && is_node_of(other, &node))?;
            Some((other, since))
        };
        let nodes = stores.of::<Node>(TARGET).by(DELETING_NODES, "");
        let nodeless = nodes.into_iter().filter_map(of_node).collect();
        Self { places: by(PLACES_BY_SET), waiting: by(WAITING_BY_SET), nodeless, total }
    }
}

pub(super) fn sibling_sets(stores: &Stores, set: &Arc<MachineSet>) -> Vec<Arc<MachineSet>> {
    match controller_uid(set.as_ref()) {
        Some(deployment) => stores.of::<MachineSet>(CONTROL).owned_by(deployment),
        None => vec![set.clone()],
    }
}

pub(super) fn budget_text(set: &MachineSet) -> Option<&str> {
    annotation(set, annotations::REMEDIATION_MAX_IN_FLIGHT)
}

// These four find Machines by the UID of their set.

pub(super) const PLACES_BY_SET: Index<Machine> =
    Index { name: "places", key_of: |machine| of_set_if(holds_place(machine), machine) };

/// Machines that were refused a place and say so.
pub(super) const HELD_BY_SET: Index<Machine> =
    Index { name: "held", key_of: |machine| of_set_if(is_held(machine), machine) };

pub(super) const WAITING_BY_SET: Index<Machine> =
    Index { name: "waiting", key_of: |machine| of_set_if(may_be_replaced(machine), machine) };

pub(super) const LEAVING_BY_SET: Index<Machine> =
    Index { name: "leaving", key_of: |machine| of_set_if(is_deleting(machine), machine) };

fn of_set_if(is_listed: bool, machine: &Machine) -> Option<String> {
    controller_uid(machine).filter(|_| is_listed).map(str::to_owned)
}

pub(super) const DELETING_NODES: Index<Node> =
    Index { name: "deleting", key_of: |node| is_deleting(node).then(String::new) };

/// Whether a Machine is being created, replaced or deleted, and so holds a place of the replacement budget.
pub(super) fn holds_place(machine: &Machine) -> bool {
    let preserved = machine.status.as_ref().is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
    let waiting = matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available | MachinePhase::Unknown);
    !preserved && (!waiting || is_deleting(machine))
}

pub(super) fn is_held(machine: &Machine) -> bool {
    let condition = machine.condition(conditions::machine::REMEDIATION_ALLOWED);
    condition.is_some_and(|condition| condition.status == "False") && !is_deleting(machine) && !is_disputed(machine)
}

/// Whether the budget limits a Machine's replacement. A disputed Machine is not judged, so it must not hold up others.
pub(super) fn may_be_replaced(machine: &Machine) -> bool {
    let waits = matches!(machine.phase(), MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed);
    waits && !is_deleting(machine) && !is_disputed(machine)
}
