//! Pools of node configuration.

use std::time::Duration;

use nodewright_api::machine_config::{API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, ROLE, WORKER};
use nodewright_runtime::leadership::tokio_clock;
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{manager::Counted, table::Table};

pub(crate) const CONFIGS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
pub(crate) const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
pub(crate) const NODES: &str = "/api/v1/nodes";

const POOL_COUNT: usize = 10;
const NODES_OF_POOL: usize = 50;
/// The first one of each pool is of all pools.
const CONFIGS_OF_POOL: usize = 10;
/// How often each Node beats, and how many times while the pools are at rest.
const BEAT: Duration = Duration::from_mins(1);
const BEATS: usize = 10;

/// Renders the configurations of pools, lets them rest, and changes a MachineConfig that is of all.
pub(crate) async fn run() -> Table {
    let clock = tokio_clock("2026-06-01T12:00:00Z".parse().expect("a time"));
    let wall = clock.clone();
    let server = ApiServer::with_time(move || wall.wall());
    server.keep_no_requests();
    for number in 0..POOL_COUNT * NODES_OF_POOL {
        server.seed(
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node(number)},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        );
    }
    for number in 0..POOL_COUNT * CONFIGS_OF_POOL {
        seed_config(&server, number);
    }
    let controllers = ["kubelet-config", "machine-config-pool"];
    let size = format!("{POOL_COUNT} pools of {NODES_OF_POOL} nodes");
    let mut counted = Counted::start(size, &server, None, clock, &controllers);
    counted.settle("the start", || true).await;

    counted.begin();
    for number in 0..POOL_COUNT {
        seed_pool(&server, number);
    }
    counted.settle("the rendering", || targets(&server, &[]).len() == POOL_COUNT).await;
    follow(&server);
    counted.settle("the first configuration", || true).await;
    counted.end("1 created");

    counted.begin();
    for beat in 0..BEATS {
        each_node(&server, |node, _| {
            node["status"]["conditions"][0]["lastHeartbeatTime"] = format!("2026-06-01T12:00:{beat:02}Z").into();
        });
        sleep(BEAT).await;
    }
    counted.end("2 at rest");

    counted.begin();
    let former = targets(&server, &[]);
    server.change(&format!("{CONFIGS}/{}", config(0)), |config| config["spec"]["kernelArguments"] = json!(["a"]));
    counted.settle("the change", || targets(&server, &former).len() == POOL_COUNT).await;
    follow(&server);
    counted.settle("the second configuration", || true).await;
    counted.end("3 changed");
    let mut table = counted.into_table();
    // There is none: other blocks have this size.
    table.retain(|[_, _, count], _| count != "objects MachineSet");
    table
}

fn pool(number: usize) -> String {
    if number == 0 { WORKER.to_owned() } else { format!("pool-{number}") }
}

fn node(number: usize) -> String {
    format!("node-{number:03}")
}

fn config(number: usize) -> String {
    format!("config-{number:03}")
}

fn seed_pool(server: &ApiServer, number: usize) {
    let roles = json!([{"key": ROLE, "operator": "In", "values": [WORKER, pool(number)]}]);
    server.seed(
        POOLS,
        json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": pool(number)},
            "spec": {"machineConfigSelector": {"matchExpressions": roles}}}),
    );
}

fn seed_config(server: &ApiServer, number: usize) {
    let file = json!({"path": format!("/etc/file-{number}"), "contents": {"source": "data:,a"}, "mode": 420});
    let ignition = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}});
    server.seed(
        CONFIGS,
        json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
            "metadata": {"name": config(number), "labels": {ROLE: pool(number % POOL_COUNT)}},
            "spec": {"config": ignition}}),
    );
}

/// The targets of the pools, in their order, but for these.
fn targets(server: &ApiServer, former: &[String]) -> Vec<String> {
    let pools = server.objects(POOLS);
    let targets = pools.iter().filter_map(|pool| pool["spec"]["configuration"]["name"].as_str());
    targets.filter(|target| !former.iter().any(|it| it == target)).map(str::to_owned).collect()
}

/// Each Node runs what is the target of its pool.
fn follow(server: &ApiServer) {
    let targets = targets(server, &[]);
    each_node(server, |node, number| {
        let target = &targets[number % POOL_COUNT];
        node["metadata"]["annotations"] = json!({CURRENT_CONFIG: target, DESIRED_CONFIG: target});
    });
}

fn each_node(server: &ApiServer, change: impl Fn(&mut Value, usize)) {
    for number in 0..POOL_COUNT * NODES_OF_POOL {
        server.change(&format!("{NODES}/{}", node(number)), |node| change(node, number));
    }
}
