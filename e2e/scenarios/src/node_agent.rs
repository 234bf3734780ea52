//! A stand-in for the programs on Nodes that apply configurations, as OpenShift's machine-config-daemon does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use nodewright_api::machine_config::{CURRENT_CONFIG, DESIRED_CONFIG, DONE, STATE};
pub use nodewright_e2e_cloud::node_agent::{FAILURE, Fault, TAKEN_BACK, UPDATE, difference, said};
use nodewright_e2e_cloud::{
    CloudClient,
    node_agent::{APPLIES_FOR, Act, Seen, first_words, next},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    Environment, History, TestResult,
    node_updater::is_cordoned,
    visits::{PerNode, Program, Running, reboot, record_nodes},
    waits::is_ready,
};

/// The agents on all Nodes of an environment. Dropping it ends them.
pub struct NodeAgents(Running<Shared>);

struct Shared {
    api: Api<Node>,
    cloud: CloudClient,
    nodes: History<Node>,
    /// What a new Node runs.
    first: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    faults: PerNode<Fault>,
    disks: BTreeMap<String, String>,
}

impl NodeAgents {
    /// Starts them. A new Node runs this configuration.
    pub async fn start(env: &Environment, first: &str) -> TestResult<Self> {
        let (api, nodes) = (Api::all(env.target_client()), record_nodes(env).await?);
        let (cloud, first, state) = (env.cloud().clone(), first.to_owned(), Mutex::default());
        Ok(Self(Running::start(Shared { api, cloud, nodes, first, state })))
    }

    /// What goes wrong on all Nodes that have no fault of their own.
    pub fn by_default(&self, fault: Fault) {
        self.0.state.lock().faults.by_default = fault;
    }

    /// What goes wrong on a Node.
    pub fn on(&self, node: &str, fault: Fault) {
        self.0.state.lock().faults.by_node.insert(node.to_owned(), fault);
    }
}

/// Whether a Node is being updated, or cannot take Pods.
pub fn is_disrupted(node: &Node) -> bool {
    let is_moving = said(node, CURRENT_CONFIG) != said(node, DESIRED_CONFIG) || said(node, STATE) != DONE;
    is_cordoned(node) || is_moving || !is_ready(node)
}

impl Shared {
    fn act(&self, node: &Node) -> Act {
        let (name, state) = (node.name_any(), self.state.lock());
        if said(node, CURRENT_CONFIG).is_empty() {
            return first_words(&self.first);
        }
        let seen = Seen::read(|key| said(node, key).to_owned());
        let disk = state.disks.get(&name).unwrap_or(&self.first);
        next(&seen, disk, state.faults.of(&name))
    }
}

impl Program for Shared {
    fn nodes(&self) -> &History<Node> {
        &self.nodes
    }

    fn is_due(&self, _: &str, node: &Node) -> bool {
        self.act(node) != Act::Wait
    }

    async fn tend(&self, name: &str) -> TestResult {
        // The recorded Node may lack our last write.
        let Some(node) = self.api.get_opt(name).await? else { return Ok(()) };
        match self.act(&node) {
            Act::Wait => Ok(()),
            Act::Write(writes) => {
                let annotations: BTreeMap<_, Value> =
                    writes.into_iter().map(|(key, value)| (key, value.into())).collect();
                let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
                Ok(self.api.patch(name, &PatchParams::default(), &patch).await.map(drop)?)
            }
            Act::Apply(config) => {
                tokio::time::sleep(APPLIES_FOR).await;
                let may_return = || *self.state.lock().faults.of(name) != Fault::NoReturn;
                reboot(&self.cloud, &self.nodes, &node, may_return).await?;
                self.state.lock().disks.insert(name.to_owned(), config);
                Ok(())
            }
        }
    }
}
