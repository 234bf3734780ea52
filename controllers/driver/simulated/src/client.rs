//! The HTTP client of the simulated cloud.
//!
//! # Guarantees
//! * Every call ends: by an answer, or by its timeout. Dropping it is safe.
//! * Answers are bounded, and so is the number of pages of a list; a cursor that repeats ends the list with an error.
//! * Each failure has a code. A call whose effect is unknown has a transient code ([`DriverError::is_passing`]), so that it is
//!   made again with the same token.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write as _,
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Body;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result, Scope};
use nodewright_runtime::{error::with_causes, leadership::Leadership};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

use super::UrlError;

/// The maximum size of an answer. A page of VMs has some hundred kilobytes.
const ANSWER_LIMIT: usize = 16 << 20;
/// VMs per page.
const PAGE: usize = 500;
/// A list with more pages is treated as endless.
const PAGES_LIMIT: usize = 2_000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of the excerpt of an unexpected answer in an error.
const EXCERPT: usize = 200;

const AGENT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"), " (simulated-driver)");

/// A taint at registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub effect: String,
}

/// How the VM's kubelet registers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeTemplate {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
}

/// The body of `POST /vms`. Not to be printed: the user data may hold a token.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateVm {
    pub name: String,
    pub token: String,
    pub tags: BTreeMap<String, String>,
    pub node: NodeTemplate,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VmState {
    Pending,
    Running,
    Deleting,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Vm {
    pub id: String,
    pub name: String,
    pub state: VmState,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub node_name: String,
    #[serde(default)]
    pub address: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Vm>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
    /// Whether the account's quota is exhausted.
    #[serde(default)]
    quota: bool,
}

/// The maximum number of idle connections: after a burst there are as many as there were concurrent calls.
const IDLE_CONNECTIONS: usize = 16;

/// Sends a request to the cloud and returns the answer.
type Transport = BoxCloneSyncService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// A client of one cloud.
#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    timeout: Duration,
    transport: Transport,
}

