//! The only way to an API server: every request of a controller, read or write, goes through this module.

mod contact;
mod error;

use std::{fmt, path::Path, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use jiff::fmt::rfc2822;
use kube::{
    client::{Body, ClientBuilder, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::time::{Instant, timeout};
use tower::{BoxError, ServiceBuilder};

pub(crate) use self::contact::{ANSWER_WITHIN, Contact};
pub use self::error::{FailureClass, RequestError};
use self::error::{classify_transport, read_refusal};
use crate::{
    error::one_line,
    fair::{FairSemaphore, Flow},
    leadership::{Clock, Leadership},
    object::Cluster,
};
use nodewright_observability::{metrics::Metrics, trace::TraceContext};

/// Limit of an answer, in bytes. The API server itself refuses objects over 3 MiB; a page of a list is larger.
const MAX_ANSWER: usize = 256 << 20;

/// How long an idle connection is used again. The API server closes it after 90 s, which is the default here, too: a request that is
/// sent at that moment fails, although it may have been read.
const IDLE_CONNECTION: Duration = Duration::from_mins(1);

/// kube's client without tracing, proxies and retries, because a write whose answer was lost must be read, not repeated. It
/// sends no queued request once this leadership has expired ([`Leadership::connector`]).
pub fn client(config: kube::Config, leadership: &Leadership) -> Result<kube::Client, kube::Error> {
    if let Some(proxy_url) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy_url.clone()) });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let encrypted = config.rustls_https_connector_with_connector(leadership.connector(tcp))?;
    let mut connector = TimeoutConnector::new(encrypted);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_CONNECTION)
                .build(connector),
        );
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Sends a controller's requests.
///
/// # Guarantees
/// * A mutating request starts only while leadership lasts, and is abandoned when that expires. Each extension is counted: an API
///   server that is slow, and still renews the Lease, costs no answers.
/// * No request lasts longer than the timeout; none is sent twice.
/// * Concurrency and rate are limited. The flows of several owners take turns.
///
/// # Assumptions
/// The client does not retry by itself; see [`client`].
///
/// # Caveats
/// * A write that started during leadership may be committed after its end, even if it was abandoned.
/// * Watches do not count towards the limits.
#[derive(Clone)]
pub struct Connection {
    client: kube::Client,
    agent: HeaderValue,
    /// The user as whom requests are sent, if not as that of the client.
    pub(crate) user: Option<Arc<HeaderValue>>,
    leadership: Leadership,
    pub(crate) limits: Arc<FairSemaphore>,
    /// Limits the evictions in progress, so that they leave room for other requests: the API server may take long over each,
    /// because it asks webhooks.
    pub(crate) evictions: Arc<FairSemaphore>,
    pub(crate) timeout: Duration,
    metrics: Arc<Metrics>,
    /// Shared with all connections that were made from this one.
    pub(crate) contact: Arc<Contact>,
    /// The clock to compare with the times of answers, and the cluster that answers.
    clock: Option<(Cluster, Arc<dyn Clock>)>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// `Content-Type` of the body.
    pub content: &'static str,
    /// The `Accept` header.
    pub accept: &'static str,
    /// Body.
    pub body: Vec<u8>,
    /// The trace of the request.
    pub traceparent: Option<TraceContext>,
    pub(crate) flow: Flow,
}

impl Call {
    /// A read.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            content: "application/json",
            accept: "application/json",
            body: vec![],
            traceparent: None,
            flow: Flow::default(),
        }
    }

    /// A write with a JSON body.
    pub fn with(method: Method, path: impl Into<String>, content: &'static str, body: &serde_json::Value) -> Self {
        Self { method, content, body: body.to_string().into_bytes(), ..Self::get(path) }
    }
}

