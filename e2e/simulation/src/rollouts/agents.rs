//! The stand-ins on the Nodes of pools: kubelets and agents. They know the state of the API server at once, and write past it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nodewright_api::machine_config::DESIRED_CONFIG;
use nodewright_e2e_cloud::node_agent::{Act, Fault, Seen, first_words, next};
use nodewright_testing::api_server::ApiServer;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{AgentFault, Rollout, Writer, node::Member, pods::Pods};
use crate::{
    names::{NODES, POOLS, is_member},
    oracles::Oracles,
};

/// How often the stand-ins look.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a slow agent takes for a step.
const SLOW: u64 = 30;
/// How late a second agent sees its Node.
const LATE: Duration = Duration::from_secs(7);

/// The stand-ins on all Nodes of pools. They end when it is dropped.
pub(in super::super) struct Agents {
    pub(super) state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is known of the Nodes besides what the API server has.
pub(super) struct State {
    pub(super) server: ApiServer,
    pub(super) oracles: Arc<Mutex<Oracles>>,
    /// The names of the pools.
    pub(super) pools: Vec<String>,
    /// By the name of the Node.
    pub(super) machines: BTreeMap<String, Machine>,
    /// The claims of pools that are to be written back, by the name of the pool.
    pub(super) saved_claims: BTreeMap<String, Value>,
    /// Nodes that are gone, each with the time when it comes back.
    pub(super) lost: Vec<(Instant, Value)>,
    /// The names of Nodes that users have cordoned, each with the time when they uncordon it.
    pub(super) cordoned: Vec<(Instant, String)>,
    random: fastrand::Rng,
    pods: Pods,
    /// The version of the store after which nothing was left to do.
    idle_at: Option<u64>,
}

/// The machine of a Node.
#[derive(Default)]
pub(super) struct Machine {
    /// The configuration on its disk.
    disk: String,
    /// What goes wrong there, and until when.
    pub(super) fault: Option<(AgentFault, Instant)>,
    /// Until when the kubelet says nothing.
    pub(super) down_until: Option<Instant>,
    /// When it will have booted.
    boots_until: Option<Instant>,
    /// When its agent takes the next step.
    busy_until: Option<Instant>,
    /// The configuration without which it came back from a reboot.
    refused: String,
    /// What the second agent sees, since then.
    late_view: Option<(Instant, Seen)>,
}

impl Agents {
    pub(in super::super) fn start(
        server: ApiServer,
        oracles: Arc<Mutex<Oracles>>,
        rollout: &Rollout,
        seed: u64,
    ) -> Self {
        let state = Arc::new(Mutex::new(State {
            server,
            oracles,
            pools: rollout.pools.iter().map(|pool| pool.name.clone()).collect(),
            machines: BTreeMap::new(),
            saved_claims: BTreeMap::new(),
            lost: vec![],
            cordoned: vec![],
            random: fastrand::Rng::with_seed(seed),
            pods: Pods::default(),
            idle_at: None,
        }));
        let own = state.clone();
        let task = tokio::spawn(async move {
            loop {
                sleep(PERIOD).await;
                own.lock().round();
            }
        });
        Self { state, task }
    }
}

/// Lets somebody who is no manager change something.
pub(super) fn as_writer<T>(oracles: &Mutex<Oracles>, writer: Writer, change: impl FnOnce() -> T) -> T {
    oracles.lock().rollouts.writer = writer;
    let changed = change();
    oracles.lock().rollouts.writer = Writer::Manager;
    changed
}

impl Machine {
    fn has(&self, fault: AgentFault) -> bool {
        self.fault.is_some_and(|(of, until)| of == fault && Instant::now() < until)
    }

    /// Whether nothing happens there by itself.
    fn is_idle(&self) -> bool {
        let is_pending = |until: Option<Instant>| until.is_some_and(|until| until + PERIOD > Instant::now());
        !is_pending(self.fault.map(|(_, until)| until))
            && ![self.down_until, self.boots_until, self.busy_until].into_iter().any(is_pending)
    }

    /// Whether its kubelet reports.
    fn is_up(&self) -> bool {
        let is_over = |until: Option<Instant>| until.is_none_or(|until| until <= Instant::now());
        let never_returns = self.boots_until.is_some() && self.has(AgentFault::NeverReturns);
        is_over(self.down_until) && is_over(self.boots_until) && !never_returns
    }

