//! `nodewright-bench pool-rollout`: the manager's CPU to move a node of a small and of a large pool to another configuration.
//!
//! The nodes are objects without a kubelet. A program here does what their agents do, and has them boot for a moment.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::ApiResource,
};
use nodewright_api::machine_config::{
    API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, MachineConfig,
    MachineConfigPool, ROLE, STATE, WORKER,
};
use nodewright_e2e_cloud::node_agent::{Act, Fault, Seen, next, said};
use nodewright_e2e_lab::{
    control_plane::ControlPlaneError,
    devcluster::DevclusterOptions,
    process::{ProcessError, command::Shutdown},
};
use serde_json::{Value, json};

use crate::{
    error::BenchError,
    measure::{Measured, print},
    pools::{create, ensure},
    usage::processor_time,
};

/// How many requests of ours wait for their answers at once.
const AT_ONCE: usize = 16;
/// How long a step of the measurement may take.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Time between two looks of the agents at their nodes, and how long a node boots.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const BOOT: Duration = Duration::from_secs(2);
const LABEL: &str = "node-role.kubernetes.io/worker";

/// Measure the CPU of the manager for each node of a pool that is moved to another configuration, a tenth of them at once.
///
/// Fails if a node of the large pool takes more than a node of the small one, by more than the factor.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolRolloutArguments {
    /// Number of nodes of the small pool
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=5000))]
    few: u32,
    /// Number of nodes of the large pool
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=5000))]
    many: u32,
    /// How much more CPU a node of the large pool may take
    #[arg(long, default_value_t = 1.2)]
    factor: f64,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(arguments: PoolRolloutArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: PoolRolloutArguments) -> Result<(), BenchError> {
    let options =
        DevclusterOptions { manager_flags: arguments.manager_flags, bare: true, ..DevclusterOptions::default() };
    let mut measured: Measured = Measured::start(&options).await?;
    measured.scale(0, TIMEOUT, |_| ()).await?;
    let mut fleet = Fleet { client: measured.client(), disks: BTreeMap::new(), boots: BTreeMap::new() };
    fleet.create_pool().await?;
    let mut costs = vec![];
    for (number, nodes) in [arguments.few, arguments.many].into_iter().enumerate() {
        fleet.grow(nodes).await?;
        measured.settle(|_| ()).await?;
        let before = cpu(&mut measured)?;
        fleet.move_nodes(nodes, &format!("content-{number}")).await?;
        measured.settle(|_| ()).await?;
        let per_node = cpu(&mut measured)?.saturating_sub(before) / nodes;
        print(&format!("{nodes} nodes were moved: {:.2} ms of CPU for each", 1000.0 * per_node.as_secs_f64()))?;
        costs.push(per_node.as_secs_f64());
    }
    measured.stop().await?;
    let ratio = costs[1] / costs[0];
    print(&format!("a node of {} takes {ratio:.2} times the CPU of one of {}", arguments.many, arguments.few))?;
    ensure(ratio <= arguments.factor, || format!("that should be at most {}", arguments.factor))
}

fn cpu(measured: &mut Measured) -> Result<Duration, BenchError> {
    let pid = measured.manager().pid().ok_or_else(|| BenchError::Failed("the manager has no process id".to_owned()))?;
    Ok(processor_time(pid).map_err(ProcessError::file("read", format!("/proc/{pid}")))?)
}

/// The nodes of the pool.
struct Fleet {
    client: Client,
    /// What each of them runs.
    disks: BTreeMap<String, String>,
    /// When those that boot are up again.
    boots: BTreeMap<String, Instant>,
}

impl Fleet {
    async fn create_pool(&self) -> Result<(), BenchError> {
        let spec = json!({"machineConfigSelector": {"matchLabels": {ROLE: WORKER}}, "maxUnavailable": "10%",
            "nodeSelector": {"matchLabels": {LABEL: ""}}});
        self.configure("first").await?;
        let pool =
            json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": WORKER}, "spec": spec});
        create::<MachineConfigPool>(&self.client, [pool]).await?;
        self.wait_for_target("").await.map(drop)
    }