impl Connection {
    /// A connection through `client`. `agent` is the `User-Agent`, `at_once` the limit of concurrent requests.
    pub fn new(
        client: kube::Client,
        agent: HeaderValue,
        leadership: Leadership,
        at_once: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (limits, evictions) = (FairSemaphore::new(at_once, None), FairSemaphore::new(at_once, None));
        let (timeout, contact) = (Duration::from_secs(35), Arc::default());
        Self { client, agent, user: None, leadership, limits, evictions, timeout, metrics, contact, clock: None }
    }

    /// The same connection with another `User-Agent`.
    #[must_use]
    pub fn as_agent(&self, agent: HeaderValue) -> Self {
        Self { agent, ..self.clone() }
    }

    /// The same connection. It compares this clock with the time of each answer of the cluster's API server.
    #[must_use]
    pub fn comparing(&self, cluster: Cluster, clock: &Arc<dyn Clock>) -> Self {
        Self { clock: Some((cluster, clock.clone())), ..self.clone() }
    }

    /// The same connection for the writes of another leadership. Until that begins, writes are refused.
    #[must_use]
    pub fn within(&self, leadership: Leadership) -> Self {
        Self { leadership, ..self.clone() }
    }

    /// Sends a request and reads the whole answer. Any status but 2xx is an error.
    pub async fn send(&self, call: Call) -> Result<Response<Bytes>, RequestError> {
        let (method, path) = (call.method.clone(), call.path.clone());
        let begun = Instant::now();
        let result = self.send_unmetered(call).await;
        let code = match &result {
            Ok(answer) => answer.status().as_u16(),
            Err(error) => error.status.map_or(0, |status| status.as_u16()),
        };
        self.metrics.requested(&method, &path, code, begun.elapsed());
        result
    }

    async fn send_unmetered(&self, call: Call) -> Result<Response<Bytes>, RequestError> {
        let mutating = call.method != Method::GET;
        let _permit = self.limits.enter(&call.flow).await;
        // Check after the wait: leadership may have ended meanwhile.
        let remaining = if mutating { self.leadership.remaining() } else { Duration::MAX };
        if remaining.is_zero() {
            return Err(RequestError::local(FailureClass::Expired, "this process does not lead"));
        }
        let request = self.request(call)?;
        let (begun, mut exchange) = (Instant::now(), pin!(self.exchange(request)));
        loop {
            let left = self.timeout.saturating_sub(begun.elapsed());
            let limit = if mutating { left.min(self.leadership.remaining()) } else { left };
            if let Ok(result) = timeout(limit, exchange.as_mut()).await {
                return result;
            }
            if limit == left || self.leadership.is_over() {
                let text = format!("no answer within {:?}", begun.elapsed());
                return Err(RequestError::local(FailureClass::Unknown, text));
            }
        }
    }

    /// Probes the server; bypasses the limits of concurrency and rate.
    pub(crate) async fn ask(&self, call: Call) -> Result<Response<Bytes>, RequestError> {
        self.exchange(self.request(call)?).await
    }

    /// Starts a watch: the caller reads the answer's body line by line.
    pub(crate) async fn open(&self, call: Call) -> Result<Response<Body>, RequestError> {
        let request = self.request(call)?;
        let late = |_| Err(RequestError::local(FailureClass::Unknown, "the watch was not answered"));
        timeout(self.timeout, self.response(request)).await.unwrap_or_else(late)
    }

    async fn response(&self, request: Request<Body>) -> Result<Response<Body>, RequestError> {
        let sent = self.clock.as_ref().map_or(Duration::ZERO, |(_, clock)| clock.elapsed());
        let response = self.client.send(request).await.map_err(|error| classify_transport(&error))?;
        self.compare_clocks(sent, &response);
        if response.status().is_success() { Ok(response) } else { Err(read_refusal(response).await) }
    }

    fn compare_clocks(&self, sent: Duration, response: &Response<Body>) {
        let date = || {
            let date = response.headers().get(header::DATE)?.to_str().ok()?;
            rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
        };
        if let Some((cluster, clock)) = &self.clock
            && let Some(date) = date()
        {
            clock.answered(*cluster, sent, date);
        }
    }

