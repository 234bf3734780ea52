//! The HTTP server for metrics, health and readiness.
//!
//! `/healthz` says whether the process should be restarted. What depends on others (the API server, a collector)
//! must not stand in it: restarting helps nobody then. `/readyz` says whether the process does its work.
//!
//! # Guarantees
//!
//! - Connections, headers, bodies, and the time of a request and of a connection are bounded: no client can hold
//!   memory or a connection for ever (see [`crate::serving`]).
//! - Probes are answered however many other clients there are: an idle connection makes room for a new one, and
//!   requests for anything else may take only a part of the connections.
//! - On stop, requests under way are answered, for at most a second.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::authorization::Authorization;
use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::serving::{self, Handshake, Limits, Peer, Plain};
use crate::telemetry::Levels;

/// The most bytes of a request's body.
const BODY_LIMIT: usize = 64 << 10;
/// How long an answer may take to be made.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How many requests other than those of probes are answered at once. That is fewer than there are connections, so one
/// is always left for a probe.
const OTHERS: usize = 32;
const LIMITS: Limits = Limits {
    connections: 128,
    first_request: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    head: Duration::from_secs(5),
    head_size: 16 << 10,
    answer: Duration::from_secs(30),
    lifetime: Some(Duration::from_mins(10)),
    end: Duration::from_secs(1),
};

/// What a check may answer: a plain yes or no, or the reason for a no.
pub trait Verdict {
    /// The reason why the check failed, if it did.
    fn into_result(self) -> Result<(), String>;
}

impl Verdict for bool {
    fn into_result(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("not yet".to_owned()) }
    }
}

impl Verdict for Result<(), String> {
    fn into_result(self) -> Result<(), String> {
        self
    }
}

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks behind one endpoint. Clones are the same set.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Arc<RwLock<Vec<(String, Check)>>>,
}

impl Checks {
    /// No checks: everything is well.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, or replaces the one of that name. It is asked at each request, so it must not block.
    pub fn add<V: Verdict>(&self, name: impl Into<String>, check: impl Fn() -> V + Send + Sync + 'static) {
        let (name, check): (_, Check) = (name.into(), Arc::new(move || check().into_result()));
        let mut checks = self.checks.write();
        match checks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = check,
            None => checks.push((name, check)),
        }
    }

    /// The names of the checks that fail, each with its reason.
    pub fn failures(&self) -> Vec<(String, String)> {
        let results = self.results(|_| true);
        results.into_iter().filter_map(|(name, result)| Some((name, result.err()?))).collect()
    }

    fn results(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, Result<(), String>)> {
        // Checks are called without the lock: one may add another.
        let checks = self.checks.read().clone();
        checks.into_iter().filter(|(name, _)| wanted(name)).map(|(name, check)| (name, check())).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.checks.read().iter().any(|(known, _)| known == name)
    }

    /// The answer as Kubernetes gives it: `ok`, or each check on a line if one fails or if asked for by `?verbose`.
    fn answer(&self, endpoint: &str, query: &str, only: Option<&str>) -> Response {
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let excluded = |name: &str| parameters().any(|(key, value)| key == "exclude" && value == name);
        let wanted = |name: &str| !excluded(name) && only.is_none_or(|only| only == name);
        let results = self.results(wanted);
        let failed = results.iter().any(|(_, result)| result.is_err());
        if !failed && !parameters().any(|(key, _)| key == "verbose") {
            return plain(StatusCode::OK, "ok".to_owned());
        }
        let mut text = String::new();
        for (name, result) in &results {
            // Writing to a string does not fail.
            let _ = match result {
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(reason) => writeln!(text, "[-]{name} failed: {reason}"),
            };
        }
        let (status, end) =
            if failed { (StatusCode::INTERNAL_SERVER_ERROR, "failed") } else { (StatusCode::OK, "passed") };
        let _ = writeln!(text, "{endpoint} check {end}");
        plain(status, text)
    }
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let checks = self.checks.read();
        formatter.debug_set().entries(checks.iter().map(|(name, _)| name)).finish()
    }
}

