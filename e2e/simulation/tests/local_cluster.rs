//! Cloud, driver, kubelets, API server and control plane in one process, in one thread, on paused time, without ports.
//!
//! The trace is compared byte by byte: the same run twice in one process, and in another process.

use std::{error::Error, fmt::Write as _, future::Future, path::PathBuf, process::Command, sync::Arc, time::Duration};

use http::HeaderValue;
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use nodewright_driver::{Driver, MachineRequest};
use nodewright_driver_contract as contract;
use nodewright_driver_simulated::{Options, SimulatedDriver};
use nodewright_e2e_cloud::{
    self as cloud, KubeletOrder, LocalCloud,
    kubelet::{self, Fleet},
};
use nodewright_e2e_simulation::control_plane::{self, ControlPlane, agent_client};
use nodewright_runtime::leadership::{Clock, tokio_clock};
use nodewright_testing::api_server::{ApiServer, Fault, Match, Pace, RequestRecord};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    runtime::RngSeed,
    time::{Instant, sleep},
};

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

/// The environment variable with the file that a run writes its trace into, for the comparison with another process.
const TRACE_VARIABLE: &str = "NODEWRIGHT_TEST_TRACE";

const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const PODS_OF_ALL: &str = "/api/v1/pods";
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Fixture {
    clock: Arc<dyn Clock>,
    server: ApiServer,
    cloud: LocalCloud,
    driver: SimulatedDriver,
    _control_plane: ControlPlane,
}

