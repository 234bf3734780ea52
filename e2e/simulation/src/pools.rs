//! A pool of node configuration, in runs that change it: I24 of `docs/reference/simulation.md`.
//!
//! A user changes a MachineConfig again and again, so that rendered ones become old and are deleted. Nodes come that run what the
//! pool had as its target when they began to boot, move to another target later, and go.

use std::{collections::BTreeMap, time::Duration};

use nodewright_api::machine_config::{API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, ROLE, WORKER};
use nodewright_controllers::machine_config_pool;
use nodewright_testing::api_server::{ApiServer, ChangeRecord};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    names::{CONFIGS, CONFIGURED, NODES, POOLS},
    oracles::Oracles,
    schedule::{Act, Schedule},
};

/// How long a Node boots: it runs what was the target that long ago.
const BOOT: Duration = Duration::from_secs(30);

/// The controllers that such a run has besides.
pub(super) const CONTROLLERS: &[&str] = &["machine-config-pool"];

/// A change of the pool, of its configuration or its Nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolChange {
    /// A user gives the MachineConfig this content. The first one creates it, and the pool.
    Configure(u32),
    /// The n-th Node comes.
    Join(u32),
    /// The n-th Node runs what is the target now.
    Follow(u32),
    /// The n-th Node goes.
    Leave(u32),
}

/// Shorter than the default, so that what is rendered becomes old during a run, and none is deleted when it has to be at rest.
pub(super) fn settings() -> machine_config_pool::PoolSettings {
    machine_config_pool::PoolSettings { rendered_retention: Duration::from_mins(2), ..Default::default() }
}

/// Whether a run has a pool.
pub(super) fn has_pool(schedule: &Schedule) -> bool {
    schedule.acts().iter().any(|(_, act)| matches!(act, Act::Pool(_)))
}

/// What names rendered MachineConfigs.
#[derive(Default)]
pub(super) struct Pools {
    /// By the path of a Node or pool.
    named: BTreeMap<String, Vec<String>>,
    /// The targets of the pool, each with the time since when.
    targets: Vec<(Instant, String)>,
}

impl Pools {
    /// Notes what an object names, or returns the violation if it is a MachineConfig that is gone although something names it.
    pub(super) fn change(&mut self, change: &ChangeRecord) -> Option<String> {
        if let Some(config) = change.path.strip_prefix(CONFIGS).filter(|_| change.new.is_none()) {
            let config = config.trim_start_matches('/');
            let (namer, _) = self.named.iter().find(|(_, names)| names.iter().any(|name| name == config))?;
            return Some(format!("I24: MachineConfig {config} is deleted, and {namer} names it"));
        }
        if change.path.starts_with(POOLS) || change.path.starts_with(NODES) {
            let names = change.new.as_deref().map(names).unwrap_or_default();
            self.note_target(change);
            self.named.insert(change.path.clone(), names);
        }
        None
    }

    fn note_target(&mut self, change: &ChangeRecord) {
        let target = change.new.as_deref().and_then(|pool| pool["spec"]["configuration"]["name"].as_str());
        let known = self.targets.last().map(|(_, target)| target.as_str());
        if let Some(target) = target.filter(|target| known != Some(target)) {
            self.targets.push((Instant::now(), target.to_owned()));
        }
    }

    /// The target of the pool at a time in the past.
    fn target_at(&self, time: Instant) -> Option<&str> {
        self.targets.iter().rev().find(|(since, _)| *since <= time).map(|(_, target)| target.as_str())
    }
}

/// The rendered MachineConfigs that a Node or a pool names.
fn names(object: &Value) -> Vec<String> {
    let annotations = &object["metadata"]["annotations"];
    let all = [
        &annotations[CURRENT_CONFIG],
        &annotations[DESIRED_CONFIG],
        &object["spec"]["configuration"]["name"],
        &object["status"]["configuration"]["name"],
    ];
    all.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Makes a change.
pub(super) fn change(server: &ApiServer, oracles: &Mutex<Oracles>, change: &PoolChange) {
    let now = Instant::now();
    let target_at = |time: Option<Instant>| {
        let oracles = oracles.lock();
        time.and_then(|time| oracles.pools.target_at(time)).map(str::to_owned)
    };
    match change {
        PoolChange::Configure(content) => configure(server, *content),
        PoolChange::Join(number) => {
            let Some(config) = target_at(now.checked_sub(BOOT)) else { return };
            if server.object(&format!("{CONFIGS}/{config}")).is_none() {
                let wrong = format!("I24: Node {} boots with MachineConfig {config}, which is gone", node(*number));
                oracles.lock().blame(wrong);
            }
            server.seed(
                NODES,
                json!({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": node(*number), "annotations": runs(&config)}}),
            );
        }
        PoolChange::Follow(number) => {
            let Some(config) = target_at(Some(now)) else { return };
            server
                .change(&format!("{NODES}/{}", node(*number)), |node| node["metadata"]["annotations"] = runs(&config));
        }
        PoolChange::Leave(number) => drop(server.remove(&format!("{NODES}/{}", node(*number)))),
    }
}

fn configure(server: &ApiServer, content: u32) {
    let spec = json!({"kernelArguments": [format!("content={content}")]});
    let path = format!("{CONFIGS}/content");
    if server.change(&path, |config| config["spec"] = spec.clone()).is_some() {
        return;
    }
    let labels = json!({ROLE: WORKER});
    server.seed(
        CONFIGS,
        json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
            "metadata": {"name": "content", "labels": labels}, "spec": spec}),
    );
    server.seed(
        POOLS,
        json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": WORKER},
            "spec": {"machineConfigSelector": {"matchLabels": labels}}}),
    );
}

fn node(number: u32) -> String {
    format!("{CONFIGURED}{number}")
}

fn runs(config: &str) -> Value {
    json!({CURRENT_CONFIG: config, DESIRED_CONFIG: config})
}