/// What the server answers.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// Behind `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Behind `/healthz` and `/livez`: nothing that depends on others.
    pub health: Checks,
    /// Behind `/readyz`.
    pub ready: Checks,
    /// Behind `/debug/log-level`, if given: read by GET and set by PUT. Without [`Self::authorization`] from this host
    /// only: by those who may forward a port of the pod.
    pub levels: Option<Levels>,
    /// Who may ask for metrics and log levels; everybody if none is given. Probes are always answered.
    pub authorization: Option<Authorization>,
}

impl Endpoints {
    /// The routes, to be served alone or merged with others.
    pub fn router(self) -> Router {
        let probes = self.probes();
        let metrics = self.metrics;
        let metrics = get(move || async move { serve_metrics(&metrics) });
        let levels = self.levels.map(level_routes).unwrap_or_default();
        let metrics = Router::new().route("/metrics", metrics);
        let others = match self.authorization {
            Some(authorization) => authorization.protect(metrics.merge(levels)),
            None => metrics.merge(levels.layer(middleware::from_fn(from_this_host))),
        };
        leave_room(others).merge(probes)
    }

    /// The routes of health and readiness alone.
    pub fn probes(&self) -> Router {
        Router::new()
            .merge(check_routes("healthz", self.health.clone()))
            .merge(check_routes("livez", self.health.clone()))
            .merge(check_routes("readyz", self.ready.clone()))
    }
}

/// Leaves connections for probes: answers no more than [`OTHERS`] requests at once.
fn leave_room(others: Router) -> Router {
    others.layer(middleware::from_fn_with_state(Arc::new(Semaphore::new(OTHERS)), answer_if_few))
}

async fn answer_if_few(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(_place) = places.try_acquire() else {
        let response = plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again\n".to_owned());
        return ([(header::RETRY_AFTER, "1")], response).into_response();
    };
    next.run(request).await
}

fn serve_metrics(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to encode metrics: {error}")),
    }
}

/// `/readyz` for all checks and `/readyz/<name>` for one.
fn check_routes(endpoint: &'static str, checks: Checks) -> Router {
    let all = move |State(checks): State<Checks>, RawQuery(query): RawQuery| async move {
        checks.answer(endpoint, &query.unwrap_or_default(), None)
    };
    let one = move |State(checks): State<Checks>, Path(name): Path<String>, RawQuery(query): RawQuery| async move {
        if checks.has(&name) {
            checks.answer(endpoint, &query.unwrap_or_default(), Some(&name))
        } else {
            plain(StatusCode::NOT_FOUND, format!("no such check: {name}"))
        }
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(all))
        .route(&format!("/{endpoint}/{{name}}"), get(one))
        .with_state(checks)
}

