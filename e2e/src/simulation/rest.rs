//! Whether all is as the user wants it, and if not, what is not.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Value;

use super::cluster::{DEPLOYMENTS, MACHINES, NODES, POOL, SETS, World};
use crate::cloud::VmState;

/// What is not as it is wanted; nothing when all is at rest.
pub(super) fn unrest(world: &World) -> Option<String> {
    let server = world.server();
    if let Some(pool) = server.object(POOL).filter(|pool| pool["metadata"]["deletionTimestamp"].is_null()) {
        return unrest_of(world, &pool);
    }
    let left = |collection: &str| server.objects(collection).len();
    let nodes = nodes(world, &BTreeSet::new()).len();
    let counts = [left(DEPLOYMENTS), left(SETS), left(MACHINES), nodes, world.cloud().vms().len()];
    (counts != [0; 5]).then(|| format!("deployments, sets, machines, nodes, VMs are left: {counts:?}"))
}

/// The Nodes, but for those of machines that were removed by force and are not among `kept`: nobody knows of them.
fn nodes(world: &World, kept: &BTreeSet<String>) -> BTreeSet<String> {
    let mut nodes: BTreeSet<String> = world.server().objects(NODES).iter().map(|node| name(node)).collect();
    nodes.retain(|node| kept.contains(node) || !world.oracles.lock().was_forced(node));
    nodes
}

fn unrest_of(world: &World, pool: &Value) -> Option<String> {
    let wanted = pool["spec"]["replicas"].as_u64().unwrap_or(0);
    let (status, class) = (&pool["status"], &pool["spec"]["template"]["spec"]["class"]["name"]);
    if status["observedGeneration"] != pool["metadata"]["generation"] {
        return Some("the deployment has not been observed".to_owned());
    }
    for count in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
        if status[count].as_u64().unwrap_or(0) != wanted {
            let machines = world.server().objects(MACHINES);
            let stages = machines.iter().map(|machine| machine["status"]["lastOperation"]["description"].to_string());
            let stages: Vec<String> = stages.collect();
            return Some(format!("status.{count} is {} of {wanted}; machines say {stages:?}", status[count]));
        }
    }
    let machines = world.server().objects(MACHINES);
    let is_well = |machine: &&Arc<Value>| {
        machine["metadata"]["deletionTimestamp"].is_null()
            && machine["status"]["currentStatus"]["phase"] == "Running"
            && machine["spec"]["class"]["name"] == *class
    };
    if let Some(machine) = machines.iter().find(|machine| !is_well(machine)) {
        return Some(format!("machine {} is {}", machine["metadata"]["name"], machine["status"]["currentStatus"]));
    }
    let (sets, revisions) = (world.server().objects(SETS).len() as u64, pool["spec"]["revisionHistoryLimit"].as_u64());
    if revisions.is_some_and(|revisions| sets > revisions + 1) {
        return Some(format!("{sets} machine sets are left"));
    }
    let names: BTreeSet<String> = machines.iter().map(|machine| name(machine)).collect();
    let vms = world.cloud().vms();
    let running: BTreeSet<String> =
        vms.iter().filter(|vm| vm.state == VmState::Running).map(|vm| vm.name.clone()).collect();
    let mut made: Vec<String> = vms.iter().map(|vm| vm.name.clone()).collect();
    made.sort();
    made.dedup_by(|one, other| one == other && world.oracles.lock().was_forced(one));
    let nodes = nodes(world, &names);
    if names.len() as u64 != wanted || running != names || made.len() != names.len() || nodes != names {
        return Some(format!("machines {names:?}, VMs {running:?} of {}, nodes {nodes:?}", vms.len()));
    }
    None
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
