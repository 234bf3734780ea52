//! The marks on the Nodes of former templates while a rollout lasts: the scheduler avoids them if it can, and the cluster
//! autoscaler leaves them to the rollout.
//!
//! It is a controller of its own, of Nodes, so that neither a rollout nor a set waits for the target cluster.
//!
//! # Guarantees
//! * Only the Node of a Machine's proven VM is marked, and none that is being deleted or whose Machine is.
//! * The marks go when the Machine is one of the present template again, and while the deployment is paused.
//! * Annotations that somebody else has set for the autoscaler stay, as do those of a Machine that is preserved.

use std::sync::Arc;

use json_patch::{Patch, PatchOperation};
use nodewright_api::{Machine, MachineDeployment, MachineSet, StrategyType, Taint, annotations, taints};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{Kind, ObjectRef, annotation, controller_uid, is_deleting, name, uid},
    plan::{Context, Plan, Step},
};
use serde_json::{Value, json};

use super::template;
use crate::shared::{
    CONTROL, TARGET,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
    node::Node,
    ownership::{is_node_of, node_name},
    patch,
};

/// The controller of the Nodes of rollouts.
#[derive(Clone, Debug)]
pub struct RolloutNodeController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the cluster autoscaler is kept from removing Nodes of former templates.
    pub annotates: bool,
}

/// A Node, and whether it should have the marks.
#[derive(Clone, Debug)]
pub struct Snapshot {
    node: Arc<Node>,
    /// Whether the Node belongs to a former template whose Machines are being replaced; `None` if nobody may say.
    is_old: Option<bool>,
    is_preserved: bool,
    /// Whether the cluster autoscaler is kept from removing Nodes of former templates.
    annotates: bool,
}

impl Snapshot {
    fn take(stores: &Stores, key: &ObjectRef, annotates: bool) -> Option<Self> {
        Some(Self::of(stores, stores.of::<Node>(TARGET).get(key)?, annotates))
    }

    fn of(stores: &Stores, node: Arc<Node>, annotates: bool) -> Self {
        let mut machines = stores.of::<Machine>(CONTROL).by(MACHINE_BY_NODE, name(node.as_ref()));
        machines.retain(|machine| is_node_of(machine, &node));
        let machine = machines.pop().filter(|_| machines.is_empty());
        let machine = machine.filter(|machine| !is_deleting(machine.as_ref()) && !is_deleting(node.as_ref()));
        let is_old = machine.as_deref().map(|machine| is_old(stores, machine));
        let status = machine.as_ref().and_then(|machine| machine.status.as_ref());
        let is_preserved = status.is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
        Self { node, is_old, is_preserved, annotates }
    }

    fn patch(&self) -> Patch {
        match self.is_old {
            None => Patch(vec![]),
            Some(true) => mark(&self.node, self.annotates),
            Some(false) => unmark(&self.node, self.is_preserved),
        }
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

impl Controller for RolloutNodeController {
    const NAME: &'static str = "rollout-node";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        let annotates = self.annotates;
        let due = move |stores: &Stores, node: Arc<Node>, wake: &mut dyn FnMut(ObjectRef)| {
            let key = ObjectRef::of(TARGET, node.as_ref());
            // Kubelets change their Nodes frequently: only those that need a change are planned.
            if !Snapshot::of(stores, node, annotates).patch().0.is_empty() {
                wake(key);
            }
        };
        on.kind::<Node>(TARGET, "").wakes(move |change, stores, wake| {
            if let Some(node) = &change.new {
                due(stores, node.clone(), wake);
            }
        });
        let of_machine = move |stores: &Stores, machine: &Machine, wake: &mut dyn FnMut(ObjectRef)| {
            if let Some(node) = node_name(machine).and_then(|node| stores.of::<Node>(TARGET).by_name("", node)) {
                due(stores, node, wake);
            }
        };
        on.kind::<Machine>(CONTROL, &self.namespace).index(MACHINE_BY_NODE).wakes(move |change, stores, wake| {
            if let Some(machine) = change.new.as_ref().filter(|_| has_moved(change)) {
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
        Snapshot::take(stores, key, self.annotates)
    }

    fn plan(_context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        let why = match snapshot.is_old {
            Some(true) => "a rollout replaces the machine of the node",
            _ => "no rollout replaces the machine of the node",
        };
        let mut plan = Plan::idle();
        plan.then(why, Step::edit(TARGET, snapshot.node.as_ref(), snapshot.patch()));
        plan
    }
}

fn has_moved(change: &Change<Machine>) -> bool {
    let gist = |machine: &Machine| {
        let expiry = machine.status.as_ref().and_then(|status| status.current_status.preserve_expiry_time.clone());
        (node_name(machine).map(str::to_owned), controller_uid(machine).map(str::to_owned), expiry)
    };
    change.old.as_deref().map(gist) != change.new.as_deref().map(gist)
}

fn owner_changes<K: Kind>(change: &Change<K>) -> bool {
    let owner = |object: &Arc<K>| controller_uid(object.as_ref()).map(str::to_owned);
    change.old.as_ref().map(owner) != change.new.as_ref().map(owner)
}

fn spec_changes(change: &Change<MachineDeployment>) -> bool {
    let generation = |deployment: &Arc<MachineDeployment>| deployment.metadata.generation;
    change.old.as_ref().map(generation) != change.new.as_ref().map(generation)
}

fn mark(node: &Node, annotates: bool) -> Patch {
    let mut all = node.taints().to_vec();
    if !all.iter().any(is_ours) {
        all.push(Taint {
            key: taints::PREFER_NO_SCHEDULE.to_owned(),
            value: Some(taints::PREFER_NO_SCHEDULE_VALUE.to_owned()),
            effect: "PreferNoSchedule".to_owned(),
            time_added: None,
        });
    }
    let mut operations = retainted(node, &all);
    if annotates && annotation(node, annotations::SCALE_DOWN_DISABLED).is_none() {
        let ours = [annotations::SCALE_DOWN_DISABLED, annotations::SCALE_DOWN_DISABLED_BY_MCM];
        let wanted = ours.map(|key| (key, "true".to_owned()));
        operations.extend(patch::annotate(&node.metadata, &wanted.into()).0);
    }
    Patch(operations)
}

fn unmark(node: &Node, is_preserved: bool) -> Patch {
    let mut all = node.taints().to_vec();
    all.retain(|taint| !is_ours(taint));
    let mut operations = retainted(node, &all);
    let is_by_us = annotation(node, annotations::SCALE_DOWN_DISABLED_BY_MCM).is_some();
    let ours = [annotations::SCALE_DOWN_DISABLED, annotations::SCALE_DOWN_DISABLED_BY_MCM];
    for key in ours.into_iter().filter(|_| is_by_us && !is_preserved) {
        if let Some(value) = annotation(node, key) {
            let path = ["metadata", "annotations", key];
            operations.extend([patch::test(&path, value.into()), patch::remove(&path)]);
        }
    }
    Patch(operations)
}

fn is_ours(taint: &Taint) -> bool {
    taint.key == taints::PREFER_NO_SCHEDULE && taint.effect == "PreferNoSchedule"
}

/// Taints are one list with several writers. It is replaced as a whole, under a test of what was read.
fn retainted(node: &Node, all: &[Taint]) -> Vec<PatchOperation> {
    let live = node.taints();
    if all == live {
        return vec![];
    }
    // For an API server, a missing list is null.
    let seen = if live.is_empty() { Value::Null } else { json!(live) };
    let path = ["spec", "taints"];
    vec![patch::test(&path, seen), patch::set(&path, json!(all))]
}