    fn request(&self, call: Call) -> Result<Request<Body>, RequestError> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(header::USER_AGENT, &self.agent)
            .header(header::ACCEPT, call.accept)
            .header(header::CONTENT_TYPE, call.content);
        if let Some(user) = &self.user {
            request = request.header("Impersonate-User", user.as_ref());
        }
        if let Some(context) = call.traceparent {
            request = request.header("traceparent", context.to_string());
        }
        let invalid = |error: http::Error| RequestError::local(FailureClass::Invalid, error.to_string());
        request.body(Body::from(call.body)).map_err(invalid)
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<Bytes>, RequestError> {
        let (head, body) = self.response(request).await?.into_parts();
        let broken = |error| RequestError::local(FailureClass::Unknown, format!("the answer broke off: {error}"));
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(broken)?;
        self.contact.heard();
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// Reads the configuration of a client: from a file, or from those that kubectl reads. An error has no line of a file, which may have
/// credentials.
pub async fn read_kubeconfig(file: Option<&Path>, context: Option<String>) -> Result<kube::Config, String> {
    let kubeconfig = file.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(|error| match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(at) => format!("it is not a kubeconfig: see line {}, column {}", at.line(), at.column()),
            None => "it is not a kubeconfig".to_owned(),
        },
        error => one_line(&error),
    })?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| one_line(&error))
}

#[cfg(test)]
mod tests {
    use kube::core::{
        Status,
        response::{StatusCause, StatusDetails},
    };
    use serde_json::json;

    use super::{error::MAX_MESSAGE, *};
    use crate::leadership::{checked_clock, tokio_clock};
    use nodewright_testing::api_server::{ApiServer, Fault, Match};

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    fn connection(server: &ApiServer, leadership: Leadership) -> Connection {
        let agent = HeaderValue::from_static("test/1");
        Connection::new(server.client(), agent, leadership, 1, Arc::new(Metrics::new()))
    }

    fn creation(name: &str) -> Call {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        Call::with(Method::POST, MAPS, "application/json", &map)
    }

    /// The outcome of creating `a`, and the number of requests at the server.
    async fn create(connection: &Connection, server: &ApiServer) -> (Option<FailureClass>, usize) {
        let result = connection.send(creation("a")).await;
        (result.err().map(|error| error.class), server.requests().len())
    }

    #[tokio::test]
    async fn of_a_long_refusal_beginning_and_end_are_kept() {
        let server = ApiServer::new();
        let connection = connection(&server, Leadership::unlimited());
        let message = format!("ConfigMap is invalid: {}: the cause", "x".repeat(6_000));
        let refusal = Status::failure(&message, "Invalid").with_code(422);
        server.fail_next(Match::any(), Fault::Refuse(Box::new(refusal)));
        let error = connection.send(creation("a")).await.unwrap_err();
        assert_eq!(error.message.len(), MAX_MESSAGE);
        assert!(error.message.starts_with("ConfigMap is invalid") && error.message.ends_with(": the cause"));
    }

    #[tokio::test]
    async fn a_refused_eviction_names_the_disruption_budget() {
        let server = ApiServer::new();
        let connection = connection(&server, Leadership::unlimited());
        let budget = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let cause = StatusCause { reason: "DisruptionBudget".into(), message: budget.into(), field: String::new() };
        let (name, group, kind, uid) = Default::default();
        let details = StatusDetails { causes: vec![cause], name, group, kind, uid, retry_after_seconds: 0 };
        let refusal = Status::failure("Cannot evict pod.", "TooManyRequests").with_code(429).with_details(details);
        server.fail_next(Match::any(), Fault::Refuse(Box::new(refusal)));
        let error = connection.send(creation("a")).await.unwrap_err();
        assert_eq!(error.message, format!("Cannot evict pod. {budget}"));
    }

