//! A pool that moves its nodes to another configuration, a tenth of them at once.

use std::time::Duration;

use nodewright_api::machine_config::{
    API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, ROLE, STATE, WORKER,
};
use nodewright_e2e_cloud::node_agent::{Act, Fault, Seen, next};
use nodewright_runtime::leadership::tokio_clock;
use nodewright_testing::{api_server::ApiServer, stand_in};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    manager::Counted,
    pools::{CONFIGS, NODES, POOLS},
    table::Table,
};

const POOL: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker";
const WORKER_LABEL: &str = "node-role.kubernetes.io/worker";
/// How long a Node boots, and in how many moments of a second the agents act.
const BOOT: Duration = Duration::from_secs(10);
const MOMENTS: u32 = 100;

/// The Nodes of the pool, with the agents on them. Each acts once a second, not all at the same time.
struct Fleet {
    server: ApiServer,
    members: Vec<Member>,
    moment: u32,
}

struct Member {
    path: String,
    disk: String,
    boots: Option<Instant>,
}

/// Moves a pool of so many nodes to another configuration.
pub(crate) async fn run(nodes: usize) -> Table {
    let clock = tokio_clock("2026-06-01T12:00:00Z".parse().expect("a time"));
    let wall = clock.clone();
    let server = ApiServer::with_time(move || wall.wall());
    server.keep_no_requests();
    server.seed(CONFIGS, config("first"));
    let spec = json!({"machineConfigSelector": {"matchLabels": {ROLE: WORKER}}, "maxUnavailable": "10%",
        "nodeSelector": {"matchLabels": {WORKER_LABEL: ""}}});
    server.seed(
        POOLS,
        json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": WORKER}, "spec": spec}),
    );
    let controllers = ["kubelet-config", "machine-config-pool", "node-drain"];
    let mut counted = Counted::start(format!("a pool of {nodes} nodes"), &server, None, clock, &controllers);
    counted.settle("the first target", || target(&server).is_some()).await;
    let first = target(&server).expect("the pool has a target");
    for number in 0..nodes {
        server.seed(NODES, node(number, &first));
    }
    counted.settle("the nodes", || true).await;
    let members =
        (0..nodes).map(|number| Member { path: format!("{NODES}/{}", name(number)), disk: first.clone(), boots: None });
    let mut fleet = Fleet { server: server.clone(), members: members.collect(), moment: 0 };
    let agents = AbortOnDropHandle::new(tokio::spawn(stand_in::polled(async move {
        loop {
            fleet.work();
            sleep(Duration::from_secs(1) / MOMENTS).await;
        }
    })));

    counted.begin();
    server.change(&format!("{CONFIGS}/motd"), |live| live["spec"] = config("second")["spec"].clone());
    let is_moved = || {
        let target = target(&server).filter(|target| *target != first);
        let nodes = server.objects(NODES);
        target.is_some_and(|target| nodes.iter().all(|node| annotation(node, CURRENT_CONFIG) == target))
    };
    counted.settle("the rollout", is_moved).await;
    let status = server.object(POOL).map(|pool| pool["status"]["updatedMachineCount"].clone());
    assert_eq!(status, Some(json!(nodes)), "the pool says that all nodes are updated");
    counted.end("1 rolled");
    drop(agents);
    counted.into_table()
}

impl Fleet {
    /// Lets those agents take a step whose moment it is.
    fn work(&mut self) {
        let own = self.members.iter_mut().skip(self.moment as usize).step_by(MOMENTS as usize);
        for member in own {
            member.step(&self.server);
        }
        self.moment = (self.moment + 1) % MOMENTS;
    }
}

impl Member {
    fn step(&mut self, server: &ApiServer) {
        if self.boots.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.boots.take().is_some() {
            server.change(&self.path, |node| set_ready(node, "True"));
        }
        let Some(node) = server.object(&self.path) else { return };
        match next(&Seen::read(|key| annotation(&node, key).to_owned()), &self.disk, &Fault::None) {
            Act::Wait => {}
            Act::Write(writes) => drop(server.change(&self.path, |node| {
                for (key, value) in writes {
                    node["metadata"]["annotations"][key] = value.into();
                }
            })),
            Act::Apply(config) => {
                self.disk = config;
                self.boots = Some(Instant::now() + BOOT);
                server.change(&self.path, |node| set_ready(node, "Unknown"));
            }
        }
    }
}

fn annotation<'a>(node: &'a Value, key: &str) -> &'a str {
    node["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

fn set_ready(node: &mut Value, status: &str) {
    node["status"]["conditions"][0]["status"] = status.into();
}

fn name(number: usize) -> String {
    format!("node-{number:04}")
}

fn node(number: usize, config: &str) -> Value {
    let uncordon = format!("uncordon-{config}");
    let annotations = json!({CURRENT_CONFIG: config, DESIRED_CONFIG: config, STATE: DONE,
        DESIRED_DRAIN: uncordon, LAST_APPLIED_DRAIN: uncordon});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name(number), "labels": {WORKER_LABEL: ""}, "annotations": annotations},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn config(text: &str) -> Value {
    let file = json!({"path": "/etc/motd", "contents": {"source": format!("data:,{text}")}, "mode": 420});
    json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": {"name": "motd", "labels": {ROLE: WORKER}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}}}})
}

fn target(server: &ApiServer) -> Option<String> {
    let pool = server.object(POOL)?;
    pool["spec"]["configuration"]["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}
