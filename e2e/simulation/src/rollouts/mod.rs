//! Pools of node configuration that update their Nodes, in runs about that: I36 to I44 of `docs/reference/simulation.md`.
//!
//! The Nodes belong to no machine. Each has a stand-in for its kubelet and for its agent, machine-config-daemon, and takes a part of
//! the run's Pods.
//!
//! | file | content |
//! |---|---|
//! | `agents` | the stand-ins on the Nodes, and what goes wrong there |
//! | `pods` | the Pods on the Nodes, as far as kubelets have to do with them |
//! | `users` | what users do to pools and Nodes |
//! | `node` | what a Node says, and to which pool it belongs |
//! | `past` | what a manager may still see |
//! | `invariants`, `claims` | the invariants, at each write of a manager |
//! | `rest` | whether all pools are as their users want them |
//! | `generate` | runs made from seeds |

mod agents;
mod claims;
pub(super) mod generate;
mod invariants;
mod node;
mod past;
mod pods;
mod rest;
mod users;

use std::time::Duration;

use nodewright_api::machine_config::{API_VERSION, ROLE, WORKER};
use nodewright_testing::api_server::ApiServer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub(super) use self::{
    agents::Agents,
    invariants::{Rollouts, Writer},
    rest::difference,
    users::{begin, end},
};
use super::{
    names::{CONFIGS, MEMBER, NODES, POOLS},
    schedule::{Act, RequestResult, Schedule},
};

/// The controllers that such a run has besides.
pub(super) const CONTROLLERS: &[&str] = &["machine-config-pool", "node-drain"];
/// The label of a Node with a role.
const ROLE_LABEL: &str = "node-role.kubernetes.io/";
/// The pool of the control plane.
const MASTER: &str = "master";

/// The pools of a run, with their Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// The pools.
    pub pools: Vec<NodePool>,
}

/// A pool with its Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePool {
    /// Its name: `master`, `worker`, or another one. The Nodes of the latter are workers as well.
    pub name: String,
    /// How many Nodes it has at first.
    pub nodes: u32,
    /// Its `maxUnavailable`, a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
}

/// What goes wrong on a Node of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentFault {
    /// The agent does not begin.
    NeverStarts,
    /// It begins, and does nothing more.
    Hangs,
    /// It refuses each configuration before it asks for a drain.
    Unreconcilable,
    /// It fails before it asks for a drain.
    FailsBeforeDrain,
    /// It fails once the Node is drained.
    FailsAfterDrain,
    /// The Node does not return from its reboot.
    NeverReturns,
    /// It returns with the configuration that it had before.
    ReturnsUnchanged,
    /// Somebody changes a file of the Node.
    Drifts,
    /// A second agent runs on the Node, which sees it late.
    TwoAgents,
    /// The agent takes half a minute for each step.
    Slow,
    /// It starts again at each step, and does not know that it has asked for a drain.
    Restarts,
}

/// What somebody does to pools and Nodes. Pools and Nodes have numbers, modulo how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RolloutAct {
    /// A user gives the pool's MachineConfig this content.
    Configure(usize, u32),
    /// A user pauses the pool, or goes on with it.
    Pause(usize, bool),
    /// A user sets the pool's `maxUnavailable`.
    MaxUnavailable(usize, String),
    /// The agent of a Node misbehaves for so many seconds.
    Agent(usize, AgentFault, u32),
    /// A Node is not ready for so many seconds.
    NotReady(usize, u32),
    /// A user cordons a Node, and uncordons it after so many seconds.
    Cordon(usize, u32),
    /// A user uncordons a Node.
    Uncordon(usize),
    /// A user writes by hand which configuration a Node is to run: the n-th of its pool.
    Desire(usize, usize),
    /// Somebody removes the annotations of the agent, and ours, from a Node. After a minute a user sees to it that it takes Pods: nobody
    /// else knows any more that it was cordoned for a drain.
    Wipe(usize),
    /// A Node is deleted, and comes back after so many seconds with what is on its disk.
    Lose(usize, u32),
    /// Somebody removes the pool's claims.
    WipeClaims(usize),
    /// After so many seconds somebody writes the claims back that the pool has now.
    StaleClaims(usize, u32),
    /// A user gives a Node the role of another pool instead of its own, the second number.
    Move(usize, usize),
}

