//! The HTTP client of the simulated cloud.
//!
//! # Guarantees
//! * Every call ends: by an answer, or by its timeout. Dropping it is safe. Answers and lists are bounded.
//! * A call whose effect is unknown has a transient code ([`DriverError::is_passing`]), so that it is made again.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::client::legacy;
use jiff::Timestamp;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Exhausted, RequestCounter, Result};
use nodewright_runtime::error::with_causes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::Instant;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};

use super::UrlError;

const VMS_PER_PAGE: usize = 500;
const PAGES_LIMIT: usize = 2_000;
/// The maximum length of the excerpt of an unexpected answer in an error.
const EXCERPT: usize = 200;

/// All characters that are not allowed in a path or a query.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const AGENT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"), " (simulated-driver)");

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
    #[serde(rename = "externalCloudProvider", skip_serializing_if = "std::ops::Not::not")]
    pub external_cloud_provider: bool,
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
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
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
    pub size: String,
    #[serde(default)]
    pub addresses: Vec<Address>,
    #[serde(default)]
    pub zone: Option<String>,
    #[serde(default)]
    pub region: Option<String>,
    #[serde(default)]
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Address {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
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
    #[serde(default)]
    throttled: bool,
    /// The zone without capacity.
    #[serde(default)]
    zone: Option<String>,
}

pub(crate) type Transport =
    BoxCloneSyncService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    timeout: Duration,
    transport: Transport,
    /// Those that have ended. A page of a list is one.
    pub(crate) requests: RequestCounter,
}

impl Client {
    pub(crate) fn new(url: &str, timeout: Duration, transport: Transport) -> std::result::Result<Self, UrlError> {
        let failed = |reason: &str| UrlError { url: url.to_owned(), reason: reason.to_owned() };
        let url = url.trim().trim_end_matches('/');
        let parsed: Uri = url.parse().map_err(|error| failed(&format!("{error}")))?;
        if parsed.scheme_str() != Some("http") {
            return Err(failed("only http is spoken"));
        }
        if parsed.host().is_none_or(str::is_empty) || parsed.query().is_some() {
            return Err(failed("it must have a host and no query"));
        }
        Ok(Self { url: url.to_owned(), timeout, transport, requests: RequestCounter::default() })
    }

    pub(crate) async fn create(&self, order: &CreateVm) -> Result<Vm> {
        let body = serde_json::to_vec(order).map_err(|error| DriverError::new(Code::Internal, error.to_string()))?;
        self.request("instance_create", Method::POST, "/vms", body).await
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Vm> {
        self.request("instance_get", Method::GET, &format!("/vms/{}", escaped(id)), Vec::new()).await
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<Vm> {
        self.request("instance_delete", Method::DELETE, &format!("/vms/{}", escaped(id)), Vec::new()).await
    }

    pub(crate) async fn list(&self, tags: &[(&str, &str)]) -> Result<Vec<Vm>> {
        let mut path = format!("/vms?limit={VMS_PER_PAGE}");
        for (key, value) in tags {
            path.extend(["&tag.", &escaped(key), "=", &escaped(value)]);
        }
        let (mut vms, mut cursors) = (Vec::new(), HashSet::new());
        let mut after = String::new();
        loop {
            let page: Page = self.request("instance_list", Method::GET, &format!("{path}{after}"), Vec::new()).await?;
            vms.extend(page.items);
            let Some(next) = page.next else { return Ok(vms) };
            after = format!("&after={}", escaped(&next));
            if !cursors.insert(next) || cursors.len() > PAGES_LIMIT {
                let message = "the list of vms does not end; its cursor leads back";
                return Err(DriverError::new(Code::Internal, message));
            }
        }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        service: &'static str,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T> {
        let begun = Instant::now();
        let answer = self.call(method, path, body).await;
        self.requests.record(service, begun.elapsed(), answer.is_ok());
        answer
    }

    async fn call<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T> {
        // It contains no secret: confidential values are only in bodies.
        let what = format!("{method} {path}");
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::USER_AGENT, AGENT)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| DriverError::new(Code::InvalidArgument, format!("failed to {what}: {error}")))?;
        let lost =
            |code, why: String| DriverError::new(code, format!("failed to {what}: {why}; it may have had an effect"));
        let answer = tokio::time::timeout(self.timeout, self.send(request));
        let (status, body) = match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if never_arrived(error.as_ref()) => {
                let causes = with_causes(error.as_ref());
                let message = format!("failed to {what}: the cloud at {} cannot be reached: {causes}", self.url);
                return Err(DriverError::new(Code::Unavailable, message));
            }
            Ok(Err(error)) => {
                return Err(lost(Code::Unknown, format!("the answer was lost: {}", with_causes(error.as_ref()))));
            }
            Err(_) => return Err(lost(Code::DeadlineExceeded, format!("no answer within {:?}", self.timeout))),
        };
        if !status.is_success() {
            return Err(refusal(&what, status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|error| lost(Code::Unknown, format!("the answer cannot be understood: {error}")))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> std::result::Result<(StatusCode, Bytes), BoxError> {
        let (head, body) = self.transport.clone().oneshot(request).await?.into_parts();
        Ok((head.status, body.collect().await?.to_bytes()))
    }
}

fn never_arrived(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn refusal(what: &str, status: StatusCode, body: &[u8]) -> DriverError {
    let failure = serde_json::from_slice::<Failure>(body).ok();
    let failure = failure.and_then(|failure| Some((Code::from_name(&failure.code)?, failure)));
    let Some((code, Failure { message, throttled, zone, .. })) = failure.filter(|(code, _)| *code != Code::Ok) else {
        // Most likely a gateway answered. The request may have taken effect.
        let code = if status.is_client_error() { Code::Internal } else { Code::Unavailable };
        let text = String::from_utf8_lossy(body);
        let excerpt: String = text.chars().filter(|character| !character.is_control()).take(EXCERPT).collect();
        let message = format!("failed to {what}: status {status} without a reason that can be understood: {excerpt:?}");
        return DriverError::new(code, message);
    };
    let exhausted = zone.map(|zone| Exhausted { zone: Some(zone), retry_after: None });
    DriverError { throttled, exhausted, ..DriverError::new(code, message) }
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}