    /// Has the pool render a file with this content.
    async fn configure(&self, content: &str) -> Result<(), BenchError> {
        let file = json!({"path": "/etc/motd", "contents": {"source": format!("data:,{content}")}, "mode": 420});
        let config = json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
            "metadata": {"name": "motd", "labels": {ROLE: WORKER}},
            "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}}}});
        let configs = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<MachineConfig>(&()));
        let applied = configs.patch("motd", &PatchParams::apply("bench"), &Patch::Apply(config)).await;
        Ok(applied.map(drop).map_err(ControlPlaneError::request("apply a MachineConfig"))?)
    }

    /// Adds nodes that run the target, until there are so many.
    async fn grow(&mut self, nodes: u32) -> Result<(), BenchError> {
        let target = self.wait_for_target("").await?;
        let present = u32::try_from(self.disks.len()).unwrap_or(nodes);
        let added: Vec<_> = (present..nodes).map(|number| format!("node-{number:04}")).collect();
        create::<Node>(&self.client, added.iter().map(|name| node(name, &target))).await?;
        self.disks.extend(added.into_iter().map(|name| (name, target.clone())));
        self.work(nodes, &target).await
    }

    /// Has the pool move its nodes to another configuration.
    async fn move_nodes(&mut self, nodes: u32, content: &str) -> Result<(), BenchError> {
        let before = self.wait_for_target("").await?;
        self.configure(content).await?;
        let target = self.wait_for_target(&before).await?;
        self.work(nodes, &target).await
    }

    /// Does what the agents do, until the pool says that so many nodes run the target and take Pods.
    async fn work(&mut self, nodes: u32, target: &str) -> Result<(), BenchError> {
        let since = Instant::now();
        loop {
            let pool = self.pool().await?;
            let status = pool.status.unwrap_or_default();
            let is_target = status.configuration.name.as_deref() == Some(target);
            if is_target && u32::try_from(status.ready_machine_count) == Ok(nodes) {
                return Ok(());
            }
            let shown = || format!("{} of {nodes} nodes run {target} after {TIMEOUT:?}", status.ready_machine_count);
            ensure(since.elapsed() < TIMEOUT, shown)?;
            self.look().await?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Lets each agent take a step.
    async fn look(&mut self) -> Result<(), BenchError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let listed = nodes.list(&ListParams::default()).await.map_err(ControlPlaneError::request("list nodes"))?;
        let steps: Vec<_> = listed.iter().filter_map(|node| Some((node.name_any(), self.step(node)?))).collect();
        let write = async |(name, step): (String, Step)| {
            let written = match step {
                Step::Annotate(patch) => nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await,
                Step::Ready(patch) => nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await,
            };
            Ok(written.map(drop).map_err(ControlPlaneError::request(format!("patch node {name}")))?)
        };
        stream::iter(steps.into_iter().map(write)).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// What the agent of a node writes next, if it writes something.
    fn step(&mut self, node: &Node) -> Option<Step> {
        let name = node.name_any();
        if self.boots.get(&name).is_some_and(|until| Instant::now() < *until) {
            return None;
        }
        if self.boots.remove(&name).is_some() {
            return Some(Step::Ready(readiness("True")));
        }
        let disk = self.disks.get_mut(&name)?;
        match next(&Seen::read(|key| said(node, key).to_owned()), disk, &Fault::None) {
            Act::Wait => None,
            Act::Write(writes) => {
                let annotations: BTreeMap<_, _> = writes.into_iter().collect();
                Some(Step::Annotate(json!({"metadata": {"annotations": annotations}})))
            }
            Act::Apply(config) => {
                *disk = config;
                self.boots.insert(name, Instant::now() + BOOT);
                Some(Step::Ready(readiness("Unknown")))
            }
        }
    }

    async fn pool(&self) -> Result<MachineConfigPool, BenchError> {
        let pools = Api::all(self.client.clone());
        Ok(pools.get(WORKER).await.map_err(ControlPlaneError::request("read the pool"))?)
    }

    /// Waits until the pool has a target, and another one than this.
    async fn wait_for_target(&self, than: &str) -> Result<String, BenchError> {
        let since = Instant::now();
        loop {
            let target = self.pool().await?.spec.configuration.name.unwrap_or_default();
            if !target.is_empty() && target != than {
                return Ok(target);
            }
            ensure(since.elapsed() < TIMEOUT, || format!("the pool has no other target than {than:?}"))?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// What an agent, or the kubelet, writes.
enum Step {
    Annotate(Value),
    Ready(Value),
}

fn node(name: &str, config: &str) -> Value {
    let uncordon = format!("uncordon-{config}");
    let annotations = json!({CURRENT_CONFIG: config, DESIRED_CONFIG: config, STATE: DONE,
        DESIRED_DRAIN: uncordon, LAST_APPLIED_DRAIN: uncordon});
    let metadata = json!({"name": name, "labels": {LABEL: ""}, "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": readiness("True")["status"]})
}

fn readiness(status: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": status}]}})
}
