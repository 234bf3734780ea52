//! A kubelet stand-in for each VM of the cloud: all that the control plane sees of a machine.
//!
//! It registers the Node, turns it Ready, renews the Lease, posts the status, runs the pods that are bound to it and
//! ends them gracefully; and it can be told to be silent, to flap, or to take other names. One process plays a
//! thousand of them: each is one task that sleeps until its next beat, and all share one watch of Nodes and one watch
//! of Pods.
//!
//! # Guarantees
//! * From the moment when [`Fleet::set`] says that a machine is gone or silent, its kubelet sends nothing more. (What
//!   it has sent may still arrive.)
//! * Node status is written by strategic merge patch: a replace would lose against the control plane's own first writes.
//! * `lastTransitionTime` moves only when the condition's status does, `lastHeartbeatTime` with every post.
//! * A pod is ended by a delete with its UID as precondition.
//!
//! # Assumptions
//! * Node names are unique among living machines, unless a test wants them not to be.
//!
//! # Caveats
//! * A real kubelet registers once, at its start; this one registers again when its Node was deleted
//!   ([`Settings::register_again_after`]), which stands for the restart that brings a real one back.
//! * A Node that exists already under the name is taken over as it is, labels brought up to date, its provider id left
//!   alone: what a real kubelet does as well.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use kube::{Api, Client, Config};
use nodewright_runtime::leadership::Clock;
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
mod heart;
mod node;
mod pod;
mod pods;
mod registry;

use registry::Registry;

/// Every simulated Node has this label, with the value `true`.
pub const SIMULATED_LABEL: &str = "nodewright.dev/simulated";
/// On a pod: how many seconds it takes to end, or `never`. It is killed at the end of its grace period, unless it
/// `never` ends.
pub const TERMINATION_ANNOTATION: &str = "simulated.nodewright.dev/termination-seconds";

/// Where kubelets keep their Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The `User-Agent` of the kubelets.
pub const AGENT: HeaderValue = HeaderValue::from_static(concat!("simulated-kubelet/", env!("CARGO_PKG_VERSION")));
/// Requests of all kubelets together that are in flight at once; watches apart.
const REQUESTS_AT_ONCE: usize = 32;
/// Watch events that wait for their reader.
const BACKLOG: usize = 1_024;

/// How kubelets behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// From boot to Ready.
    pub ready_after: Duration,
    /// Is what is known already said again and again: is the Lease renewed, and an unchanged status posted?
    pub heartbeats: bool,
    /// Between two renewals of the Lease.
    pub lease_period: Duration,
    /// How long the Lease says that it lasts.
    pub lease_duration_seconds: i32,
    /// Between two posts of an unchanged status.
    pub status_period: Duration,
    /// How far both periods stray, as a share of them.
    pub jitter: f64,
    /// From the deletion of a Node whose machine lives until it is registered again; `None` for never.
    pub register_again_after: Option<Duration>,
    /// From the binding of a pod until it runs.
    pub pod_start_after: Duration,
    /// How long a pod takes to end, if its grace period is not shorter.
    pub pod_ends_after: Duration,
    /// What the Node says of the kubelet.
    pub kubelet_version: &'static str,
    /// Where randomness starts from.
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

/// A machine, as its kubelet knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeletSpec {
    /// The Node names that it registers.
    pub node_names: Vec<String>,
    /// `spec.providerID` of its Nodes.
    pub provider_id: String,
    /// Labels besides those that every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// Taints at registration.
    pub taints: Vec<Taint>,
    /// The label `node.kubernetes.io/instance-type`.
    pub instance_type: String,
    /// Cores of the machine.
    pub cores: u32,
    /// Memory of the machine in GiB.
    pub memory_gib: u32,
    /// The address `InternalIP`.
    pub address: String,
    /// It says nothing.
    pub silent: bool,
    /// It reports `NotReady`.
    pub not_ready: bool,
    /// It is `NotReady` for so long, then Ready for as long, from `mood_since` on.
    pub flap: Option<Duration>,
    /// Since when it has been told to be as it is.
    pub mood_since: Timestamp,
    /// When the machine booted.
    pub running_since: Timestamp,
}

/// What all kubelets share.
struct Shared {
    client: Client,
    settings: Settings,
    clock: Arc<dyn Clock>,
    registry: Arc<Registry>,
    in_flight: Semaphore,
}

impl Shared {
    /// Makes a request as soon as not too many others are in flight.
    async fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
        // The semaphore is never closed; if it were, the request would go without it.
        let _permit = self.in_flight.acquire().await.ok();
        crate::request::request(request).await
    }
}

/// All kubelets of the process. They end when it is dropped.
pub struct Fleet {
    shared: Arc<Shared>,
    machines: Mutex<BTreeMap<String, Vec<Kubelet>>>,
    /// The watches and their readers.
    _tasks: JoinSet<()>,
}

/// One kubelet: a machine under one Node name.
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
    /// A fleet without kubelets, for the cluster of this configuration.
    pub fn start(mut config: Config, settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, kube::Error> {
        config.headers.push((USER_AGENT, AGENT));
        // Each kubelet has its own way to try again.
        config.default_retry = false;
        Ok(Self::with_client(Client::try_from(config)?, settings, clock))
    }

    /// A fleet without kubelets, for the cluster of this client. Needs a tokio runtime.
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
        tasks.spawn(mirror(Api::all(client.clone()), select, to_nodes));
        tasks.spawn(async move {
            while let Some(seen) = nodes.recv().await {
                registry.take(seen);
            }
        });
        let (to_pods, pods) = mpsc::channel::<Seen<Pod>>(BACKLOG);
        let select = Select { fields: Some("spec.nodeName!="), ..Select::default() };
        tasks.spawn(mirror(Api::all(client), select, to_pods));
        tasks.spawn(pods::run(Arc::clone(&shared), pods));
        Self { shared, machines: Mutex::default(), _tasks: tasks }
    }

    /// Says how a machine is from now on; `None` when it is gone. Must be called within a tokio runtime.
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
        // Not in a join set: the handle ends it, and its result is nothing.
        let task = tokio::spawn(agent).abort_handle();
        Kubelet { node_name: node_name.to_owned(), spec: sender, task }
    }
}
