//! VMs and Nodes that belong to no machine. Managers must not write to them.

use nodewright_e2e_cloud::{Call, Caller, CreateVm, LocalCloud};
use nodewright_testing::api_server::{ApiServer, RequestRecord};

use serde_json::json;

use super::names::{BY_HAND, BYSTANDER, LOST, MACHINES, NEIGHBOUR, NEIGHBOURS, NODES, takes_pods};

/// Evaluates a write of a manager: it must not write to an object that belongs to no machine. It may delete any Node whose VM is
/// gone.
pub(super) fn check_foreign(request: &RequestRecord, server: &ApiServer, cloud: &LocalCloud) -> Option<String> {
    let node = written_node(request).filter(|node| !takes_pods(node))?;
    let is_left = || provider_id(server, node).is_some_and(|id| !cloud.vms().iter().any(|vm| vm.provider_id == id));
    if request.verb == "delete" && node == BY_HAND && is_left() {
        return None;
    }
    Some(format!("I12: a manager sent {} {}, which is no machine's", request.verb, request.path))
}

/// The Node that a request writes to, if it writes to one.
pub(super) fn written_node(request: &RequestRecord) -> Option<&str> {
    let node = request.path.strip_prefix(NODES)?.trim_matches('/').split('/').next()?;
    (!node.is_empty() && !matches!(request.verb, "get" | "list" | "watch")).then_some(node)
}

/// The providerID of a Node.
pub(super) fn provider_id(server: &ApiServer, node: &str) -> Option<String> {
    server.object(&format!("{NODES}/{node}")).and_then(|node| node["spec"]["providerID"].as_str().map(String::from))
}

/// Creates the VM and the Node that exist in each run and belong to no machine.
pub(super) fn seed_bystander(cloud: &LocalCloud) {
    let order = CreateVm {
        name: BYSTANDER.to_owned(),
        token: BYSTANDER.to_owned(),
        tags: [("cluster", "elsewhere"), ("machine", BYSTANDER)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        boot_seconds: Some(0.0),
        ..CreateVm::default()
    };
    cloud.with(|cloud, now| drop(cloud.call(now, &Call::Create(Box::new(order)), Caller::Observer)));
}

/// In another namespace a machine appears with a name of ours, and its VM has the same tags. It boots for so long that it has no Node.
pub(super) fn seed_neighbour(server: &ApiServer, cloud: &LocalCloud, name: Option<&str>) {
    let machines = server.objects(MACHINES);
    let (Some(name), Some(ours)) = (name, machines.first()) else { return };
    let path = format!("{NEIGHBOURS}/{name}");
    if server.object(&path).is_some() {
        return;
    }
    let copy = json!({"apiVersion": nodewright_api::API_VERSION, "kind": "Machine",
        "metadata": {"name": name, "namespace": NEIGHBOUR}, "spec": {"class": ours["spec"]["class"]}});
    server.seed(NEIGHBOURS, copy);
    let seeded = server.object(&path);
    let uid = seeded.as_ref().and_then(|it| it["metadata"]["uid"].as_str()).unwrap_or_default();
    let order = CreateVm {
        name: format!("{NEIGHBOUR}-{name}"),
        token: uid.to_owned(),
        tags: [("cluster", "simulation"), ("machine", name), ("uid", uid)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        boot_seconds: Some(80_000.0),
        ..CreateVm::default()
    };
    cloud.with(|cloud, now| drop(cloud.call(now, &Call::Create(Box::new(order)), Caller::Observer)));
}

/// Creates VMs with the tags of machines that never existed. They take so long to boot that they have no Nodes.
pub(super) fn seed_lost_vms(cloud: &LocalCloud, count: u32) {
    for number in 0..count {
        let name = format!("{LOST}{number}");
        let order = CreateVm {
            name: name.clone(),
            token: name.clone(),
            tags: [("cluster", "simulation"), ("machine", name.as_str())]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            boot_seconds: Some(80_000.0),
            ..CreateVm::default()
        };
        cloud.with(|cloud, now| drop(cloud.call(now, &Call::Create(Box::new(order)), Caller::Observer)));
    }
}
