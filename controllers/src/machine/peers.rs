//! The other Machines of a deployment, as far as they count for its replacement budget.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_runtime::{
    cache::Stores,
    object::{annotation, controller_uid, is_deleting, uid},
};

use super::indexes::{DELETING_NODES, PLACES_BY_SET, WAITING_BY_SET};
use crate::shared::{
    clusters::{CONTROL, TARGET},
    indexes::{MACHINE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::is_node_of,
};

/// The other Machines of a deployment that count for its replacement budget.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Those that hold a place.
    pub places: Vec<Arc<Machine>>,
    /// Those that are unhealthy and not given up yet.
    pub waiting: Vec<Arc<Machine>>,
    /// Those whose Nodes are being deleted, and since when.
    pub nodeless: Vec<(Arc<Machine>, Timestamp)>,
    /// How many Machines the deployment has; counted only if the budget is a percentage.
    pub all: usize,
}

impl Peers {
    pub(super) fn of(stores: &Stores, machine: &Machine, set: &Arc<MachineSet>) -> Self {
        let machines = stores.of::<Machine>(CONTROL);
        let family = family(stores, set);
        let is_other = |peer: &Arc<Machine>| uid(peer.as_ref()) != uid(machine);
        let by = |index| family.iter().flat_map(|set| machines.by(index, uid(set.as_ref()))).filter(is_other).collect();
        let all = match budget_text(set) {
            Some(text) if text.ends_with('%') => {
                family.iter().map(|set| machines.owned_by(uid(set.as_ref())).len()).sum()
            }
            _ => 0,
        };
        let is_member = |peer: &Machine| {
            let owner = controller_uid(peer);
            !is_deleting(peer) && family.iter().any(|set| Some(uid(set.as_ref())) == owner)
        };
        let of_node = |node: Arc<Node>| {
            let since = node.metadata.deletion_timestamp.as_ref()?.0;
            let found = machines.by(MACHINE_BY_INSTANCE, instance_id(node.provider_id()?));
            let peer = found.into_iter().filter(is_other).find(|peer| is_member(peer) && is_node_of(peer, &node))?;
            Some((peer, since))
        };
        let nodes = stores.of::<Node>(TARGET).by(DELETING_NODES, "");
        let nodeless = nodes.into_iter().filter_map(of_node).collect();
        Self { places: by(PLACES_BY_SET), waiting: by(WAITING_BY_SET), nodeless, all }
    }
}

/// The sets of the deployment that a set belongs to.
pub(super) fn family(stores: &Stores, set: &Arc<MachineSet>) -> Vec<Arc<MachineSet>> {
    match controller_uid(set.as_ref()) {
        Some(deployment) => stores.of::<MachineSet>(CONTROL).owned_by(deployment),
        None => vec![set.clone()],
    }
}

/// The replacement budget, as the set's annotation has it.
pub(super) fn budget_text(set: &MachineSet) -> Option<&str> {
    annotation(set, annotations::REMEDIATION_MAX_IN_FLIGHT)
}
