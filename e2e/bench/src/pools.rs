//! `nodewright-bench pools`: pools of node configuration at rest, among Nodes that beat, cause no rendering and no write.
//!
//! ```text
//! MachineConfigs, pools, Nodes ──▶ targets ──▶ nothing is written any more ──▶ count ──▶ one MachineConfig changes ──▶ count
//! ```

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use nodewright_api::{
    conditions::machine_config_pool::RENDER_DEGRADED,
    machine_config::{API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, MachineConfig, MachineConfigPool, ROLE, WORKER},
};
use nodewright_e2e_lab::{control_plane::ControlPlaneError, devcluster::DevclusterOptions, process::command::Shutdown};
use serde_json::{Value, json};

use crate::{
    error::BenchError,
    measure::{Measured, is_counted_write, print},
};

/// How many requests of ours wait for their answers at once.
const AT_ONCE: usize = 16;
/// How long all pools may take until they have a target.
const TARGET_TIMEOUT: Duration = Duration::from_mins(5);
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The metric that counts renderings.
const RENDERS: &str = "machine_config_renders_total";

/// Check that pools at rest cause no rendering and no write while Nodes beat.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolsArguments {
    /// Number of pools
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    pools: u32,
    /// Number of MachineConfigs, at least one for each pool
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    configs: u32,
    /// Number of Nodes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Seconds between two beats of a Node
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    beat_seconds: u64,
    /// Minutes to watch
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if anything was rendered or written at rest, or if a change is not counted.
pub(crate) async fn run(arguments: PoolsArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: PoolsArguments) -> Result<(), BenchError> {
    ensure(arguments.configs >= arguments.pools, || "each pool needs a MachineConfig".to_owned())?;
    let options = DevclusterOptions {
        manager_flags: arguments.manager_flags.clone(),
        bare: true,
        ..DevclusterOptions::default()
    };
    let mut measured: Measured = Measured::start(&options).await?;
    measured.scale(0, TARGET_TIMEOUT, |_| ()).await?;
    let cluster = Pools { client: measured.client(), sizes: arguments };
    cluster.create().await?;
    let targets = cluster.wait_for_targets().await?;
    cluster.beat(&targets, 0).await?;
    measured.settle(|_| ()).await?;
    let PoolsArguments { pools, configs, nodes, minutes, .. } = cluster.sizes;
    let before = renders(&mut measured).await?;
    ensure(before >= u64::from(pools), || format!("{before} renderings have made the targets of {pools} pools"))?;
    print(&format!("{pools} pools, {configs} MachineConfigs and {nodes} Nodes; {before} renderings until they rest"))?;

    let beats = watch(&cluster, &mut measured, &targets).await?;
    let (rendered, writes) = (renders(&mut measured).await? - before, count_writes(&mut measured)?);
    print(&format!("{beats} beats in {minutes} minutes: {rendered} renderings, {writes} writes"))?;
    ensure(rendered == 0 && writes == 0, || "there should be none at rest".to_owned())?;

    // Where a change is not counted, nothing is proven.
    cluster.change_one().await?;
    let changed = cluster.wait_for_others(&targets).await?;
    measured.settle(|_| ()).await?;
    let rendered = renders(&mut measured).await? - before;
    print(&format!("one MachineConfig has changed: {rendered} renderings, {changed} targets"))?;
    ensure((rendered, changed) == (1, 1), || "one pool should be rendered once".to_owned())?;
    measured.stop().await
}

/// Lets the Nodes beat for the minutes to watch. Returns how often each did.
async fn watch(cluster: &Pools, measured: &mut Measured, targets: &[String]) -> Result<u64, BenchError> {
    let PoolsArguments { minutes, beat_seconds, .. } = cluster.sizes;
    let (since, period) = (Instant::now(), Duration::from_secs(beat_seconds));
    let mut beat = 0;
    while since.elapsed() < Duration::from_secs(60 * minutes) {
        let begun = Instant::now();
        beat += 1;
        cluster.beat(targets, beat).await?;
        measured.manager().check()?;
        tokio::time::sleep(period.saturating_sub(begun.elapsed())).await;
    }
    Ok(beat)
}

/// The writes of the manager since the last read.
fn count_writes(measured: &mut Measured) -> Result<usize, BenchError> {
    let mut writes = 0;
    for entry in measured.read()?.iter().filter(|entry| is_counted_write(entry)) {
        writes += 1;
        print(&format!("{}  {} {}  {}", entry.received, entry.verb, entry.uri, entry.code))?;
    }
    Ok(writes)
}

/// How often the manager has rendered.
async fn renders(measured: &mut Measured) -> Result<u64, BenchError> {
    let text = measured.manager().metrics().await?;
    let line = text.lines().find(|line| line.starts_with(RENDERS));
    let value = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|value| value.parse().ok());
    value.ok_or_else(|| BenchError::Failed(format!("the metrics have no {RENDERS}")))
}

