//! A stand-in for the programs on Nodes that apply configurations, as OpenShift's machine-config-daemon does.

mod daemon;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use nodewright_api::machine_config::{
    CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, REASON, STATE,
};
use nodewright_e2e_cloud::CloudClient;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::daemon::{APPLIES_FOR, Act, POST_CONFIG_ACTION, Seen, next};
pub use self::daemon::{FAILURE, Fault};
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

/// What the daemon writes for an update, as [`difference`] tells it.
pub const UPDATE: [&str; 6] = [
    "state=Working",
    "desiredDrain=drain-NEW",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=uncordon-NEW",
    "currentConfig=NEW state=Done",
];
/// What it writes when its configuration is taken back once it has asked for the drain: it gets there first.
pub const TAKEN_BACK: [&str; 9] = [
    "state=Working",
    "desiredDrain=drain-NEW",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=drain-OLD",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=uncordon-OLD",
    "state=Done",
];
/// The annotations that a daemon writes of its Node, in the order of their names.
const WRITTEN: [&str; 5] = [CURRENT_CONFIG, DESIRED_DRAIN, POST_CONFIG_ACTION, REASON, STATE];

/// What of a daemon's annotations differs between two versions of a Node, if anything: `key=value`, without the domain.
/// Configurations are called by these names.
pub fn difference(before: &Node, after: &Node, configs: &[(&str, &str)]) -> Option<String> {
    let changed = WRITTEN.into_iter().filter(|key| said(before, key) != said(after, key));
    let texts: Vec<_> = changed.map(|key| write_text(key, said(after, key), configs)).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

fn write_text(key: &str, value: &str, configs: &[(&str, &str)]) -> String {
    let value = configs.iter().fold(value.to_owned(), |value, (config, name)| value.replace(config, name));
    format!("{}={value}", key.rsplit('/').next().unwrap_or_default())
}

/// An annotation of a Node; empty without one.
pub fn said<'a>(node: &'a Node, key: &str) -> &'a str {
    node.annotations().get(key).map_or("", String::as_str)
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
            let first = || self.first.clone();
            return Act::Write(vec![(CURRENT_CONFIG, first()), (DESIRED_CONFIG, first()), (STATE, DONE.to_owned())]);
        }
        let own = |key: &str| said(node, key).to_owned();
        let seen = Seen {
            current: own(CURRENT_CONFIG),
            desired: own(DESIRED_CONFIG),
            state: own(STATE),
            asks: own(DESIRED_DRAIN),
            done: own(LAST_APPLIED_DRAIN),
            action: own(POST_CONFIG_ACTION),
        };
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