    #[tokio::test]
    async fn nothing_is_written_before_leadership_begins_nor_after_its_end() {
        let (server, leadership, elected) = (ApiServer::new(), Leadership::default(), Leadership::unlimited());
        let connection = connection(&server, Leadership::unlimited()).within(leadership.clone());
        assert_eq!(create(&connection, &server).await, (Some(FailureClass::Expired), 0));
        leadership.begin(&elected);
        assert_eq!(create(&connection, &server).await, (None, 1));
        elected.end();
        assert_eq!(create(&connection, &server).await, (Some(FailureClass::Expired), 1));
        connection.send(Call::get(MAPS)).await.unwrap();
        assert_eq!(server.requests().len(), 2, "reads need no leadership");
    }

    #[tokio::test]
    async fn a_connection_may_be_anothers() {
        let mut connection = connection(&ApiServer::new(), Leadership::unlimited());
        let user = |connection: &Connection| {
            connection.request(Call::get(MAPS)).unwrap().headers().get("Impersonate-User").cloned()
        };
        assert_eq!(user(&connection), None);
        let account = HeaderValue::from_static("system:serviceaccount:a:b");
        connection.user = Some(Arc::new(account.clone()));
        assert_eq!(user(&connection.as_agent(HeaderValue::from_static("other/1"))), Some(account));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_each_answer_is_compared_with_the_clock() {
        const HOME: Cluster = Cluster::new("home");
        let [wall, server] = ["2026-06-01T13:00:00Z", "2026-06-01T12:00:00Z"].map(|at| at.parse().unwrap());
        let clock = checked_clock(tokio_clock(wall));
        let server = ApiServer::with_time(move || server);
        let connection = connection(&server, Leadership::unlimited()).comparing(HOME, &clock);
        assert!(clock.skews().is_empty());
        let _ = connection.send(Call::get(MAPS)).await;
        assert_eq!(clock.skews(), [(HOME, jiff::SignedDuration::from_secs(3_599))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_whose_turn_comes_after_the_end_of_leadership_is_not_sent() {
        let (server, leadership) = (ApiServer::new(), Leadership::unlimited());
        let connection = connection(&server, leadership.clone());
        server.fail_next(Match::verb("list"), Fault::Delay(Duration::from_secs(5)));
        let read = connection.send(Call::get(MAPS));
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            leadership.end();
        };
        // The read has the only permit.
        let (read, write, ()) = tokio::join!(read, create(&connection, &server), end);
        assert_eq!((read.is_ok(), write), (true, (Some(FailureClass::Expired), 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_is_abandoned_when_leadership_ends() {
        let server = ApiServer::new();
        let clock = tokio_clock(jiff::Timestamp::UNIX_EPOCH);
        let connection = connection(&server, Leadership::until(clock, Duration::from_secs(10)));
        server.fail_always(Match::any(), Fault::Hang);
        let begun = tokio::time::Instant::now();
        assert_eq!(create(&connection, &server).await, (Some(FailureClass::Unknown), 1));
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_goes_on_while_leadership_is_extended() {
        let server = ApiServer::new();
        let leadership = Leadership::until(tokio_clock(jiff::Timestamp::UNIX_EPOCH), Duration::from_secs(10));
        let connection = connection(&server, leadership.clone());
        server.fail_always(Match::any(), Fault::Hang);
        let renew = async |last: u64| {
            for second in (5..last).step_by(5) {
                tokio::time::sleep(Duration::from_secs(5)).await;
                assert!(leadership.extend(Duration::from_secs(second + 10)));
            }
        };
        let begun = tokio::time::Instant::now();
        let (answer, ()) = tokio::join!(create(&connection, &server), renew(20));
        assert_eq!((answer, begun.elapsed()), ((Some(FailureClass::Unknown), 1), Duration::from_secs(25)));
    }
}
