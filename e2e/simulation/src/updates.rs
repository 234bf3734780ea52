//! The programs on the Nodes of runs that update machines in place, the user who selects Nodes, and what must hold: I35 of
//! `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nodewright_api::{labels, taints};
use nodewright_testing::api_server::ApiServer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::names::{MACHINES, NODES};

/// How often programs and users look.
const PERIOD: Duration = Duration::from_secs(1);
/// The labels of a Node in an update.
const LABELS: [&str; 3] = [labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE, labels::UPDATE_RESULT];

/// How a run updates its machines in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orchestration {
    /// The deployment selects the machines.
    Auto,
    /// A user does, one by one.
    Manual,
}

impl Orchestration {
    pub(super) fn strategy(self, surge: u32, unavailable: u32) -> Value {
        let by = match self {
            Self::Auto => "Auto",
            Self::Manual => "Manual",
        };
        let bounds = json!({"maxSurge": surge, "maxUnavailable": unavailable, "orchestrationType": by});
        json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds})
    }
}

/// The programs on the Nodes. They end when it is dropped.
pub(super) struct Programs(JoinHandle<()>);

impl Drop for Programs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Programs {
    pub(super) fn start(server: ApiServer, seed: u64, orchestration: Orchestration) -> Self {
        Self(tokio::spawn(async move {
            let mut asked = BTreeMap::new();
            loop {
                sleep(PERIOD).await;
                work(&server, seed, &mut asked);
                if orchestration == Orchestration::Manual {
                    select(&server);
                }
            }
        }))
    }
}

/// Each program answers up to 20 seconds after it was asked, and opens its Node to Pods once it was updated.
fn work(server: &ApiServer, seed: u64, asked: &mut BTreeMap<String, Instant>) {
    for node in server.objects(NODES) {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        if !is_asked(&node) {
            asked.remove(name);
            if !is_selected(&node) {
                open(server, &node);
            }
            continue;
        }
        let takes = Duration::from_secs(name.bytes().fold(seed, |sum, byte| sum.wrapping_add(byte.into())) % 20);
        if asked.entry(name.to_owned()).or_insert_with(Instant::now).elapsed() >= takes {
            server.change(&path(&node), |node| {
                node["metadata"]["labels"][labels::UPDATE_RESULT] = labels::UPDATE_SUCCESSFUL.into();
            });
        }
    }
}

fn is_asked(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let is_ready = |it: &Value| it["type"] == "InPlaceUpdate" && it["reason"] == "ReadyForUpdate";
    let is_ready = conditions.is_some_and(|all| all.iter().any(is_ready));
    is_ready && has_label(node, labels::SELECTED_FOR_UPDATE) && !has_label(node, labels::UPDATE_RESULT)
}

fn open(server: &ApiServer, node: &Value) {
    let is_closed = |taint: &Value| taint["key"] == taints::CRITICAL_COMPONENTS_NOT_READY;
    if node["spec"]["taints"].as_array().is_some_and(|all| all.iter().any(is_closed)) {
        server.change(&path(node), |node| {
            if let Some(all) = node["spec"]["taints"].as_array_mut() {
                all.retain(|taint| !is_closed(taint));
            }
        });
    }
}

/// A user selects a candidate, unless one is being updated.
fn select(server: &ApiServer) {
    let nodes = server.objects(NODES);
    if nodes.iter().any(|node| has_label(node, labels::SELECTED_FOR_UPDATE)) {
        return;
    }
    if let Some(node) = nodes.iter().find(|node| has_label(node, labels::CANDIDATE_FOR_UPDATE)) {
        server.change(&path(node), |node| {
            node["metadata"]["labels"][labels::SELECTED_FOR_UPDATE] = labels::UPDATE_LABEL_VALUE.into();
        });
    }
}

fn path(node: &Value) -> String {
    format!("{NODES}/{}", node["metadata"]["name"].as_str().unwrap_or_default())
}

fn has_label(object: &Value, key: &str) -> bool {
    object["metadata"]["labels"][key].is_string()
}

/// Whether a Node is being drained for an update of its machine, which stays.
pub(super) fn is_selected(node: &Value) -> bool {
    has_label(node, labels::SELECTED_FOR_UPDATE)
}

/// The Nodes that are being updated.
#[derive(Default)]
pub(super) struct Updates {
    /// Whether managers alone select them.
    is_evaluated: bool,
    selected: BTreeSet<String>,
    /// How many times a Node was selected.
    pub(super) begun: u64,
}

impl Updates {
    pub(super) fn of(orchestration: Option<Orchestration>) -> Self {
        Self { is_evaluated: orchestration == Some(Orchestration::Auto), ..Self::default() }
    }

    /// Observes a Node. `most`: how many machines may be updated at once. `stays`: whether the machine of a Node does. Returns the
    /// violation, if any.
    pub(super) fn node(
        &mut self,
        name: &str,
        new: Option<&Value>,
        most: u64,
        stays: impl Fn(&str) -> bool,
    ) -> Option<String> {
        if new.is_some_and(is_selected) {
            let is_new = self.selected.insert(name.to_owned());
            self.begun += u64::from(is_new);
            let selected = self.selected.iter().filter(|name| stays(name)).count() as u64;
            return (is_new && self.is_evaluated && selected > most)
                .then(|| format!("I35: node {name} is one of {selected} that are being updated, and {most} may be"));
        }
        self.selected.remove(name);
        None
    }
}

/// What is left of an update on a Node or a machine, of the Nodes that managers know.
pub(super) fn left_over(server: &ApiServer, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let nodes = server.objects(NODES);
    let is_left = |node: &Value| LABELS.iter().any(|key| has_label(node, key)) || node["spec"]["unschedulable"] == true;
    let is_known = |node: &Value| node["metadata"]["name"].as_str().is_none_or(&is_known);
    if let Some(node) = nodes.iter().find(|node| is_left(node) && is_known(node)) {
        return Some(format!("node {} is not done: {}", node["metadata"]["name"], node["metadata"]["labels"]));
    }
    let machines = server.objects(MACHINES);
    let machine = machines.iter().find(|machine| has_label(machine, labels::UPDATE_RESULT))?;
    Some(format!("machine {} is still moving", machine["metadata"]["name"]))
}
