//! Pools of node configuration at rest, among Nodes that beat: nothing is rendered, and nothing is written.
//!
//! What is counted are renderings and writes of a manager in five minutes of simulated time, not seconds of this computer.

use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};

use nodewright_api::{
    machine_config::{API_VERSION, CURRENT_CONFIG, DESIRED_CONFIG, ROLE, WORKER},
    served::Served,
};
use nodewright_controllers::{
    machine::MachineSettings,
    machine_config_pool,
    orphan_vm::OrphanVmSettings,
    shared::{CONTROL, TARGET, fleet::FleetSettings, ownership::NodeProof},
    wiring::Wiring,
};
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    leadership::{Clock, checked_clock, tokio_clock},
    manager::{Manager, Options},
};
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

type TestResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const CONFIGS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
const NODES: &str = "/api/v1/nodes";

const POOL_COUNT: usize = 50;
const CONFIG_COUNT: usize = 2_000;
const NODE_COUNT: usize = 1_000;
/// How long nothing may happen, and how often each Node beats.
const QUIET: Duration = Duration::from_mins(5);
const BEAT: Duration = Duration::from_secs(10);
/// What is rendered becomes the target after seconds; status writes wait for half a minute at most.
const SETTLED: Duration = Duration::from_mins(3);

/// An API server with all objects, and a manager of the controllers of node configuration.
struct Fixture {
    server: ApiServer,
    metrics: Arc<Metrics>,
    _manager: AbortOnDropHandle<()>,
}

fn pool(number: usize) -> String {
    if number == 0 { WORKER.to_owned() } else { format!("pool-{number}") }
}

fn seed(server: &ApiServer) {
    for number in 0..POOL_COUNT {
        let roles = json!([{"key": ROLE, "operator": "In", "values": [WORKER, pool(number)]}]);
        let spec = json!({"machineConfigSelector": {"matchExpressions": roles}});
        server.seed(
            POOLS,
            json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": pool(number)}, "spec": spec}),
        );
    }
    for number in 0..CONFIG_COUNT {
        let file = json!({"path": format!("/etc/file-{number}"), "contents": {"source": "data:,a"}, "mode": 420});
        let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}});
        let labels = json!({ROLE: pool(number % POOL_COUNT)});
        server.seed(
            CONFIGS,
            json!({"apiVersion": API_VERSION, "kind": "MachineConfig",
                "metadata": {"name": format!("config-{number:04}"), "labels": labels}, "spec": {"config": config}}),
        );
    }
    for number in 0..NODE_COUNT {
        server.seed(
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}")},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        );
    }
}

impl Fixture {
    fn start() -> TestResult<Self> {
        let clock = checked_clock(tokio_clock("2026-01-01T00:00:00Z".parse()?));
        let wall = Arc::clone(&clock);
        let server = ApiServer::with_time(move || wall.wall());
        seed(&server);
        let metrics = Arc::new(Metrics::new());
        let client = server.client();
        let mut manager = Manager::new(Options {
            clients: BTreeMap::from([(CONTROL, client.clone()), (TARGET, client.clone())]),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            ..Options::new("nodewright", "0", CONTROL, client)
        });
        let wiring = wiring(clock, &metrics);
        for controller in ["kubelet-config", "machine-config-pool"] {
            wiring.add(&mut manager, controller)?;
        }
        let running = async move { manager.run(vec![], CancellationToken::new()).await.expect("the manager runs on") };
        Ok(Self { server, metrics, _manager: AbortOnDropHandle::new(tokio::spawn(running)) })
    }

    fn renders(&self) -> TestResult<usize> {
        let text = self.metrics.encode()?;
        let line = text.lines().find(|line| line.starts_with("machine_config_renders_total"));
        let value = line.and_then(|line| line.split(' ').nth(1)).ok_or("there is no count of renderings")?;
        Ok(value.parse()?)
    }

    /// The targets of the pools that have one.
    fn targets(&self) -> Vec<String> {
        let pools = self.server.objects(POOLS);
        pools.iter().filter_map(|pool| pool["spec"]["configuration"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// The writes of the manager since the last call. It reads besides: whether the API server is ready, and lists again.
    fn writes(&self) -> Vec<String> {
        let is_read = |verb: &str| matches!(verb, "get" | "list" | "watch");
        let writes = self.server.take_requests().into_iter().filter(|request| !is_read(request.verb));
        writes.map(|request| format!("{} {}", request.verb, request.path)).collect()
    }

    /// Each Node says that it lives, and what it runs is the target of a pool.
    fn beat(&self, targets: &[String], beat: u64) {
        for number in 0..NODE_COUNT {
            let target = &targets[number % targets.len()];
            self.server.change(&format!("{NODES}/node-{number}"), |node| {
                node["metadata"]["annotations"] = json!({CURRENT_CONFIG: target, DESIRED_CONFIG: target});
                let time = format!("2026-01-01T00:{:02}:{:02}Z", beat / 6, beat % 6 * 10);
                node["status"]["conditions"][0]["lastHeartbeatTime"] = Value::from(time);
            });
        }
    }
}

fn wiring(clock: Arc<dyn Clock>, metrics: &Arc<Metrics>) -> Wiring {
    let served = Served {
        missing_kinds: vec![],
        machine_class_status: true,
        machine_set_selector: true,
        machine_deployment_selector: true,
    };
    Wiring {
        namespace: "default".to_owned(),
        schemas: served.into(),
        driver: None,
        settings: MachineSettings::default(),
        orphan_vms: OrphanVmSettings::default(),
        fleet: FleetSettings::default(),
        proof: NodeProof::Here,
        machine_config: machine_config_pool::PoolSettings::default(),
        machine_config_templates: None,
        clock,
        spans: Spans::disabled(),
        metrics: Arc::clone(metrics),
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "takes a minute or two: make quiet-pools"]
async fn pools_at_rest_are_neither_rendered_nor_written() -> TestResult {
    let fixture = Fixture::start()?;
    let begun = Instant::now();
    while fixture.targets().len() < POOL_COUNT {
        assert!(begun.elapsed() < SETTLED, "{} of {POOL_COUNT} pools have a target", fixture.targets().len());
        sleep(Duration::from_secs(1)).await;
    }
    let targets = fixture.targets();
    fixture.beat(&targets, 0);
    sleep(SETTLED).await;
    let (renders, made) = (fixture.renders()?, fixture.writes().len());
    assert!(renders >= POOL_COUNT && made > POOL_COUNT, "{renders} renderings and {made} writes at first");

    let beats = QUIET.as_secs() / BEAT.as_secs();
    for beat in 1..=beats {
        fixture.beat(&targets, beat);
        sleep(BEAT).await;
    }
    let (more, writes) = (fixture.renders()? - renders, fixture.writes());
    println!("{beats} beats of {NODE_COUNT} Nodes: {more} renderings, {} writes", writes.len());
    assert_eq!((more, writes), (0, vec![]));

    // One that changes is rendered, for its pool alone: the count can be another one than zero.
    fixture.server.change(&format!("{CONFIGS}/config-0007"), |config| config["spec"]["kernelArguments"] = json!(["a"]));
    sleep(Duration::from_mins(1)).await;
    assert_eq!(
        (fixture.renders()? - renders, fixture.targets().iter().filter(|it| !targets.contains(it)).count()),
        (1, 1)
    );
    assert!(fixture.writes().iter().any(|request| request.starts_with("patch ")));
    Ok(())
}
