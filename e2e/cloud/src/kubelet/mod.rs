//! Kubelet stand-ins for the VMs of the cloud.
//!
//! A kubelet registers its Node, turns it Ready, renews the Lease, posts the status, and runs and ends the pods of the
//! Node. It can be ordered to be silent, to flap, or to register other names. One process runs thousands of kubelets:
//! each is a task that sleeps until its next request. All share one watch of Nodes and one of Pods.
//!
//! # Guarantees
//! * When [`Fleet::set`] reports that a machine is gone or silent, its kubelet sends no further requests. Requests that
//!   were sent may still arrive.
//! * Node status is written by strategic merge patch: a replace would conflict with the first writes of the control
//!   plane.
//! * `lastTransitionTime` changes only with the status of the condition, `lastHeartbeatTime` with every post.
//! * A pod is deleted with its UID as precondition.
//!
//! # Assumptions
//! * Node names of running machines are unique, unless a test wants otherwise.
//!
//! # Caveats
//! * A real kubelet registers once, at its start. This one registers again after its Node was deleted
//!   ([`Settings::register_again_after`]), which stands for a restart of the kubelet.
//! * A Node that exists under the name is adopted: its labels are updated, its provider id stays. A real kubelet does
//!   the same.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use kube::{Api, Client, Config};
use nodewright_runtime::leadership::Clock;
use nodewright_testing::stand_in;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use crate::{
    mirror::{Seen, Select, mirror},
    node_view::NodeView,
    request::RequestError,
};

mod agent;
mod node;
mod pod;
mod pods;
mod registry;
mod schedule;

use registry::Registry;

/// The label of every simulated Node, with the value `true`.
pub const SIMULATED_LABEL: &str = "nodewright.dev/simulated";
/// An annotation of pods: the seconds that the pod takes to end, or `never`. At the end of its grace period the pod is
/// killed, except for `never`.
pub const TERMINATION_ANNOTATION: &str = "simulated.nodewright.dev/termination-seconds";

/// The namespace of the kubelets' Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The `User-Agent` of the kubelets.
pub const AGENT: HeaderValue = HeaderValue::from_static(concat!("simulated-kubelet/", env!("CARGO_PKG_VERSION")));
/// The maximum number of pending requests of all kubelets together, without watches.
const REQUESTS_AT_ONCE: usize = 32;
/// The capacity of the channels from watches to their readers.
const BACKLOG: usize = 1_024;

/// The behavior of kubelets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The time from boot to Ready.
    pub ready_after: Duration,
    /// Whether the Lease is renewed, and an unchanged status posted.
    pub heartbeats: bool,
    /// The time between two renewals of the Lease.
    pub lease_period: Duration,
    /// The duration of the Lease.
    pub lease_duration_seconds: i32,
    /// The time between two posts of an unchanged status.
    pub status_period: Duration,
    /// The relative deviation of both periods.
    pub jitter: f64,
    /// The time from the deletion of a Node until its running machine registers it again. `None`: never.
    pub register_again_after: Option<Duration>,
    /// The time from the binding of a pod until it runs.
    pub pod_start_after: Duration,
    /// The time that a pod takes to end, if its grace period is not shorter.
    pub pod_ends_after: Duration,
    /// The reported version of the kubelet.
    pub kubelet_version: &'static str,
    /// The seed of random values.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ready_after: Duration::from_secs(1),
            heartbeats: true,
            lease_period: Duration::from_secs(10),
            lease_duration_seconds: 40,
            status_period: Duration::from_mins(5),
            jitter: 0.04,
            register_again_after: Some(Duration::from_secs(5)),
            pod_start_after: Duration::from_millis(200),
            pod_ends_after: Duration::from_secs(1),
            kubelet_version: "v1.36.0",
            seed: 0,
        }
    }
}

/// A machine, for its kubelet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeletSpec {
    /// The Node names that it registers.
    pub node_names: Vec<String>,
    /// `spec.providerID` of its Nodes.
    pub provider_id: String,
    /// Labels in addition to those that every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// Taints at the registration.
    pub taints: Vec<Taint>,
    /// Whether it leaves addresses, provider id and instance type to a cloud controller manager, as with `--cloud-provider=external`.
    pub has_external_cloud_provider: bool,
    /// The label `node.kubernetes.io/instance-type`.
    pub instance_type: String,
    /// Cores of the machine.
    pub cores: u32,
    /// Memory of the machine in GiB.
    pub memory_gib: u32,
    /// The address `InternalIP`.
    pub address: String,
    /// Whether it reports nothing.
    pub silent: bool,
    /// Whether it reports `NotReady`.
    pub not_ready: bool,
    /// If set, it alternates between `NotReady` and Ready in phases of this length, starting at `behavior_since`.
    pub flap: Option<Duration>,
    /// When its behavior was ordered.
    pub behavior_since: Timestamp,
    /// When the machine booted.
    pub running_since: Timestamp,
}

