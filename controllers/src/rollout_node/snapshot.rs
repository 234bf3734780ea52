//! The snapshot of a Node that a rollout may replace or update.

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet, StrategyType, stored::UPDATING};
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, controller_uid, is_deleting, name, uid},
};

use crate::shared::{
    CONTROL, TARGET,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
    node::Node,
    ownership::NodeProof,
};

/// A Node, its Machine, and what owns that.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) node: Arc<Node>,
    /// The one Machine of the Node, unless it or the Node is being deleted.
    pub(super) machine: Option<Arc<Machine>>,
    pub(super) owners: Option<Owners>,
    /// Whether the cluster autoscaler is kept from removing Nodes of former templates.
    pub(super) annotates: bool,
}

/// The set of the Machine, and the deployment of the set.
#[derive(Clone, Debug)]
pub(super) struct Owners {
    pub(super) set: Arc<MachineSet>,
    pub(super) deployment: Arc<MachineDeployment>,
    /// Another set of the deployment, to whose template the Machine is being updated in place.
    pub(super) target: Option<Arc<MachineSet>>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, how: (bool, NodeProof)) -> Option<Self> {
        Some(Self::of(stores, stores.of::<Node>(TARGET).get(key)?, how))
    }

    pub(super) fn of(stores: &Stores, node: Arc<Node>, (annotates, proof): (bool, NodeProof)) -> Self {
        let mut machines = stores.of::<Machine>(CONTROL).by(MACHINE_BY_NODE, name(node.as_ref()));
        machines.retain(|machine| proof.is_node_of(machine, &node));
        let machine = machines.pop().filter(|_| machines.is_empty());
        let machine = machine.filter(|machine| !is_deleting(machine.as_ref()) && !is_deleting(node.as_ref()));
        let owners = machine.as_deref().and_then(|machine| owners(stores, machine));
        Self { node, machine, owners, annotates }
    }
}

fn owners(stores: &Stores, machine: &Machine) -> Option<Owners> {
    let set = stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, controller_uid(machine)?).pop()?;
    let deployment =
        stores.of::<MachineDeployment>(CONTROL).by(DEPLOYMENT_BY_UID, controller_uid(set.as_ref())?).pop()?;
    let in_place = deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate;
    let target = in_place.then(|| target(stores, machine, &set, &deployment)).flatten();
    Some(Owners { set, deployment, target })
}

fn target(
    stores: &Stores,
    machine: &Machine,
    own: &MachineSet,
    deployment: &MachineDeployment,
) -> Option<Arc<MachineSet>> {
    let sets = stores.of::<MachineSet>(CONTROL).owned_by(uid(deployment));
    let names = |set: &MachineSet| UPDATING.of(set).is_some_and(|updating| updating.0.contains(name(machine)));
    sets.into_iter().find(|set| uid(set.as_ref()) != uid(own) && !is_deleting(set.as_ref()) && names(set))
}