impl Fixture {
    fn new(seed: u64) -> TestResult<Self> {
        let clock: Arc<dyn Clock> = tokio_clock("2026-01-01T00:00:00Z".parse()?);
        let wall = Arc::clone(&clock);
        let server = ApiServer::with_time(move || wall.wall());
        for name in ["default", "kube-node-lease"] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            server.seed("/api/v1/namespaces", namespace);
        }
        let settings = kubelet::Settings { seed, ..kubelet::Settings::default() };
        let fleet = Fleet::with_client(agent_client(&server, kubelet::AGENT), settings, Arc::clone(&clock));
        let settings = cloud::Settings { seed, ..cloud::Settings::default() };
        let memory = cloud::memory::Memory::default();
        let cloud = LocalCloud::start(settings, memory, Arc::clone(&clock), Some(fleet));
        let driver = SimulatedDriver::with_service(cloud.service(), &Options::new("http://cloud"))?;
        let client = agent_client(&server, control_plane::AGENT);
        let control_plane = ControlPlane::start(client, control_plane::Settings::default(), Arc::clone(&clock));
        Ok(Self { clock, server, cloud, driver, _control_plane: control_plane })
    }

    fn object<T: DeserializeOwned>(&self, collection: &str, name: &str) -> Option<T> {
        serde_json::from_value(Arc::unwrap_or_clone(self.server.object(&format!("{collection}/{name}"))?)).ok()
    }

    fn node(&self, name: &str) -> Option<NodeLook> {
        Some(NodeLook(self.object(NODES, name)?))
    }

    fn lease_age(&self, name: &str) -> Option<Duration> {
        let lease: Lease = self.object(LEASES, name)?;
        Duration::try_from(lease.spec?.renew_time?.0.duration_until(self.clock.wall())).ok()
    }

    /// Waits until a condition holds, and returns how long that took.
    async fn until(&self, what: &str, within: Duration, is_so: impl Fn(&Self) -> bool) -> TestResult<Duration> {
        let since = Instant::now();
        while !is_so(self) {
            if since.elapsed() > within {
                let nodes = serde_json::to_string_pretty(&self.server.objects(NODES))?;
                let pods = serde_json::to_string_pretty(&self.server.objects(PODS))?;
                return Err(format!("waited in vain for {what}; the nodes are {nodes}, the pods {pods}").into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(since.elapsed())
    }

    async fn until_ready(&self, name: &str) -> TestResult {
        let is_ready = |fixture: &Self| {
            fixture.node(name).is_some_and(|node| node.ready().0 == "True" && node.taints().is_empty())
        };
        self.until(&format!("node {name} to be Ready without taints"), Duration::from_secs(15), is_ready)
            .await
            .map(drop)
    }

    fn pod(&self, name: &str) -> Value {
        let spec = json!({ "containers": [{ "name": "main", "image": "example" }] });
        let metadata = json!({ "name": name, "namespace": "default" });
        self.server.seed(PODS, json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
    }

    fn pod_is_ready(&self, name: &str) -> Option<bool> {
        let pod: Pod = self.object(PODS, name)?;
        let conditions = pod.status?.conditions?;
        conditions.iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.status == "True")
    }

    /// The whole trace, for comparison.
    fn trace(&self) -> String {
        let mut trace = String::new();
        for RequestRecord { verb, path, query, user_agent, content_type, body, status, .. } in self.server.requests() {
            let body = body.unwrap_or_default();
            let _ = writeln!(trace, "{verb} {path}?{query} by {user_agent} {content_type} {body}: {status}");
        }
        for event in self.cloud.history() {
            let _ = writeln!(trace, "{}", serde_json::to_string(&event).unwrap_or_default());
        }
        trace
    }
}

/// A Node, with helpers for reading it.
struct NodeLook(Node);

impl NodeLook {
    /// Status, reason, message, last heartbeat.
    fn ready(&self) -> (String, String, String, Timestamp) {
        let conditions = self.0.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let Some(ready) = conditions.iter().find(|condition| condition.type_ == "Ready").cloned() else {
            return Default::default();
        };
        let heartbeat = ready.last_heartbeat_time.map(|time| time.0).unwrap_or_default();
        (ready.status, ready.reason.unwrap_or_default(), ready.message.unwrap_or_default(), heartbeat)
    }

    fn taints(&self) -> Vec<String> {
        let taints = self.0.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut taints: Vec<String> = taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        taints.sort_unstable();
        taints
    }

    fn provider_id(&self) -> Option<&str> {
        self.0.spec.as_ref()?.provider_id.as_deref()
    }
}

fn machine(name: &str) -> MachineRequest {
    contract::machine(name, contract::class(&json!({ "cluster": "c", "labels": { "pool": "a" } })))
}

/// Runs a future on paused time in this thread. The runtime has no network: code that opened a port would panic.
fn simulated<T>(run: impl Future<Output = TestResult<T>>) -> TestResult<T> {
    // Tokio chooses at random which of several receivers of a channel wakes first, and this seed determines the choice.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).rng_seed(RngSeed::from_bytes(b"always the same"));
    builder.build()?.block_on(run)
}

const UNREACHABLE: [&str; 2] =
    ["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"];

/// Machines from their creation by the driver to the end of their kubelets.
async fn life(seed: u64) -> TestResult<String> {
    let fixture = Fixture::new(seed)?;
    for name in ["a", "b", "c"] {
        let made = fixture.driver.create(machine(name)).await?;
        fixture.until_ready(name).await?;
        let node = fixture.node(name).ok_or("no node")?;
        assert_eq!(node.provider_id(), Some(made.provider_id.as_str()));
        assert_eq!(
            node.0.metadata.labels.as_ref().and_then(|labels| labels.get("pool")).map(String::as_str),
            Some("a")
        );
    }
    let first_heartbeat = fixture.node("a").ok_or("no node")?.ready().3;
    for minute in 0..10 {
        // Lost watches and lost answers: the order of discoveries and retries is part of the comparison.
        match minute % 3 {
            0 => fixture.server.break_watches(),
            1 => fixture.server.fail_times(3, Match::verb("patch"), Fault::LoseAnswer),
            _ => {}
        }
        for _ in 0..6 {
            sleep(Duration::from_secs(10)).await;
            for name in ["a", "b", "c"] {
                let age = fixture.lease_age(name).ok_or("no lease")?;
                assert!(age <= Duration::from_secs(12), "the lease of {name} is {age:?} old");
            }
        }
    }
    let (status, reason, _, heartbeat) = fixture.node("a").ok_or("no node")?.ready();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "KubeletReady"));
    assert!(Duration::try_from(first_heartbeat.duration_until(heartbeat))? > Duration::from_mins(4), "{heartbeat}");

    fixture.driver.delete(machine("a")).await?;
    let lost = |fixture: &Fixture| fixture.node("a").is_some_and(|node| node.ready().0 == "Unknown");
    let passed = fixture.until("node a to be Unknown", Duration::from_mins(2), lost).await?;
    // The last heartbeat was up to 10 s before. The controller noticed it within 5 s, and the first check more than 40 s later
    // misses the next one.
    assert!((Duration::from_secs(29)..Duration::from_secs(51)).contains(&passed), "after {passed:?}");
    let (_, reason, message, _) = fixture.node("a").ok_or("no node")?.ready();
    assert_eq!((reason.as_str(), message.as_str()), ("NodeStatusUnknown", "Kubelet stopped posting node status."));
    sleep(Duration::from_secs(6)).await;
    assert_eq!(fixture.node("a").ok_or("no node")?.taints(), UNREACHABLE);
    assert_eq!(fixture.node("b").ok_or("no node")?.ready().0, "True");
    assert_eq!(fixture.cloud.vms().len(), 2);
    Ok(fixture.trace())
}