fn level_routes(levels: Levels) -> Router {
    let read = |State(levels): State<Levels>| async move { plain(StatusCode::OK, format!("{}\n", levels.current())) };
    let set = |State(levels): State<Levels>, wanted: String| async move {
        match levels.set(wanted.trim()) {
            Ok(()) => plain(StatusCode::OK, format!("{}\n", levels.current())),
            Err(error) => plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    };
    Router::new().route("/debug/log-level", get(read).put(set)).with_state(levels)
}

async fn from_this_host(request: Request, next: Next) -> Response {
    match request.extensions().get::<Peer>() {
        Some(Peer(address)) if address.ip().to_canonical().is_loopback() => next.run(request).await,
        _ => plain(StatusCode::FORBIDDEN, "only from this host: use kubectl port-forward\n".to_owned()),
    }
}

fn plain(status: StatusCode, text: String) -> Response {
    const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (NO_SNIFF, "nosniff")];
    (status, headers, text).into_response()
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has the port.
    #[error("failed to listen on {address}: address already in use; choose another with {flag}")]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// A low port, most likely.
    #[error("failed to listen on {address}: permission denied; choose a port above 1023 with {flag}")]
    NotPermitted {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// Anything else.
    #[error("failed to listen on {address}: {source}; choose another with {flag}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// A socket that listens, not yet served.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address; port 0 takes any free one. `flag` is what people are told to change if that fails.
    pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await.and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        });
        listener.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address, flag },
            io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address, flag },
            _ => ListenError::Other { address, flag, source },
        })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP until `stop` is cancelled, then answers what is under way and returns within about a second.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        self.serve_with(Plain, router, stop).await;
    }

    /// The same after a handshake, such as TLS.
    pub async fn serve_with(self, handshake: impl Handshake, router: Router, stop: CancellationToken) {
        let router = router.layer(DefaultBodyLimit::max(BODY_LIMIT)).layer(middleware::from_fn(limit_time));
        serving::serve(self.listener, handshake, router, LIMITS, stop.cancelled()).await;
    }
}

