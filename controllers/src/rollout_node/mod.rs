//! The marks on Nodes while a rollout lasts: the scheduler avoids those of former templates if it can, and the cluster autoscaler
//! leaves all Nodes of the deployment to the rollout. Where it updates machines in place, labels say which Nodes are candidates and
//! which are selected, and go once the machine is one of its new set.
//!
//! It is a controller of its own, of Nodes, so that neither a rollout nor a set waits for the target cluster.
//!
//! # Guarantees
//! * Only the Node of a Machine's proven VM is marked ([`NodeProof`]), and none that is being deleted or whose Machine is.
//! * The marks go when the Machine is one of the present template again, and while the deployment is paused.
//! * A Node is selected only if its Machine is listed in the annotation `updating` of a set, which the deployment writes first.
//! * One of a MachineConfigPool is selected only within the disruption budget of the pool ([`disruption`](crate::shared::disruption)).
//! * What a selected Node is closed to Pods with goes when its update is over, or is taken back. One that was closed before stays so.
//! * An update that the program on the Node may have begun is not taken back.
//! * Annotations that somebody else has set for the autoscaler stay, as do those of a Machine that is preserved.

mod decision;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{
    Machine, MachineDeployment, MachinePhase, MachineSet, machine_config::MachineConfigPool, stored::UPDATING,
};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{Kind, ObjectRef, controller_uid, namespace, uid},
    plan::{Context, Plan},
};

use self::{
    decision::is_due,
    snapshot::{Snapshot, is_in_use, lists_any},
};
use crate::shared::{
    CONTROL, TARGET,
    disruption::{WAITING_NODES, waiting_nodes},
    in_place::is_moving,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
    node::Node,
    ownership::{NodeProof, node_name},
    preservation::preserve_expiry,
};

/// The controller of the Nodes of rollouts.
#[derive(Clone, Debug)]
pub struct RolloutNodeController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the cluster autoscaler is kept from removing the Nodes of a rollout.
    pub annotates: bool,
    /// How a Node is known to be a Machine's.
    pub proof: NodeProof,
    /// Whether MachineConfigPools are watched, whose disruption budgets updates in place share.
    pub has_pools: bool,
}

impl Controller for RolloutNodeController {
    const NAME: &'static str = "rollout-node";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        let how = (self.annotates, self.proof);
        let due = move |stores: &Stores, node: Arc<Node>, wake: &mut dyn FnMut(ObjectRef)| {
            wake_if_due(stores, node, how, wake);
        };
        on.kind::<Node>(TARGET, "").wakes(move |change, stores, wake| {
            if let Some(node) = change.new.as_ref().filter(|_| !Node::is_heartbeat(change)) {
                due(stores, node.clone(), wake);
            }
        });
        if self.has_pools {
            watch_pools(on, how);
        }
        let of_machine = move |stores: &Stores, machine: &Machine, wake: &mut dyn FnMut(ObjectRef)| {
            if let Some(node) = node_name(machine).and_then(|node| stores.of::<Node>(TARGET).by_name("", node)) {
                due(stores, node, wake);
            }
        };
        on.kind::<Machine>(CONTROL, &self.namespace).index(MACHINE_BY_NODE).wakes(move |change, stores, wake| {
            if let Some(machine) = change.new.as_ref().filter(|_| has_moved(change, how.1)) {
                of_machine(stores, machine, wake);
            }
        });
        let of_set = move |stores: &Stores, set: &MachineSet, wake: &mut dyn FnMut(ObjectRef)| {
            let machines = stores.of::<Machine>(CONTROL).owned_by(uid(set));
            for machine in &machines {
                of_machine(stores, machine, wake);
            }
        };
        on.kind::<MachineSet>(CONTROL, &self.namespace).index(SET_BY_UID).wakes(move |change, stores, wake| {
            if let Some(set) = change.new.as_ref().filter(|_| owner_changes(change)) {
                of_set(stores, set, wake);
            }
            // A rollout begins or ends, and with it the marks of all its Nodes.
            let owner = change.sides().last().and_then(|set| controller_uid(set.as_ref()));
            let gist = |set: &Option<Arc<MachineSet>>| set.as_deref().map(|set| (is_in_use(set), lists_any(set)));
            let has_changed = gist(&change.old).unwrap_or_default() != gist(&change.new).unwrap_or_default();
            if let Some(owner) = owner.filter(|_| has_changed) {
                for set in &stores.of::<MachineSet>(CONTROL).owned_by(owner) {
                    of_set(stores, set, wake);
                }
            }
            let namespace = change.sides().next().map_or("", |set| namespace(set.as_ref()));
            let machine = |name: String| stores.of::<Machine>(CONTROL).by_name(namespace, &name);
            for machine in listed_or_not(change).into_iter().filter_map(machine) {
                of_machine(stores, &machine, wake);
            }
        });
        on.kind::<MachineDeployment>(CONTROL, &self.namespace).index(DEPLOYMENT_BY_UID).wakes(
            move |change, stores, wake| {
                if let Some(new) = change.new.as_ref().filter(|_| spec_changes(change)) {
                    let sets = stores.of::<MachineSet>(CONTROL).owned_by(uid(new.as_ref()));
                    for set in &sets {
                        of_set(stores, set, wake);
                    }
                }
            },
        );
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, (self.annotates, self.proof))
    }

    fn plan(context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        plan::plan(snapshot, context.now)
    }
}

