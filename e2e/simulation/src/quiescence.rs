//! Checks whether the cluster has the state that the user wants.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{annotations, finalizers, labels};
use serde_json::Value;

use super::{
    cluster::SimulatedCluster,
    names::{BYSTANDER, CLASSES, DEPLOYMENTS, MACHINES, NEIGHBOUR, NODE_LABELS, NODES, POOL, SETS, is_foreign},
    preservation, rollouts, updates,
};
use nodewright_e2e_cloud::VmState;

/// The difference from the wanted state; none when the cluster is quiescent.
pub(super) fn difference(cluster: &SimulatedCluster) -> Option<String> {
    let server = cluster.server();
    if let Some(difference) = cluster.agents.as_ref().and_then(|_| rollouts::difference(server)) {
        return Some(difference);
    }
    if let Some(pool) = server.object(POOL).filter(|pool| pool["metadata"]["deletionTimestamp"].is_null()) {
        return difference_from(cluster, &pool);
    }
    let left = |collection: &str| server.objects(collection).len();
    let (vms, nodes) = (vms(cluster, |_| true), nodes(cluster));
    let none = BTreeSet::new();
    let (nodes, vms) = (known_nodes(cluster, &none, nodes), known(cluster, &none, vms));
    let counts = [left(DEPLOYMENTS), left(SETS), left(MACHINES), nodes.len(), vms.len()];
    if counts != [0; 5] {
        return Some(format!("deployments, sets, machines, nodes, VMs are left: {counts:?}"));
    }
    records_vms(cluster, 0)
}

/// The class that has VMs on record which no machine has, or had until they were deleted. The next list takes them off, if it is
/// believed: without machines it is only if it is empty. A neighbour's VM stays on record.
fn records_vms(cluster: &SimulatedCluster, machines: u64) -> Option<String> {
    let classes = cluster.server().objects(CLASSES);
    let mut vms = cluster.cloud().vms();
    vms.retain(|vm| vm.name != BYSTANDER);
    let is_neighbours = |id: &str| vms.iter().any(|vm| vm.provider_id == id && vm.name.starts_with(NEIGHBOUR));
    let records = |class: &&Arc<Value>| {
        let of = |kind: &str| class["metadata"]["annotations"][kind].as_str()?.parse::<Value>().ok();
        let recorded = [annotations::UNEXPLAINED_VMS, annotations::SWEPT_VMS].into_iter().filter_map(of);
        recorded.into_iter().any(|it| it.as_object().is_some_and(|vms| !vms.keys().all(|id| is_neighbours(id))))
    };
    let is_believed = machines > 0 || vms.is_empty();
    let class = classes.iter().find(records).filter(|_| is_believed)?;
    Some(format!("class {} has VMs on record that no machine has", name(class)))
}

/// The names of VMs or Nodes, without those that a machine removed by force left behind: no manager knows them. Where there are
/// machines, such VMs are deleted as orphans.
fn known(cluster: &SimulatedCluster, machines: &BTreeSet<String>, mut names: Vec<String>) -> Vec<String> {
    let oracles = cluster.oracles.lock();
    names.sort();
    names.retain(|name| machines.contains(name) || !oracles.was_forced(name));
    names
}

/// The same for Nodes, also without those of machines that lost their status.
fn known_nodes(cluster: &SimulatedCluster, machines: &BTreeSet<String>, names: Vec<String>) -> Vec<String> {
    let mut names = known(cluster, machines, names);
    let oracles = cluster.oracles.lock();
    names.retain(|name| machines.contains(name) || !oracles.was_wiped(name));
    names
}

fn nodes(cluster: &SimulatedCluster) -> Vec<String> {
    cluster.server().objects(NODES).iter().map(|node| name(node)).filter(|name| !is_foreign(name)).collect()
}

fn vms(cluster: &SimulatedCluster, counts: impl Fn(VmState) -> bool) -> Vec<String> {
    let ours = cluster.cloud().vms().into_iter().filter(|vm| !is_foreign(&vm.name));
    ours.filter(|vm| counts(vm.state)).map(|vm| vm.name).collect()
}

fn difference_from(cluster: &SimulatedCluster, pool: &Value) -> Option<String> {
    let wanted = pool["spec"]["replicas"].as_u64().unwrap_or(0);
    left_node(cluster, wanted)
        .or_else(|| difference_of_status(cluster, pool, wanted))
        .or_else(|| difference_of_machines(cluster, pool, wanted))
        .or_else(|| difference_of_revisions(cluster, pool))
        .or_else(|| difference_of_vms(cluster, wanted))
        .or_else(|| unlike_template(cluster, pool, &machine_names(cluster)))
}

fn machine_names(cluster: &SimulatedCluster) -> BTreeSet<String> {
    cluster.server().objects(MACHINES).iter().map(|machine| name(machine)).collect()
}