async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "the request took too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tower::ServiceExt;

    use super::*;
    use crate::telemetry::{Telemetry, TelemetryConfig};

    struct Running {
        address: SocketAddr,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn serve(router: Router) -> Running {
        let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--port").await.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        let task = tokio::spawn(server.serve(router, stop.clone()));
        Running { address, stop, task }
    }

    async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn checks_are_answered_as_kubernetes_does() {
        let endpoints = Endpoints::default();
        let synced = Arc::new(AtomicBool::new(false));
        endpoints.ready.add("informer-sync", {
            let synced = synced.clone();
            move || synced.load(Ordering::SeqCst)
        });
        endpoints.ready.add("api-server", || Err::<(), _>("no answer for 30s".to_owned()));
        endpoints.health.add("ping", || true);
        let checks = endpoints.ready.clone();
        let Running { address, .. } = serve(endpoints.router()).await;
        let not_ready =
            "[-]informer-sync failed: not yet\n[-]api-server failed: no answer for 30s\nreadyz check failed\n";
        assert_eq!(fetch(address, "/readyz").await, (500, not_ready.to_owned()));
        assert_eq!(fetch(address, "/healthz").await, (200, "ok".to_owned()));
        assert_eq!(fetch(address, "/livez?verbose").await, (200, "[+]ping ok\nlivez check passed\n".to_owned()));
        synced.store(true, Ordering::SeqCst);
        assert_eq!(fetch(address, "/readyz?exclude=api-server").await, (200, "ok".to_owned()));
        assert_eq!(fetch(address, "/readyz/informer-sync").await, (200, "ok".to_owned()));
        assert_eq!(fetch(address, "/readyz/unknown").await.0, 404);
        assert_eq!(checks.failures(), [("api-server".to_owned(), "no answer for 30s".to_owned())]);
        checks.add("api-server", || true);
        assert_eq!(fetch(address, "/readyz").await, (200, "ok".to_owned()));
    }

    #[tokio::test]
    async fn metrics_are_served_as_openmetrics() {
        let endpoints = Endpoints::default();
        endpoints.metrics.reconcile_panicked("machine");
        let Running { address, .. } = serve(endpoints.router()).await;
        let (code, text) = fetch(address, "/metrics").await;
        assert_eq!(code, 200);
        assert!(text.contains("controller_runtime_reconcile_panics_total{controller=\"machine\"} 1"), "{text}");
        assert_eq!(fetch(address, "/unknown").await.0, 404);
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_clear_line() {
        let Running { address, .. } = serve(Router::new()).await;
        let error = Server::bind(address, "--port").await.unwrap_err();
        let expected = format!("failed to listen on {address}: address already in use; choose another with --port");
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn a_stop_answers_what_is_under_way_and_closes_the_rest() {
        let slow = get(|| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "done"
        });
        let Running { address, stop, task } = serve(Router::new().route("/slow", slow)).await;
        let idle = TcpStream::connect(address).await.unwrap();
        let under_way = tokio::spawn(async move { fetch(address, "/slow").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.cancel();
        let begun = tokio::time::Instant::now();
        assert_eq!(under_way.await.unwrap(), (200, "done".to_owned()));
        task.await.unwrap();
        assert!(begun.elapsed() < LIMITS.end * 2);
        assert!(TcpStream::connect(address).await.is_err());
        drop(idle);
    }

    #[tokio::test]
    async fn what_is_logged_is_changed_from_this_host_only() {
        let (telemetry, _subscriber) = Telemetry::build(&TelemetryConfig::default(), std::io::sink).unwrap();
        let levels = telemetry.levels();
        let routes = Endpoints { levels: Some(levels.clone()), ..Endpoints::default() }.router();
        let set = async |peer: &str, wanted: &str| {
            let request = Request::builder().method("PUT").uri("/debug/log-level");
            let request =
                request.extension(Peer(peer.parse().unwrap())).body(axum::body::Body::from(wanted.to_owned())).unwrap();
            routes.clone().oneshot(request).await.unwrap().status()
        };
        assert_eq!(set("10.0.0.7:1", "debug").await, StatusCode::FORBIDDEN);
        assert_eq!(set("[::1]:1", "nonsense=loud").await, StatusCode::BAD_REQUEST);
        assert_eq!(levels.current(), "info");
        assert_eq!(set("[::ffff:127.0.0.1]:1", "debug\n").await, StatusCode::OK);
        assert_eq!(levels.current(), "debug");
    }

    /// Waits for what the server does by itself. Generous: a busy computer is slow.
    async fn patiently<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(20), future).await.expect("an answer in time")
    }

    #[tokio::test]
    async fn idle_and_slow_connections_do_not_silence_a_probe() {
        let Running { address, .. } = serve(Endpoints::default().router()).await;
        let mut kept = vec![];
        for number in 0..LIMITS.connections * 2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 1 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
            }
            kept.push(stream);
            if number >= LIMITS.connections {
                assert_eq!(patiently(fetch(address, "/healthz")).await, (200, "ok".to_owned()));
            }
        }
        // One byte more keeps nobody: the first have gone.
        let mut first = kept.swap_remove(0);
        let _ = first.write_all(b"G").await;
        assert!(matches!(patiently(first.read(&mut [0])).await, Ok(0) | Err(_)), "the longest idle was closed");
    }

    #[tokio::test]
    async fn requests_that_hang_leave_room_for_probes() {
        let hung = Arc::new(Semaphore::new(0));
        let begun = Arc::new(Semaphore::new(0));
        let endpoints = Endpoints::default();
        let slow = get({
            let (hung, begun) = (hung.clone(), begun.clone());
            move || async move {
                begun.add_permits(1);
                let _ = hung.acquire().await;
                "done"
            }
        });
        let others = leave_room(Router::new().route("/slow", slow));
        let Running { address, .. } = serve(endpoints.router().merge(others)).await;
        let calls: Vec<_> = (0..OTHERS).map(|_| tokio::spawn(fetch(address, "/slow"))).collect();
        let _ = patiently(begun.acquire_many(u32::try_from(OTHERS).unwrap())).await.unwrap();
        assert_eq!(patiently(fetch(address, "/slow")).await.0, 503);
        assert_eq!(patiently(fetch(address, "/healthz")).await.0, 200);
        hung.add_permits(OTHERS);
        for call in calls {
            assert_eq!(patiently(call).await.unwrap(), (200, "done".to_owned()));
        }
    }

    #[tokio::test]
    async fn headers_without_end_are_refused() {
        let Running { address, .. } = serve(Router::new()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(LIMITS.head_size * 2));
        // The server may close before all is written.
        let _ = stream.write_all(huge.as_bytes()).await;
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}
