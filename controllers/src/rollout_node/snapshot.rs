//! The snapshot of a Node that a rollout may replace.

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet, StrategyType};
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, controller_uid, is_deleting, name},
};

use crate::shared::{
    CONTROL, TARGET,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
    node::Node,
    ownership::is_node_of,
    template,
};

/// A Node, and whether it should have the marks.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) node: Arc<Node>,
    /// Whether the Node belongs to a former template whose Machines are being replaced; `None` if that is not known.
    pub(super) is_old: Option<bool>,
    pub(super) is_preserved: bool,
    /// Whether the cluster autoscaler is kept from removing Nodes of former templates.
    pub(super) annotates: bool,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, annotates: bool) -> Option<Self> {
        Some(Self::of(stores, stores.of::<Node>(TARGET).get(key)?, annotates))
    }

    pub(super) fn of(stores: &Stores, node: Arc<Node>, annotates: bool) -> Self {
        let mut machines = stores.of::<Machine>(CONTROL).by(MACHINE_BY_NODE, name(node.as_ref()));
        machines.retain(|machine| is_node_of(machine, &node));
        let machine = machines.pop().filter(|_| machines.is_empty());
        let machine = machine.filter(|machine| !is_deleting(machine.as_ref()) && !is_deleting(node.as_ref()));
        let is_old = machine.as_deref().map(|machine| is_old(stores, machine));
        let status = machine.as_ref().and_then(|machine| machine.status.as_ref());
        let is_preserved = status.is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
        Self { node, is_old, is_preserved, annotates }
    }
}

/// Whether a Machine is of a former template that a rollout replaces.
fn is_old(stores: &Stores, machine: &Machine) -> bool {
    let set = controller_uid(machine).and_then(|uid| stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, uid).pop());
    let owner = set.as_deref().and_then(controller_uid);
    let deployment = owner.and_then(|uid| stores.of::<MachineDeployment>(CONTROL).by(DEPLOYMENT_BY_UID, uid).pop());
    let (Some(set), Some(deployment)) = (set, deployment) else { return false };
    let spec = &deployment.spec;
    let rolls = !spec.paused && spec.strategy.effective_type() == StrategyType::RollingUpdate;
    rolls && !deployment.is_deleting() && !template::is_same(&set.spec.template, &spec.template)
}
