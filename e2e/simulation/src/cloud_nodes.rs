//! The invariants for Nodes that get their addresses from their provider, and go with their VMs: I45 to I47 of
//! `docs/reference/simulation.md`.

use std::{collections::BTreeMap, time::Duration};

use nodewright_api::taints::UNINITIALIZED;
use nodewright_e2e_cloud::{VmState, memory::Memory};
use nodewright_testing::api_server::{ApiServer, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{foreign::written_node, names::NODES};

/// The controller that deletes Nodes whose VM is gone, in the `User-Agent` of its requests.
const LIFECYCLE: &str = "(node-lifecycle)";
/// A tenth of the Nodes may go in this time, less by what timers may be early.
const WINDOW: Duration = Duration::from_secs(299);

/// The Nodes of a run in which no cloud controller manager runs.
pub(super) struct CloudNodes {
    /// Whether one manager at a time deletes Nodes, by a clock that is right.
    has_brake: bool,
    /// When each Node was first asked to go, by UID.
    gone: BTreeMap<String, Instant>,
}

impl CloudNodes {
    pub(super) fn watch(has_brake: bool) -> Self {
        Self { has_brake, gone: BTreeMap::new() }
    }

    /// Evaluates a request of a manager to delete a Node.
    pub(super) fn request(&mut self, request: &RequestRecord, server: &ApiServer, cloud: &Memory) -> Option<String> {
        let name = written_node(request).filter(|_| request.verb == "delete")?;
        let node = server.object(&format!("{NODES}/{name}"))?;
        let id = node["spec"]["providerID"].as_str().unwrap_or_default();
        let mut vms = cloud.vms.values();
        // Kubelets may write the beginning of an id in another way.
        let last = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
        if vms.any(|vm| last(&vm.provider_id()) == last(id) && vm.state != VmState::Deleting) {
            return Some(format!("I45: a manager deletes node {name}, whose VM {id} exists"));
        }
        if !self.has_brake || !request.user_agent.contains(LIFECYCLE) {
            return None;
        }
        self.gone.retain(|_, at| at.elapsed() < WINDOW);
        self.gone.entry(node["metadata"]["uid"].to_string()).or_insert_with(Instant::now);
        let nodes = server.objects(NODES).len();
        let most = (nodes / 10).max(1);
        (self.gone.len() > most)
            .then(|| format!("I47: node {name} goes as number {} in five minutes, of {nodes} nodes", self.gone.len()))
    }

    /// Evaluates a change of a Node.
    pub(super) fn change(name: &str, new: Option<&Value>) -> Option<String> {
        let node = new?;
        // A kubelet reports its own name.
        let is_ip = |address: &Value| address["type"] == "InternalIP";
        let mut addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let is_tainted = taints.any(|taint| taint["key"] == UNINITIALIZED);
        (!is_tainted && !addresses.any(is_ip))
            .then(|| format!("I46: node {name} has no taint that it is uninitialized, and no IP"))
    }
}
