//! What would become of the Machines of a MachineDeployment: which are created and deleted, in which order, and how long that takes.
//!
//! The controllers of deployments and sets plan as they do in the manager. Their steps are carried out on a copy of the objects
//! ([`cluster`]), in which Machines come and go after the time that they usually take ([`machines`]). Where Machines are updated in place,
//! so does the controller of the Nodes of rollouts.
//!
//! # Guarantees
//! Nothing is read and nothing is written but the copy.
//!
//! # Assumptions
//! Nobody else changes anything, no Machine fails, no request is refused, and each Machine takes as long as the others.
//!
//! # Caveats
//! * A Machine that has failed, or has no VM because its creation fails, stays as it is until its set deletes it.
//! * Of Machines that are updated in place the drain and the program on the Node are one duration, and each update succeeds ([`nodes`]). Not
//!   foreseen are which Nodes users select, and how long Nodes of MachineConfigPools wait for the budgets of these.

mod cluster;
mod durations;
mod machines;
mod nodes;
mod planner;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    ConditionStatus, Machine, MachineDeployment, MachineSet, StrategyType, conditions::machine_deployment::PROGRESSING,
    machine_config::MachineConfigPool,
};
use nodewright_runtime::object::{ObjectRef, controller_uid, name, namespace, uid};
use serde_json::Value;

pub use self::durations::Durations;
use self::{cluster::Cluster, planner::Planner};
use crate::{
    machine_deployment::MachineDeploymentController,
    machine_set::{MachineSetController, StaleMachines},
    rollout_node::RolloutNodeController,
    shared::{
        CONTROL,
        fleet::FleetSettings,
        ownership::{NodeProof, node_name},
        pause,
    },
};

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// The MachineDeployments of the namespace.
    pub deployments: Vec<MachineDeployment>,
    /// The MachineSets of the namespace.
    pub sets: Vec<MachineSet>,
    /// The Machines of the namespace.
    pub machines: Vec<Machine>,
    /// All MachineConfigPools: a Node that one of them disrupts is not available.
    pub pools: Vec<MachineConfigPool>,
    /// All Nodes, as the API server has them, if the Machines of the deployment are updated in place.
    pub nodes: Option<Vec<Value>>,
}

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It is created.
    Create,
    /// A Machine takes over what changed in the template without a replacement.
    Update,
    /// The Node of a Machine is drained, and updated in place.
    UpdateInPlace,
    /// It is deleted.
    Delete,
}

/// One step of what would be done to a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Timestamp,
    /// What.
    pub verb: Verb,
    /// The name of the Machine. `None` for one of a set that does not exist yet, from whose UID the names follow.
    pub machine: Option<String>,
    /// The name of its set.
    pub set: String,
}

/// How a rollout ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All Machines have the present template and run, at this time.
    Complete(Timestamp),
    /// It does not come to an end by itself. What is waited for, a sentence each.
    Waits(Vec<String>),
}

/// What would become of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Each change of a Machine, in order.
    pub changes: Vec<Change>,
    /// The machine sets that would be created, of which there is at most one.
    pub new_sets: Vec<String>,
    /// The fewest Machines that run at any time.
    pub fewest_running: usize,
    /// The most Machines that exist at any time, those in deletion included.
    pub most: usize,
    /// How it ends.
    pub end: End,
}

/// The longest time without any change of a set or a Machine after which nothing more is expected: more than a rollout waits for a
/// set whose ledger cannot be read.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// A Machine that joins in a preview has no proof of its VM.
const PROOF: NodeProof = NodeProof::Elsewhere;

/// How often the controllers plan at one moment. Each round changes something, and sets create up to a hundred Machines in one.
const MAX_ROUNDS: usize = 10_000;

/// What would become of the deployment `key` after `now`. The error is a sentence for users.
pub fn preview(
    mut objects: Objects,
    key: &ObjectRef,
    settings: &FleetSettings,
    durations: Durations,
    now: Timestamp,
) -> Result<Preview, String> {
    let find = |it: &&MachineDeployment| name(*it) == &*key.name && namespace(*it) == &*key.namespace;
    let deployment = objects.deployments.iter().find(find);
    let deployment = deployment.ok_or_else(|| format!("MachineDeployment {}: not found", key.name))?;
    let is_in_place = deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate;
    let has_pools = !objects.pools.is_empty();
    if is_in_place && has_pools {
        let text = "its machines are updated in place, and how long nodes wait for the budgets of MachineConfigPools is not foreseen";
        return Err(format!("MachineDeployment {}: {text}", key.name));
    }
    let own = if is_in_place { own_nodes(&objects, deployment) } else { BTreeSet::new() };
    objects.nodes = objects.nodes.filter(|_| is_in_place);
    let is_own =
        |node: &Value| node.pointer("/metadata/name").and_then(Value::as_str).is_some_and(|it| own.contains(it));
    objects.nodes.iter_mut().for_each(|nodes| nodes.retain(is_own));
    Forecast::new(objects, key, settings, (durations, now)).run()
}