/// Kubelets change their Nodes frequently: only those that need a change are planned.
fn wake_if_due(stores: &Stores, node: Arc<Node>, how: (bool, NodeProof), wake: &mut dyn FnMut(ObjectRef)) {
    let key = ObjectRef::of(TARGET, node.as_ref());
    if is_due(&Snapshot::of(stores, node, how)) {
        wake(key);
    }
}

/// A Node may wait for the disruption budget of its pool.
fn watch_pools(on: &mut Watches<'_>, how: (bool, NodeProof)) {
    on.kind::<Node>(TARGET, "").index(WAITING_NODES);
    on.kind::<MachineConfigPool>(TARGET, "").wakes(move |change, stores, wake| {
        for node in waiting_nodes(change, stores) {
            wake_if_due(stores, node, how, wake);
        }
    });
}

/// Whether a change of a Machine may change the marks on its Node. One that was recreated has the name of its Node at once, and its VM only
/// once the provider has shown it.
fn has_moved(change: &Change<Machine>, proof: NodeProof) -> bool {
    let sides = (change.old.as_deref(), change.new.as_deref());
    let (Some(old), Some(new)) = sides else { return true };
    let updates = |it: &Machine| (is_moving(it), *it.phase() == MachinePhase::InPlaceUpdating);
    proof.claim(old) != proof.claim(new)
        || controller_uid(old) != controller_uid(new)
        || preserve_expiry(old) != preserve_expiry(new)
        || updates(old) != updates(new)
}

fn owner_changes<K: Kind>(change: &Change<K>) -> bool {
    let owner = |object: &Arc<K>| controller_uid(object.as_ref()).map(str::to_owned);
    change.old.as_ref().map(owner) != change.new.as_ref().map(owner)
}

/// The Machines of other sets that are being updated to the template of a set since a change, or are no longer.
fn listed_or_not(change: &Change<MachineSet>) -> BTreeSet<String> {
    let listed = |set: &Option<Arc<MachineSet>>| set.as_deref().and_then(|set| UPDATING.of(set)).unwrap_or_default().0;
    listed(&change.old).symmetric_difference(&listed(&change.new)).cloned().collect()
}

fn spec_changes(change: &Change<MachineDeployment>) -> bool {
    let generation = |deployment: &Arc<MachineDeployment>| deployment.metadata.generation;
    change.old.as_ref().map(generation) != change.new.as_ref().map(generation)
}