/// Creates objects of a kind of cluster scope.
pub(crate) async fn create<K: Resource<DynamicType = ()>>(
    client: &Client,
    objects: impl IntoIterator<Item = Value>,
) -> Result<(), BenchError> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let create = async |object: Value| {
        let failed = ControlPlaneError::request(format!("create {object}"));
        let object = serde_json::from_value(object).map_err(|error| BenchError::Failed(error.to_string()))?;
        api.create(&PostParams::default(), &object).await.map_err(failed)?;
        Ok(())
    };
    stream::iter(objects.into_iter().map(create)).buffer_unordered(AT_ONCE).try_collect().await
}

pub(crate) fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), BenchError> {
    if holds { Ok(()) } else { Err(BenchError::Failed(problem())) }
}

/// The objects of the measurement.
struct Pools {
    client: Client,
    sizes: PoolsArguments,
}

fn pool_name(number: u32) -> String {
    if number == 0 { WORKER.to_owned() } else { format!("pool-{number}") }
}

fn config(number: u32, pools: u32) -> Value {
    let file = json!({"path": format!("/etc/file-{number}"), "contents": {"source": "data:,a"}, "mode": 420});
    let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}});
    json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
        "metadata": {"name": format!("config-{number}"), "labels": {ROLE: pool_name(number % pools)}},
        "spec": {"config": config}})
}

fn pool(number: u32) -> Value {
    let roles = json!([{"key": ROLE, "operator": "In", "values": [WORKER, pool_name(number)]}]);
    json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": pool_name(number)},
        "spec": {"machineConfigSelector": {"matchExpressions": roles}}})
}

fn node_name(number: u32) -> String {
    format!("beating-{number}")
}

impl Pools {
    /// All objects. The pools come last: each is rendered of all that it selects.
    async fn create(&self) -> Result<(), BenchError> {
        let PoolsArguments { pools, configs, nodes, .. } = self.sizes;
        let node = |number| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)}});
        create::<Node>(&self.client, (0..nodes).map(node)).await?;
        let all = (0..configs).map(|number| config(number, pools));
        create::<MachineConfig>(&self.client, all).await?;
        create::<MachineConfigPool>(&self.client, (0..pools).map(pool)).await
    }

    /// Each Node says that it lives, and that it runs the target of a pool.
    async fn beat(&self, targets: &[String], beat: u64) -> Result<(), BenchError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let (parameters, now) = (PatchParams::default(), jiff::Timestamp::now());
        let say = async |(number, target): (u32, &String)| {
            let name = node_name(number);
            let failed = || ControlPlaneError::request(format!("let Node {name} beat"));
            if beat == 0 {
                let runs = json!({"metadata": {"annotations": {CURRENT_CONFIG: target, DESIRED_CONFIG: target}}});
                nodes.patch(&name, &parameters, &Patch::Merge(runs)).await.map_err(failed())?;
            }
            let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now});
            let status = json!({"status": {"conditions": [ready]}});
            nodes.patch_status(&name, &parameters, &Patch::Merge(status)).await.map_err(failed())?;
            Ok(())
        };
        let all = (0..self.sizes.nodes).zip(targets.iter().cycle());
        stream::iter(all.map(say)).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The targets of the pools that have one, and say so.
    async fn targets(&self) -> Result<Vec<String>, BenchError> {
        let pools = Api::<MachineConfigPool>::all(self.client.clone());
        let listed = pools.list(&ListParams::default()).await;
        let listed = listed.map_err(ControlPlaneError::request("list MachineConfigPools"))?;
        let is_said = |pool: &MachineConfigPool| {
            let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|it| it.condition_type == RENDER_DEGRADED && it.status.as_str() == "False")
        };
        let said = listed.into_iter().filter(is_said);
        Ok(said.filter_map(|pool| pool.spec.configuration.name.filter(|name| !name.is_empty())).collect())
    }

    async fn wait_for_targets(&self) -> Result<Vec<String>, BenchError> {
        self.wait("a target of each pool", |targets| targets.len() == self.sizes.pools as usize).await
    }

    /// Waits until a pool has another target. Returns how many have.
    async fn wait_for_others(&self, known: &[String]) -> Result<usize, BenchError> {
        let others = |targets: &[String]| targets.iter().filter(|target| !known.contains(target)).count();
        Ok(others(&self.wait("another target", |targets| others(targets) > 0).await?))
    }

    async fn wait(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Result<Vec<String>, BenchError> {
        let since = Instant::now();
        loop {
            let targets = self.targets().await?;
            if is_so(&targets) {
                return Ok(targets);
            }
            let shown = || format!("{what} did not come within {TARGET_TIMEOUT:?}; {} pools have one", targets.len());
            ensure(since.elapsed() < TARGET_TIMEOUT, shown)?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Changes a MachineConfig that one pool alone selects.
    async fn change_one(&self) -> Result<(), BenchError> {
        let configs = Api::<MachineConfig>::all(self.client.clone());
        let last = format!("config-{}", self.sizes.pools.min(self.sizes.configs) - 1);
        let change = Patch::Merge(json!({"spec": {"kernelArguments": ["changed"]}}));
        let changed = configs.patch(&last, &PatchParams::default(), &change).await;
        Ok(changed.map(drop).map_err(ControlPlaneError::request(format!("change MachineConfig {last}")))?)
    }
}