/// A Node that nobody needs any more.
fn left_node(cluster: &SimulatedCluster, wanted: u64) -> Option<String> {
    // A Node of a machine that was removed by force is released after a while.
    let is_let_go = |node: &&Arc<Value>| {
        let held =
            node["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|it| it == finalizers::NODE));
        held && !node["metadata"]["deletionTimestamp"].is_null()
    };
    if let Some(node) = cluster.server().objects(NODES).iter().find(is_let_go) {
        return Some(format!("node {} is being deleted, and has our finalizer", name(node)));
    }
    let node = lost_node(cluster).filter(|_| wanted > 0)?;
    Some(format!("node {node} is left of a VM and a machine that are gone"))
}

fn difference_of_status(cluster: &SimulatedCluster, pool: &Value, wanted: u64) -> Option<String> {
    let status = &pool["status"];
    if status["observedGeneration"] != pool["metadata"]["generation"] {
        return Some("the deployment has not been observed".to_owned());
    }
    let is_frozen = |object: &Value| object["metadata"]["labels"]["freeze"] == "True";
    if is_frozen(pool) || cluster.server().objects(SETS).iter().any(|set| is_frozen(set)) {
        return Some("the deployment or one of its sets is frozen".to_owned());
    }
    let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
    let count = counts.into_iter().find(|count| status[count].as_u64().unwrap_or(0) != wanted)?;
    let machines = cluster.server().objects(MACHINES);
    let stages = machines.iter().map(|machine| machine["status"]["lastOperation"]["description"].to_string());
    let stages: Vec<String> = stages.collect();
    Some(format!("status.{count} is {} of {wanted}; machines say {stages:?}", status[count]))
}

fn difference_of_machines(cluster: &SimulatedCluster, pool: &Value, wanted: u64) -> Option<String> {
    let machines = cluster.server().objects(MACHINES);
    let class = &pool["spec"]["template"]["spec"]["class"]["name"];
    let is_in_place = pool["spec"]["strategy"]["type"] == "InPlaceUpdate";
    let has_machine = |node: &str| machines.iter().any(|machine| name(machine) == node);
    let is_known = |node: &str| has_machine(node) || !cluster.oracles.lock().was_forced(node);
    if let Some(left) = is_in_place.then(|| updates::left_over(cluster.server(), is_known)).flatten() {
        return Some(left);
    }
    let is_well = |machine: &&Arc<Value>| {
        machine["metadata"]["deletionTimestamp"].is_null()
            && machine["status"]["currentStatus"]["phase"] == "Running"
            && machine["status"]["currentStatus"]["preserveExpiryTime"].is_null()
            // One that was updated in place keeps the class that its VM was made from.
            && (is_in_place || machine["spec"]["class"]["name"] == *class)
    };
    if let Some(machine) = machines.iter().find(|machine| !is_well(machine)) {
        return Some(format!("machine {} is {}", machine["metadata"]["name"], machine["status"]["currentStatus"]));
    }
    records_vms(cluster, wanted).or_else(|| preservation::marked_for_nothing(cluster.server()))
}

fn difference_of_revisions(cluster: &SimulatedCluster, pool: &Value) -> Option<String> {
    let sets = cluster.server().objects(SETS).len() as u64;
    let revisions = pool["spec"]["revisionHistoryLimit"].as_u64()?;
    (sets > revisions + 1).then(|| format!("{sets} machine sets are left"))
}

fn difference_of_vms(cluster: &SimulatedCluster, wanted: u64) -> Option<String> {
    let names = machine_names(cluster);
    // Without machines no list is believed, and nobody deletes the VMs that were left behind.
    let counted = |mut found: Vec<String>| {
        found.sort();
        if names.is_empty() { known(cluster, &names, found) } else { found }
    };
    let running = counted(vms(cluster, |state| state == VmState::Running));
    let (made, nodes) = (counted(vms(cluster, |_| true)).len(), known_nodes(cluster, &names, nodes(cluster)));
    let is_same = |found: &[String]| found.iter().eq(&names);
    let is_met = names.len() as u64 == wanted && is_same(&running) && made == names.len() && is_same(&nodes);
    (!is_met).then(|| format!("machines {names:?}, VMs {running:?} of {made}, nodes {nodes:?}"))
}

/// A Node whose VM and machine are gone, where managers do the node part of a cloud controller manager.
fn lost_node(cluster: &SimulatedCluster) -> Option<String> {
    cluster.oracles.lock().cloud_nodes.as_ref()?;
    let (vms, server) = (cluster.cloud().vms(), cluster.server());
    let is_lost = |node: &&Arc<Value>| {
        let is_labelled = node["metadata"]["labels"][labels::MACHINE_NAME].is_string();
        let has_machine = server.object(&format!("{MACHINES}/{}", name(node))).is_some();
        is_labelled && !has_machine && !vms.iter().any(|vm| node["spec"]["providerID"] == vm.provider_id)
    };
    server.objects(NODES).iter().filter(|node| !is_foreign(&name(node))).find(is_lost).map(|node| name(node))
}

/// Nodes of these names whose labels differ from the node template.
fn unlike_template(cluster: &SimulatedCluster, pool: &Value, names: &BTreeSet<String>) -> Option<String> {
    let wanted = labels(&pool["spec"]["template"]["spec"]["nodeTemplate"]);
    let nodes = cluster.server().objects(NODES);
    let mut nodes = nodes.iter().filter(|node| names.contains(&name(node)));
    let unlike = nodes.find(|node| labels(node) != wanted)?;
    Some(format!("node {} has the labels {:?} of {wanted:?}", name(unlike), labels(unlike)))
}

/// The labels that come from node templates.
fn labels(object: &Value) -> BTreeSet<&str> {
    let all = object["metadata"]["labels"].as_object().into_iter().flatten();
    all.map(|(key, _)| key.as_str()).filter(|key| key.starts_with(NODE_LABELS)).collect()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
