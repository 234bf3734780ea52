//! The cluster's own controllers: those parts of kube-controller-manager and kube-scheduler that affect a machine controller.
//!
//! * Node lifecycle: a Node whose kubelet is silent becomes Unknown, and its pods not ready. Nodes get the taints that their
//!   conditions and `unschedulable` require.
//! * Taint eviction: deletes pods that do not tolerate the `NoExecute` taints of their Node, after their toleration time.
//! * Pod garbage collection: removes pods of deleted Nodes, and pods that were deleted before they had a Node.
//! * A scheduler with one rule, for the pods of a test.
//!
//! Times, texts and the order of writes are those of Kubernetes 1.33 (`pkg/controller/nodelifecycle`, `tainteviction`,
//! `podgc`), except for the caveats below.
//!
//! # Guarantees
//! * On tokio's paused time, the same cluster leads to the same requests in the same order.
//! * All decisions come from the watches and from the controllers' own clock. A lost watch or an unreachable server misleads
//!   these controllers as it does the real ones: a controller that sees no heartbeat for too long writes Unknown.
//!
//! # Caveats
//! * Taints are set at once. The real controller sets `NoExecute` taints at a limited rate: slower when many Nodes of a zone
//!   are unreachable, and not at all when all are.
//! * Each controller has one worker, where the real ones have several: a hanging request blocks the work behind it.
//! * Pods are bound by a patch; a real API server accepts only a binding. No events are written.

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

/// The settings of the controllers. The defaults are those of Kubernetes, except for the scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The period of the health check of all Nodes.
    pub monitor_period: Duration,
    /// A Node without a new heartbeat for this long is Unknown. (50 s since Kubernetes 1.32, 40 s before.)
    pub monitor_grace: Duration,
    /// The same for a Node that never had a Ready condition.
    pub startup_grace: Duration,
    /// How long pods without their own toleration tolerate `not-ready` and `unreachable`. In real clusters admission adds it.
    pub default_toleration: Duration,
    /// The period of the pod garbage collection.
    pub collection_period: Duration,
    /// How long a Node must be missing before its pods are collected.
    pub quarantine: Duration,
    /// Whether pods without a Node are bound to one.
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

/// The controllers of one cluster. Dropping it stops them.
#[derive(Debug)]
pub struct ControlPlane {
    _tasks: JoinSet<()>,
}

/// The state that all controllers share.
struct Shared {
    client: Client,
    settings: Settings,
    clock: Arc<dyn Clock>,
    view: View,
}

impl ControlPlane {
    /// Starts the controllers with this client. Needs a tokio runtime.
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

/// A client of an in-process API server whose requests carry this `User-Agent`, like those of a real client.
pub fn agent_client(server: &ApiServer, agent: HeaderValue) -> Client {
    Client::new(as_agent(server.clone(), agent), "default")
}

/// A service that adds the `User-Agent` to each request.
fn as_agent<S>(service: S, agent: HeaderValue) -> MapRequest<S, impl FnMut(Request<Body>) -> Request<Body> + Clone>
where
    S: tower::Service<Request<Body>>,
{
    service.map_request(move |mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, agent.clone());
        request
    })
}