    /// What goes wrong for the agent, which is to apply this configuration.
    fn daemon_fault(&self, desired: &str) -> Fault {
        let Some((fault, _)) = self.fault.filter(|(_, until)| Instant::now() < *until) else { return Fault::None };
        match fault {
            AgentFault::NeverStarts => Fault::NeverStart,
            AgentFault::Hangs => Fault::Hang,
            AgentFault::Unreconcilable => Fault::Unreconcilable(String::new()),
            AgentFault::FailsBeforeDrain => Fault::FailBeforeDrain(String::new()),
            AgentFault::FailsAfterDrain => Fault::FailAfterDrain(String::new()),
            AgentFault::ReturnsUnchanged if self.refused == desired => Fault::FailAfterDrain(desired.to_owned()),
            AgentFault::Drifts => Fault::Drift,
            AgentFault::NeverReturns
            | AgentFault::ReturnsUnchanged
            | AgentFault::TwoAgents
            | AgentFault::Slow
            | AgentFault::Restarts => Fault::None,
        }
    }
}

impl State {
    fn round(&mut self) {
        let version = self.server.version();
        if self.idle_at == Some(version) && self.machines.values().all(Machine::is_idle) && self.pods.are_idle() {
            return;
        }
        let nodes = self.server.objects(NODES);
        for node in nodes.iter().filter(|node| is_member(name(node))) {
            self.tend(node);
        }
        self.pods.round(&self.server);
        self.idle_at = (self.server.version() == version).then_some(version);
    }

    fn tend(&mut self, node: &Value) {
        let machine = self.machines.entry(name(node).to_owned()).or_default();
        let is_up = machine.is_up();
        if is_up != Member::of(node).is_ready {
            let status = if is_up { "True" } else { "Unknown" };
            self.write(node, Writer::Agent, |node| {
                node["status"]["conditions"] = serde_json::json!([{"type": "Ready", "status": status}]);
            });
        }
        if is_up {
            self.work(node);
        }
    }

    /// Lets the agent of a Node take a step.
    fn work(&mut self, node: &Value) {
        let mut seen = Seen::read(|key| annotation(node, key));
        let target = self.target_of(node);
        let Some(machine) = self.machines.get_mut(name(node)) else { return };
        machine.boots_until = None;
        if machine.has(AgentFault::Restarts) && seen.asks.starts_with("drain-") {
            seen.asks.clear();
        }
        let late = machine.late_view.take().filter(|_| machine.has(AgentFault::TwoAgents));
        let is_due = late.as_ref().is_some_and(|(at, _)| at.elapsed() >= LATE);
        machine.late_view = machine
            .has(AgentFault::TwoAgents)
            .then(|| late.clone().filter(|_| !is_due).unwrap_or_else(|| (Instant::now(), seen.clone())));
        if machine.busy_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if machine.disk.is_empty() {
            machine.disk = target.unwrap_or_default();
        }
        if machine.disk.is_empty() {
            return;
        }
        let act = match late {
            _ if seen.current.is_empty() => first_words(&machine.disk),
            Some((_, late)) if is_due && !late.current.is_empty() => match next(&late, &machine.disk, &Fault::None) {
                Act::Apply(_) => Act::Wait,
                act => act,
            },
            _ => next(&seen, &machine.disk, &machine.daemon_fault(&seen.desired)),
        };
        if act != Act::Wait {
            let takes = if machine.has(AgentFault::Slow) { SLOW } else { self.random.u64(1..=3) };
            machine.busy_until = Some(Instant::now() + Duration::from_secs(takes));
        }
        match act {
            Act::Wait => {}
            Act::Write(writes) => self.write(node, Writer::Agent, |node| {
                for (key, value) in writes {
                    node["metadata"]["annotations"][key] = value.into();
                }
            }),
            Act::Apply(config) => self.reboot(node, config),
        }
    }

    fn reboot(&mut self, node: &Value, config: String) {
        let takes = Duration::from_secs(self.random.u64(3..=20));
        let Some(machine) = self.machines.get_mut(name(node)) else { return };
        machine.boots_until = Some(Instant::now() + takes);
        if machine.has(AgentFault::ReturnsUnchanged) {
            machine.refused = config;
        } else {
            machine.disk = config;
        }
    }

    /// The target of the pool of a Node, which a new one runs.
    fn target_of(&self, node: &Value) -> Option<String> {
        let pool = Member::of(node).pool(self.pools.iter())?.to_owned();
        let pool = self.server.object(&format!("{POOLS}/{pool}"))?;
        let target = pool["spec"]["configuration"]["name"].as_str()?;
        Some(target.to_owned()).filter(|target| !target.is_empty())
    }

    pub(super) fn write(&self, node: &Value, writer: Writer, change: impl FnOnce(&mut Value)) {
        let path = format!("{NODES}/{}", name(node));
        as_writer(&self.oracles, writer, || drop(self.server.change(&path, change)));
    }

    /// The n-th Node by name, modulo their number.
    pub(super) fn member(&self, number: usize) -> Option<Arc<Value>> {
        let mut nodes = self.server.objects(NODES);
        nodes.retain(|node| is_member(name(node)));
        (!nodes.is_empty()).then(|| nodes.swap_remove(number % nodes.len()))
    }

    /// The name of the n-th pool, modulo their number.
    pub(super) fn pool(&self, number: usize) -> Option<String> {
        self.pools.get(number.checked_rem(self.pools.len())?).cloned()
    }
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn annotation(node: &Value, key: &str) -> String {
    node["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned()
}

/// The name that a user writes by hand into the annotations of a Node.
pub(super) fn desire(node: &mut Value, config: &str) {
    node["metadata"]["annotations"][DESIRED_CONFIG] = config.into();
}