/// The names of the Nodes of the Machines of a deployment.
fn own_nodes(objects: &Objects, deployment: &MachineDeployment) -> BTreeSet<String> {
    let sets = objects.sets.iter().filter(|set| controller_uid(*set) == Some(uid(deployment)));
    let sets: BTreeSet<_> = sets.map(uid).collect();
    let machines =
        objects.machines.iter().filter(|machine| controller_uid(*machine).is_some_and(|it| sets.contains(it)));
    machines.filter_map(node_name).map(str::to_owned).collect()
}

fn deployments(namespace: &str, fleet: &FleetSettings, objects: &Objects) -> MachineDeploymentController {
    let (namespace, fleet) = (namespace.to_owned(), fleet.clone());
    let (nodes, has_pools) = (objects.nodes.as_ref().map(|_| PROOF), !objects.pools.is_empty());
    MachineDeploymentController { namespace, full_schema: true.into(), fleet, nodes, has_pools }
}

fn sets(namespace: &str, fleet: &FleetSettings) -> MachineSetController {
    let (namespace, fleet) = (namespace.to_owned(), fleet.clone());
    MachineSetController { namespace, full_schema: true.into(), fleet, stale: StaleMachines::default() }
}

struct Forecast {
    cluster: Cluster,
    deployments: Planner<MachineDeploymentController>,
    sets: Planner<MachineSetController>,
    nodes: Planner<RolloutNodeController>,
    key: ObjectRef,
}

impl Forecast {
    fn new(
        objects: Objects,
        key: &ObjectRef,
        settings: &FleetSettings,
        (durations, now): (Durations, Timestamp),
    ) -> Self {
        let namespace = key.namespace.to_string();
        let nodes = RolloutNodeController { namespace, annotates: true, proof: PROOF, has_pools: false };
        Self {
            deployments: Planner::new(deployments(&key.namespace, settings, &objects), now),
            sets: Planner::new(sets(&key.namespace, settings), now),
            nodes: Planner::new(nodes, now),
            cluster: Cluster::new(objects, durations, now),
            key: key.clone(),
        }
    }

    fn run(&mut self) -> Result<Preview, String> {
        let (mut fewest_running, mut most) = (usize::MAX, 0);
        loop {
            self.settle()?;
            let (running, all) = self.cluster.counts(&self.key);
            (fewest_running, most) = (fewest_running.min(running), most.max(all));
            let end = if self.cluster.is_complete(&self.key) {
                Some(End::Complete(self.cluster.changed))
            } else {
                (!self.advance()).then(|| End::Waits(self.waits()))
            };
            if let Some(end) = end {
                let (changes, new_sets) = self.cluster.take_changes();
                return Ok(Preview { changes, new_sets, fewest_running, most, end });
            }
        }
    }

    /// Lets the controllers plan until nothing changes.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MAX_ROUNDS {
            let mut changes = self.deployments.plan(&mut self.cluster, &self.key);
            for set in self.cluster.sets(&self.key) {
                changes |= self.sets.plan(&mut self.cluster, &set);
            }
            for node in self.cluster.node_keys(&self.key) {
                changes |= self.nodes.plan(&mut self.cluster, &node);
            }
            if !changes {
                return Ok(());
            }
        }
        Err(format!("MachineDeployment {}: the plans of its controllers do not come to rest", self.key.name))
    }

    /// Goes to the next moment at which a Machine or a plan changes something. `false` if there is none.
    fn advance(&mut self) -> bool {
        let sets = self.cluster.sets(&self.key);
        let wakes = sets.iter().filter_map(|set| self.sets.wake(set)).chain(self.deployments.wake(&self.key));
        let wake = wakes.filter(|at| *at > self.cluster.now).min();
        let Some(next) = self.cluster.next_event().into_iter().chain(wake).min() else { return false };
        if next.duration_since(self.cluster.changed) > LONGEST_PAUSE {
            return false;
        }
        self.cluster.advance(next);
        true
    }

    /// What the deployment and its sets wait for, and what keeps the deployment from its progress.
    fn waits(&self) -> Vec<String> {
        let sets = self.cluster.sets(&self.key);
        let of_sets = sets
            .iter()
            .flat_map(|set| self.sets.waits(set).map(move |text| format!("machineset/{}: {text}", set.name)));
        let own = self.deployments.waits(&self.key).map(str::to_owned);
        let own = self.obstacles().into_iter().chain(own);
        own.map(|text| format!("machinedeployment/{}: {text}", self.key.name)).chain(of_sets).collect()
    }

    /// What no controller waits for: a user, or a deadline that has passed.
    fn obstacles(&self) -> Vec<String> {
        let Some(deployment) = self.cluster.deployment(&self.key) else { return vec![] };
        let paused = "spec.paused is true: no machine is replaced for another template before that is resumed";
        let paused = (!pause::permits_rollout(&deployment)).then(|| paused.to_owned());
        let progress = deployment.condition(PROGRESSING).filter(|it| it.status == ConditionStatus::False);
        let late = progress.map(|it| format!("{PROGRESSING} is False: {}: {}", it.reason, it.message));
        paused.into_iter().chain(late).collect()
    }
}

/// The key of a deployment.
pub fn deployment(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef::new(CONTROL, namespace, name)
}