impl Client {
    /// A client for the cloud at this URL over TCP, with a timeout for each call.
    pub(crate) fn new(url: &str, timeout: Duration, leadership: &Leadership) -> std::result::Result<Self, UrlError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(leadership.connector(connector));
        Self::with_service(http, url, timeout)
    }

    /// The same over another transport.
    pub(crate) fn with_service<S, B>(service: S, url: &str, timeout: Duration) -> std::result::Result<Self, UrlError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let failed = |reason: &str| UrlError { url: url.to_owned(), reason: reason.to_owned() };
        let url = url.trim().trim_end_matches('/');
        let parsed: Uri = url.parse().map_err(|error| failed(&format!("{error}")))?;
        if parsed.scheme_str() != Some("http") {
            return Err(failed("only http is spoken"));
        }
        if parsed.host().is_none_or(str::is_empty) || parsed.query().is_some() {
            return Err(failed("it must have a host and no query"));
        }
        let bounded = |response: Response<B>| response.map(|body| Limited::new(body, ANSWER_LIMIT).boxed_unsync());
        let transport = BoxCloneSyncService::new(service.map_response(bounded).map_err(Into::into));
        Ok(Self { url: url.to_owned(), timeout, transport })
    }

    /// Creates a VM, or finds the one that the token created.
    pub(crate) async fn create(&self, order: &CreateVm) -> Result<Vm> {
        let body = serde_json::to_vec(order).map_err(|error| DriverError::new(Code::Internal, error.to_string()))?;
        self.call(Method::POST, "/vms", body).await
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Vm> {
        self.call(Method::GET, &format!("/vms/{}", escaped(id)), Vec::new()).await
    }

    /// Requests the deletion of a VM.
    pub(crate) async fn delete(&self, id: &str) -> Result<Vm> {
        self.call(Method::DELETE, &format!("/vms/{}", escaped(id)), Vec::new()).await
    }

    /// All VMs with these tags.
    pub(crate) async fn list(&self, tags: &[(&str, &str)]) -> Result<Vec<Vm>> {
        let mut path = format!("/vms?limit={PAGE}");
        for (key, value) in tags {
            path.extend(["&tag.", &escaped(key), "=", &escaped(value)]);
        }
        let (mut vms, mut cursors) = (Vec::new(), HashSet::new());
        let mut after = String::new();
        loop {
            let page: Page = self.call(Method::GET, &format!("{path}{after}"), Vec::new()).await?;
            vms.extend(page.items);
            let Some(next) = page.next else { return Ok(vms) };
            after = format!("&after={}", escaped(&next));
            if !cursors.insert(next) || cursors.len() > PAGES_LIMIT {
                let message = "the list of vms does not end; its cursor leads back";
                return Err(DriverError::new(Code::Internal, message));
            }
        }
    }

    async fn call<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T> {
        let what = Call { method: &method, path };
        let Ok(answer) = tokio::time::timeout(self.timeout, self.send(&what, body)).await else {
            let message = format!("failed to {what}: no answer within {:?}; it may have had an effect", self.timeout);
            return Err(DriverError::new(Code::DeadlineExceeded, message));
        };
        let (status, body) = answer?;
        if !status.is_success() {
            return Err(refusal(&what, status, &body));
        }
        serde_json::from_slice(&body).map_err(|error| {
            let message =
                format!("failed to {what}: the answer cannot be understood: {error}; it may have had an effect");
            DriverError::new(Code::Unknown, message)
        })
    }

    async fn send(&self, what: &Call<'_>, body: Vec<u8>) -> Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(what.method)
            .uri(format!("{}{}", self.url, what.path))
            .header(header::USER_AGENT, AGENT)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| DriverError::new(Code::InvalidArgument, format!("failed to {what}: {error}")))?;
        let response = self.transport.clone().oneshot(request).await.map_err(|error| {
            if never_arrived(error.as_ref()) {
                let causes = with_causes(error.as_ref());
                let message = format!("failed to {what}: the cloud at {} cannot be reached: {causes}", self.url);
                DriverError::new(Code::Unavailable, message)
            } else {
                lost(what, error.as_ref())
            }
        })?;
        let status = response.status();
        let body = response.into_body().collect().await;
        Ok((status, body.map_err(|error| lost(what, error.as_ref()))?.to_bytes()))
    }
}

/// A call, for messages. It contains no secret: confidential values are only in bodies.
struct Call<'a> {
    method: &'a Method,
    path: &'a str,
}

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.method, self.path)
    }
}

/// Whether the request was never sent, because there was no connection.
fn never_arrived(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The error if the request was sent and no answer came back.
fn lost(what: &Call<'_>, error: &(dyn std::error::Error + 'static)) -> DriverError {
    let message = format!("failed to {what}: the answer was lost: {}; it may have had an effect", with_causes(error));
    DriverError::new(Code::Unknown, message)
}

/// The cloud's own error, or one that is derived from the status code.
fn refusal(what: &Call<'_>, status: StatusCode, body: &[u8]) -> DriverError {
    let failure = serde_json::from_slice::<Failure>(body).ok();
    let failure = failure.and_then(|failure| Some((Code::from_name(&failure.code)?, failure)));
    let Some((code, Failure { message, quota, .. })) = failure.filter(|(code, _)| *code != Code::Ok) else {
        // Most likely a gateway answered. The request may have taken effect.
        let code = if status.is_client_error() { Code::Internal } else { Code::Unavailable };
        let text = String::from_utf8_lossy(body);
        let excerpt: String = text.chars().filter(|character| !character.is_control()).take(EXCERPT).collect();
        let message = format!("failed to {what}: status {status} without a reason that can be understood: {excerpt:?}");
        return DriverError::new(code, message);
    };
    let scope = if quota { Scope::Account } else { Scope::MachineType };
    let exhausted = (code == Code::ResourceExhausted).then_some(scope);
    DriverError { exhausted, ..DriverError::new(code, message) }
}

/// Escapes all characters that are not allowed in a path or a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