impl RolloutAct {
    /// How long its consequences last.
    pub(super) fn lasts(&self) -> Duration {
        match self {
            Self::Agent(_, _, seconds)
            | Self::NotReady(_, seconds)
            | Self::Cordon(_, seconds)
            | Self::Lose(_, seconds)
            | Self::StaleClaims(_, seconds) => Duration::from_secs((*seconds).into()),
            Self::Wipe(_) => Duration::from_mins(1),
            _ => Duration::ZERO,
        }
    }
}

/// The MachineConfig of a pool, which makes its Nodes' configuration.
fn content_path(pool: &str) -> String {
    format!("{CONFIGS}/content-{pool}")
}

fn content(number: u32) -> Value {
    json!({"kernelArguments": [format!("content={number}")]})
}

/// A `maxUnavailable` as it stands in a spec.
fn max_unavailable(text: &str) -> Value {
    text.parse::<u32>().map_or_else(|_| text.into(), Into::into)
}

/// The labels that make a Node one of a pool.
fn role_labels(pool: &str) -> Map<String, Value> {
    let as_well = (pool != MASTER && pool != WORKER).then_some(WORKER);
    [pool].into_iter().chain(as_well).map(|role| (format!("{ROLE_LABEL}{role}"), "".into())).collect()
}

/// A Node as it comes: of this pool, with this number.
fn node(pool: &str, number: usize) -> Value {
    let mut labels = role_labels(pool);
    labels.insert("topology.kubernetes.io/zone".to_owned(), format!("zone-{}", number % 3).into());
    let annotations = match number % 5 {
        3 => json!({nodewright_api::annotations::UPDATE_PRIORITY: "7"}),
        _ => json!({}),
    };
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("{MEMBER}{number:02}"), "labels": labels, "annotations": annotations},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Creates the pools, their MachineConfigs and their Nodes.
pub(super) fn seed(server: &ApiServer, rollout: &Rollout) {
    let mut number = 0;
    for pool in &rollout.pools {
        let of_role = |role: &str| json!({ROLE: role});
        server.seed(
            CONFIGS,
            json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
                "metadata": {"name": format!("content-{}", pool.name), "labels": of_role(&pool.name)}, "spec": content(0)}),
        );
        let selector = if pool.name == MASTER || pool.name == WORKER {
            json!({"matchLabels": of_role(&pool.name)})
        } else {
            json!({"matchExpressions": [{"key": ROLE, "operator": "In", "values": [WORKER, pool.name]}]})
        };
        let mut spec = json!({"machineConfigSelector": selector,
            "nodeSelector": {"matchLabels": {format!("{ROLE_LABEL}{}", pool.name): ""}}});
        if let Some(text) = &pool.max_unavailable {
            spec["maxUnavailable"] = max_unavailable(text);
        }
        let object = json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": pool.name}, "spec": spec});
        server.seed(POOLS, object);
        for _ in 0..pool.nodes {
            server.seed(NODES, node(&pool.name, number));
            number += 1;
        }
    }
}

/// Managers act on what they saw up to so long ago, if nothing delays it, and their requests are on their way meanwhile.
const SIGHT: Duration = Duration::from_secs(5);
/// How long a request is retried that gets no answer.
const UNANSWERED: Duration = Duration::from_mins(1);

/// How old what managers act on may be in a run.
pub(super) fn sight(schedule: &Schedule) -> Duration {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let millis = |millis: u32| Duration::from_millis(millis.into());
    let of_act = |act: &Act| match act {
        Act::HoldWatches(_, time)
        | Act::Sleep(time)
        | Act::ApiDown(time)
        | Act::TargetDown(time)
        | Act::ApiRefuses { seconds: time, .. } => seconds(*time),
        Act::ApiSwallows { seconds: time, .. } => seconds(*time) + UNANSWERED,
        Act::LateWatches(_, lag) | Act::LateRival(_, lag) | Act::ApiSlow(lag) => millis(*lag),
        Act::LaggingServer(lag) => millis(*lag) * 2,
        Act::CutWatches(_) | Act::Compact => SIGHT,
        _ => Duration::ZERO,
    };
    let of_result = |result: RequestResult| match result {
        RequestResult::CommitLate(time) | RequestResult::AnswerLate(time) | RequestResult::ArriveLate(time) => {
            seconds(time)
        }
        RequestResult::Hang | RequestResult::HangAfter => UNANSWERED,
        _ => Duration::ZERO,
    };
    let acts: Duration = schedule.acts().iter().map(|(_, act)| of_act(act)).sum();
    SIGHT + acts + schedule.request_results().map(of_result).sum::<Duration>()
}
