//! What a cluster's own controllers do around machines: the parts of kube-controller-manager and kube-scheduler that a
//! machine controller meets.
//!
//! * Node lifecycle: a Node whose kubelet is silent turns Unknown, its pods not ready; Nodes have the taints that their
//!   conditions and `unschedulable` ask for.
//! * Taint eviction: pods that do not tolerate their Node's `NoExecute` taints are deleted, in time.
//! * Pod garbage collection: pods of Nodes that are gone, and pods that were deleted before they had a Node, are removed.
//! * A scheduler of one rule, for the pods of a test.
//!
//! Times, texts and the order of writes are those of Kubernetes 1.33 (`pkg/controller/nodelifecycle`, `tainteviction`,
//! `podgc`), but for what stands below.
//!
//! # Guarantees
//! * On tokio's paused time, the same cluster leads to the same requests in the same order.
//! * All is decided by what watches show and by the controllers' own clock, so a lost watch or a server that is away
//!   misleads them as it does the real ones: who hears of no heartbeat for too long writes Unknown.
//!
//! # Caveats
//! * Taints are set at once. The real controller sets `NoExecute` ones at a limited rate, slower where many Nodes of a
//!   zone are away, and not at all where all are.
//! * There is one worker, where the real controllers have several: a request that hangs holds up what comes after it.
//! * Pods are bound by a patch; a real API server takes a binding only. No events are written.

mod eviction;
mod lifecycle;
mod nodes;
mod pods;
mod scheduler;
mod taints;
mod view;

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, header::USER_AGENT};
use kube::{Client, client::Body};
use nodewright_runtime::leadership::Clock;
use nodewright_testing::api_server::ApiServer;
use tokio::task::JoinSet;
use tower::{ServiceExt, util::MapRequest};

use self::view::View;

/// The `User-Agent` of the control plane's controllers.
pub const AGENT: HeaderValue = HeaderValue::from_static("kube-controller-manager");

/// How the controllers behave. The usual values are those of Kubernetes, but for the scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Between two looks at the health of all Nodes.
    pub monitor_period: Duration,
    /// A Node of whose heartbeat nothing new was heard for so long is Unknown. (50 s from Kubernetes 1.32 on, 40 s before.)
    pub monitor_grace: Duration,
    /// The same for a Node that never had a Ready condition.
    pub startup_grace: Duration,
    /// How long pods tolerate `not-ready` and `unreachable` that say nothing of it: what admission writes into real ones.
    pub default_toleration: Duration,
    /// Between two collections of pods.
    pub collection_period: Duration,
    /// How long a Node must be missing until its pods are collected.
    pub quarantine: Duration,
    /// Are pods that have no Node bound to one?
    pub schedules: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            monitor_period: Duration::from_secs(5),
            monitor_grace: Duration::from_secs(40),
            startup_grace: Duration::from_mins(1),
            default_toleration: Duration::from_mins(5),
            collection_period: Duration::from_secs(20),
            quarantine: Duration::from_secs(40),
            schedules: true,
        }
    }
}

/// The controllers of one cluster. They end when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    _tasks: JoinSet<()>,
}

/// What all controllers share.
struct Shared {
    client: Client,
    settings: Settings,
    clock: Arc<dyn Clock>,
    view: View,
}

impl ControlPlane {
    /// Starts the controllers for the cluster of this client. Needs a tokio runtime.
    pub fn start(client: Client, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(Shared { client, settings, clock, view: View::default() });
        let mut tasks = JoinSet::new();
        view::start(&shared, &mut tasks);
        tasks.spawn(lifecycle::run(Arc::clone(&shared)));
        tasks.spawn(nodes::run(Arc::clone(&shared)));
        tasks.spawn(eviction::run(Arc::clone(&shared)));
        tasks.spawn(pods::run(Arc::clone(&shared)));
        if settings.schedules {
            tasks.spawn(scheduler::run(shared));
        }
        Self { _tasks: tasks }
    }
}

/// A client of an API server in this process whose requests carry this `User-Agent`, as those of a real client do.
pub fn agent_client(server: &ApiServer, agent: HeaderValue) -> Client {
    Client::new(as_agent(server.clone(), agent), "default")
}

/// A service to which each request names its sender.
fn as_agent<S>(service: S, agent: HeaderValue) -> MapRequest<S, impl FnMut(Request<Body>) -> Request<Body> + Clone>
where
    S: tower::Service<Request<Body>>,
{
    service.map_request(move |mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, agent.clone());
        request
    })
}
