//! The snapshot of a Node that a rollout may replace or update.

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet, StrategyType, stored::UPDATING};
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, controller_uid, is_deleting, name, uid},
};

use crate::shared::{
    CONTROL, TARGET,
    disruption::{SharedBudget, is_opted_out},
    in_place::Progress,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
    node::Node,
    ownership::NodeProof,
    template,
};

/// A Node, its Machine, and what owns that.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) node: Arc<Node>,
    /// The one Machine of the Node, unless it or the Node is being deleted.
    pub(super) machine: Option<Arc<Machine>>,
    pub(super) owners: Option<Owners>,
    /// The disruption budget of the Node's pool, while the Node is about to be selected for an update in place.
    pub(super) shared_budget: Option<SharedBudget>,
    /// Whether the cluster autoscaler is kept from removing the Nodes of a rollout.
    pub(super) annotates: bool,
    pub(super) proof: NodeProof,
}

/// The set of the Machine, and the deployment of the set.
#[derive(Clone, Debug)]
pub(super) struct Owners {
    pub(super) set: Arc<MachineSet>,
    pub(super) deployment: Arc<MachineDeployment>,
    /// Another set of the deployment, to whose template the Machine is being updated in place.
    pub(super) target: Option<Arc<MachineSet>>,
    /// Whether the deployment has Machines of former templates.
    pub(super) is_rolled: bool,
    /// Whether Machines are being updated in place, or some of the present template are there already.
    pub(super) has_begun: bool,
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
        let is_listed = |owners: &Owners| owners.target.is_some() && !is_opted_out(owners.deployment.as_ref());
        let is_due = owners.as_ref().is_some_and(is_listed) && Progress::of(&node) < Progress::Selected;
        let shared_budget = if is_due { SharedBudget::of(stores, &node) } else { None };
        Self { node, machine, owners, shared_budget, annotates, proof }
    }
}

fn owners(stores: &Stores, machine: &Machine) -> Option<Owners> {
    let set = stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, controller_uid(machine)?).pop()?;
    let deployment =
        stores.of::<MachineDeployment>(CONTROL).by(DEPLOYMENT_BY_UID, controller_uid(set.as_ref())?).pop()?;
    let in_place = deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate;
    let sets = siblings(stores, &deployment);
    let is_rolled = sets.iter().any(|set| is_in_use(set) && is_of_former(set, &deployment));
    let names = |set: &MachineSet| UPDATING.of(set).is_some_and(|updating| updating.0.contains(name(machine)));
    let is_target = |other: &Arc<MachineSet>| {
        in_place && uid(other.as_ref()) != uid(set.as_ref()) && !is_deleting(other.as_ref()) && names(other)
    };
    let has_begun =
        in_place && sets.iter().any(|set| lists_any(set) || is_in_use(set) && !is_of_former(set, &deployment));
    let target = sets.into_iter().find(is_target);
    Some(Owners { set, deployment, target, is_rolled, has_begun })
}

/// All sets of a deployment; none if it has only one, as deployments usually do.
fn siblings(stores: &Stores, deployment: &MachineDeployment) -> Vec<Arc<MachineSet>> {
    let sets = stores.of::<MachineSet>(CONTROL);
    if sets.count_owned_by(uid(deployment)) > 1 { sets.owned_by(uid(deployment)) } else { vec![] }
}

/// Whether a set has Machines, or is to have some. Those that are being deleted count: their Pods may have yet to come.
pub(super) fn is_in_use(set: &MachineSet) -> bool {
    set.spec.replicas > 0 || set.status.as_ref().is_some_and(|status| status.replicas > 0)
}

/// Whether Machines are being updated in place to the template of a set.
pub(super) fn lists_any(set: &MachineSet) -> bool {
    UPDATING.of(set).is_some_and(|updating| !updating.0.is_empty())
}

/// Whether the Machines of a set are to be replaced or updated.
pub(super) fn is_of_former(set: &MachineSet, deployment: &MachineDeployment) -> bool {
    !template::is_same(&set.spec.template, &deployment.spec.template)
}