#[test]
fn a_machine_lives_and_dies_the_same_way_each_time() -> TestResult {
    let trace = simulated(life(7))?;
    if let Some(path) = std::env::var_os(TRACE_VARIABLE) {
        return Ok(std::fs::write(path, trace)?);
    }
    let differing = trace.lines().zip(simulated(life(7))?.lines()).position(|(one, other)| one != other);
    assert_eq!(differing, None, "the first line that differs in the same process");

    let directory = tempfile::tempdir()?;
    let path: PathBuf = directory.path().join("trace");
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", "a_machine_lives_and_dies_the_same_way_each_time"]).env(TRACE_VARIABLE, &path);
    assert!(child.output()?.status.success());
    assert!(std::fs::read_to_string(&path)? == trace, "another process has another trace");
    assert!(simulated(life(8))? != trace, "another seed leads elsewhere");
    Ok(())
}

#[test]
fn a_kubelet_that_speaks_again_brings_its_node_and_pods_back() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.driver.create(machine("a")).await?;
        fixture.until_ready("a").await?;
        fixture.pod("p");
        let soon = Duration::from_secs(5);
        fixture.until("the pod to run", soon, |fixture| fixture.pod_is_ready("p") == Some(true)).await?;
        let vm = fixture.cloud.vms().remove(0).id;
        fixture.cloud.kubelet(&vm, KubeletOrder::Silence)?;
        let minutes = Duration::from_mins(2);
        fixture.until("the pod not to be ready", minutes, |fixture| fixture.pod_is_ready("p") == Some(false)).await?;
        assert_eq!(fixture.node("a").ok_or("no node")?.ready().0, "Unknown");
        fixture.cloud.kubelet(&vm, KubeletOrder::Revive)?;
        fixture.until_ready("a").await?;
        fixture.until("the pod to be ready again", soon, |fixture| fixture.pod_is_ready("p") == Some(true)).await?;
        fixture.cloud.kubelet(&vm, KubeletOrder::NotReady)?;
        let tainted = |fixture: &Fixture| {
            let expected = ["node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"];
            fixture.node("a").is_some_and(|node| node.ready().0 == "False" && node.taints() == expected)
        };
        fixture.until("the taints of a node that is not ready", Duration::from_secs(10), tainted).await.map(drop)
    })
}