/// The state that all kubelets share.
struct Shared {
    client: Client,
    settings: Settings,
    clock: Arc<dyn Clock>,
    registry: Arc<Registry>,
    in_flight: Semaphore,
}

impl Shared {
    /// Sends a request when fewer than the maximum are pending.
    async fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
        // The semaphore is never closed.
        let _permit = self.in_flight.acquire().await.ok();
        crate::request::request(request).await
    }
}

/// All kubelets of the process. Dropping it ends them.
pub struct Fleet {
    shared: Arc<Shared>,
    machines: Mutex<BTreeMap<String, Vec<Kubelet>>>,
    /// The watches and their readers.
    _tasks: JoinSet<()>,
}

/// The kubelet of a machine under one Node name.
#[derive(Debug)]
struct Kubelet {
    node_name: String,
    spec: watch::Sender<KubeletSpec>,
    task: AbortHandle,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fleet {
    /// No kubelets yet, for the cluster of this configuration.
    pub fn start(mut config: Config, settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, kube::Error> {
        config.headers.push((USER_AGENT, AGENT));
        // Kubelets retry by themselves.
        config.default_retry = false;
        Ok(Self::with_client(Client::try_from(config)?, settings, clock))
    }

    /// No kubelets yet, for the cluster of this client. Needs a tokio runtime.
    pub fn with_client(client: Client, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let registry = Arc::new(Registry::default());
        let shared = Arc::new(Shared {
            client: client.clone(),
            settings,
            clock,
            registry: Arc::clone(&registry),
            in_flight: Semaphore::new(REQUESTS_AT_ONCE),
        });
        let mut tasks = JoinSet::new();
        let (to_nodes, mut nodes) = mpsc::channel::<Seen<NodeView>>(BACKLOG);
        let select = Select { labels: Some("nodewright.dev/simulated=true"), ..Select::default() };
        tasks.spawn(stand_in::polled(mirror(Api::all(client.clone()), select, to_nodes)));
        tasks.spawn(stand_in::polled(async move {
            while let Some(seen) = nodes.recv().await {
                registry.take(seen);
            }
        }));
        let (to_pods, pods) = mpsc::channel::<Seen<Pod>>(BACKLOG);
        let select = Select { fields: Some("spec.nodeName!="), ..Select::default() };
        tasks.spawn(stand_in::polled(mirror(Api::all(client), select, to_pods)));
        tasks.spawn(stand_in::polled(pods::run(Arc::clone(&shared), pods)));
        Self { shared, machines: Mutex::default(), _tasks: tasks }
    }

    /// Sets the state of a machine. `None`: it is gone. Needs a tokio runtime.
    pub fn set(&self, machine: &str, spec: Option<KubeletSpec>) {
        let mut machines = self.machines.lock();
        let Some(spec) = spec else {
            machines.remove(machine);
            return;
        };
        let kubelets = machines.entry(machine.to_owned()).or_default();
        kubelets.retain(|kubelet| spec.node_names.contains(&kubelet.node_name));
        for node_name in &spec.node_names {
            match kubelets.iter().find(|kubelet| kubelet.node_name == *node_name) {
                Some(kubelet) => drop(kubelet.spec.send_if_modified(|known| {
                    let changed = *known != spec;
                    known.clone_from(&spec);
                    changed
                })),
                None => kubelets.push(self.spawn(node_name, spec.clone())),
            }
        }
    }

    fn spawn(&self, node_name: &str, spec: KubeletSpec) -> Kubelet {
        let (sender, receiver) = watch::channel(spec);
        let agent = agent::run(Arc::clone(&self.shared), node_name.to_owned(), receiver);
        // No join set: the handle ends the task, which has no result.
        let task = tokio::spawn(stand_in::polled(agent)).abort_handle();
        Kubelet { node_name: node_name.to_owned(), spec: sender, task }
    }
}