#[test]
fn pods_leave_a_node_that_is_lost_and_one_that_is_gone() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.driver.create(machine("a")).await?;
        fixture.until_ready("a").await?;
        fixture.pod("p");
        fixture
            .until("the pod to run", Duration::from_secs(5), |fixture| fixture.pod_is_ready("p") == Some(true))
            .await?;
        fixture.cloud.kill(&fixture.cloud.vms()[0].id)?;
        let is_evicted = |fixture: &Fixture| {
            let pod: Option<Pod> = fixture.object(PODS, "p");
            pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
        };
        let passed = fixture.until("the pod to be evicted", Duration::from_mins(10), is_evicted).await?;
        // The time until Unknown, one more check for the taint, then the 300 s that all pods tolerate.
        assert!((Duration::from_secs(329)..Duration::from_secs(357)).contains(&passed), "after {passed:?}");
        sleep(Duration::from_mins(5)).await;
        assert!(is_evicted(&fixture), "nobody is there to end it");
        fixture.server.remove(&format!("{NODES}/a"));
        let is_gone = |fixture: &Fixture| fixture.server.object(&format!("{PODS}/p")).is_none();
        let passed = fixture.until("the pod to be collected", Duration::from_mins(2), is_gone).await?;
        assert!((Duration::from_secs(40)..Duration::from_secs(62)).contains(&passed), "after {passed:?}");
        Ok(())
    })
}

#[test]
fn a_node_that_nobody_plays_is_given_a_minute() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.server.seed(NODES, json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a" } }));
        let lost = |fixture: &Fixture| fixture.node("a").is_some_and(|node| node.ready().0 == "Unknown");
        let passed = fixture.until("the node to be Unknown", Duration::from_mins(2), lost).await?;
        assert!((Duration::from_mins(1)..Duration::from_secs(67)).contains(&passed), "after {passed:?}");
        let (_, reason, message, _) = fixture.node("a").ok_or("no node")?.ready();
        assert_eq!(
            (reason.as_str(), message.as_str()),
            ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
        );
        let tainted = |fixture: &Fixture| fixture.node("a").is_some_and(|node| node.taints() == UNREACHABLE);
        fixture.until("its taints", Duration::from_secs(6), tainted).await.map(drop)
    })
}

#[test]
fn a_cordoned_node_is_tainted_and_takes_no_pods() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.driver.create(machine("a")).await?;
        fixture.until_ready("a").await?;
        let cordon = |is_cordoned: bool| {
            fixture.server.change(&format!("{NODES}/a"), |node| node["spec"]["unschedulable"] = is_cordoned.into());
        };
        cordon(true);
        fixture.pod("p");
        sleep(Duration::from_secs(20)).await;
        assert_eq!(fixture.node("a").ok_or("no node")?.taints(), ["node.kubernetes.io/unschedulable:NoSchedule"]);
        assert_eq!(fixture.pod_is_ready("p"), None);
        cordon(false);
        fixture
            .until("the pod to run", Duration::from_secs(5), |fixture| fixture.pod_is_ready("p") == Some(true))
            .await?;
        fixture.until_ready("a").await
    })
}

/// A watch that is cut, deaf or black-holed never blinds a component permanently.
#[test]
fn kubelets_and_controllers_survive_their_watches() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.driver.create(machine("a")).await?;
        fixture.until_ready("a").await?;
        fixture.server.break_watches();
        fixture.server.compact();
        fixture.pod("p");
        fixture
            .until("a pod to run", Duration::from_secs(5), |fixture| fixture.pod_is_ready("p") == Some(true))
            .await?;
        // The watches of pods report nothing any more, not even their end: only lists help.
        fixture.server.pace_watches(Match::verb("watch").path(PODS_OF_ALL), Pace::Held);
        fixture.pod("q");
        sleep(Duration::from_mins(1)).await;
        assert_eq!(fixture.pod_is_ready("q"), None, "nobody has heard of it");
        fixture
            .until("a pod to run nevertheless", Duration::from_mins(5), |fixture| {
                fixture.pod_is_ready("q") == Some(true)
            })
            .await?;
        Ok(())
    })
}

#[test]
fn who_asks_is_named() -> TestResult {
    simulated(async {
        let fixture = Fixture::new(1)?;
        fixture.driver.create(machine("a")).await?;
        fixture.until_ready("a").await?;
        let known = [kubelet::AGENT, control_plane::AGENT, HeaderValue::from_static("")];
        let agents: Vec<String> = fixture.server.requests().into_iter().map(|request| request.user_agent).collect();
        assert!(agents.iter().all(|agent| known[..2].iter().any(|known| known == agent)), "{agents:?}");
        Ok(())
    })
}
