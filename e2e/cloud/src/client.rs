//! The client of tests.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::{
    AddressOrder, Code, CreateVm, Effect, Event, Failure, Fault, FaultOrder, HardwareOrder, KubeletOrder,
    OBSERVER_HEADER, PAGE_LIMIT, Page, Quota, Stats, Vm,
};

/// The deadline of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two polls of a wait.
const LOOK: Duration = Duration::from_millis(50);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The cloud answered with an error.
    #[error("failed to {call}: the cloud says {failure}")]
    Refused {
        /// The method and path.
        call: String,
        /// The error.
        failure: Failure,
    },
    /// There was no answer.
    #[error("failed to {call}: {reason}; is the cloud running?")]
    NoAnswer {
        /// The method and path.
        call: String,
        /// Why there was none.
        reason: String,
    },
    /// The answer cannot be decoded.
    #[error("failed to {call}: the answer with status {status} cannot be understood: {reason}")]
    Malformed {
        /// The method and path.
        call: String,
        /// The HTTP status.
        status: u16,
        /// Why it cannot be decoded.
        reason: String,
    },
    /// A wait timed out.
    #[error("waited {waited:?} for {what} in vain; {seen}")]
    Waited {
        /// How long it waited.
        waited: Duration,
        /// What it waited for.
        what: String,
        /// The last state.
        seen: String,
    },
}

impl ClientError {
    /// The code of an error response.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { failure, .. } => Some(failure.code),
            _ => None,
        }
    }
}

/// A client for tests. Its calls are not counted and meet no faults.
#[derive(Clone, Debug)]
pub struct CloudClient {
    url: String,
    http: Client<HttpConnector, Full<Bytes>>,
    observer: bool,
}

impl CloudClient {
    /// A client for the cloud at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into().trim_end_matches('/').to_owned();
        Self { url, http: Client::builder(TokioExecutor::new()).build_http(), observer: true }
    }

    /// The same client, as a driver: calls are counted, delayed, and meet faults.
    #[must_use]
    pub fn as_customer(&self) -> Self {
        Self { observer: false, ..self.clone() }
    }

    /// The cloud's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All VMs, including those in deletion, oldest first.
    pub async fn vms(&self) -> Result<Vec<Vm>, ClientError> {
        self.vms_where(&BTreeMap::new()).await
    }

    /// The VMs with these tags, oldest first.
    pub async fn vms_where(&self, tags: &BTreeMap<String, String>) -> Result<Vec<Vm>, ClientError> {
        let mut path = format!("/vms?limit={PAGE_LIMIT}");
        for (key, value) in tags {
            path.extend(["&tag.", &escape(key), "=", &escape(value)]);
        }
        self.pages(&path).await
    }

    /// The oldest VM of this name, if there is one.
    pub async fn vm_named(&self, name: &str) -> Result<Option<Vm>, ClientError> {
        let page: Page<Vm> = self.ask(Method::GET, &format!("/vms?name={}", escape(name)), None).await?;
        Ok(page.items.into_iter().next())
    }

    /// A VM, if it exists.
    pub async fn get(&self, id: &str) -> Result<Option<Vm>, ClientError> {
        match self.ask(Method::GET, &format!("/vms/{}", escape(id)), None).await {
            Ok(vm) => Ok(Some(vm)),
            Err(error) if error.code() == Some(Code::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a VM.
    pub async fn create(&self, order: &CreateVm) -> Result<Vm, ClientError> {
        self.ask(Method::POST, "/vms", Some(encode(order))).await
    }

    /// Deletes a VM.
    pub async fn delete(&self, id: &str) -> Result<Vm, ClientError> {
        self.ask(Method::DELETE, &format!("/vms/{}", escape(id)), None).await
    }

    /// Stops a VM. It stays, as `stopped`.
    pub async fn kill(&self, id: &str) -> Result<Vm, ClientError> {
        self.ask(Method::POST, &format!("/vms/{}/kill", escape(id)), None).await
    }

    /// Starts a stopped VM.
    pub async fn start(&self, id: &str) -> Result<Vm, ClientError> {
        self.ask(Method::POST, &format!("/vms/{}/start", escape(id)), None).await
    }

    /// Sets the behavior of a VM's kubelet.
    pub async fn kubelet(&self, id: &str, order: &KubeletOrder) -> Result<Vm, ClientError> {
        self.ask(Method::POST, &format!("/vms/{}/kubelet", escape(id)), Some(encode(order))).await
    }

    /// Sets the state of a VM's hardware.
    pub async fn hardware(&self, id: &str, order: HardwareOrder) -> Result<Vm, ClientError> {
        self.ask(Method::POST, &format!("/vms/{}/hardware", escape(id)), Some(encode(&order))).await
    }

    /// Sets the addresses that the cloud shows of a VM.
    pub async fn addresses(&self, id: &str, order: &AddressOrder) -> Result<Vm, ClientError> {
        self.ask(Method::POST, &format!("/vms/{}/addresses", escape(id)), Some(encode(order))).await
    }

    /// Adds a fault.
    pub async fn fault(&self, order: &FaultOrder) -> Result<Fault, ClientError> {
        self.ask(Method::POST, "/faults", Some(encode(order))).await
    }

    /// The active faults.
    pub async fn faults(&self) -> Result<Vec<Fault>, ClientError> {
        let page: Page<Fault> = self.ask(Method::GET, "/faults", None).await?;
        Ok(page.items)
    }

    /// Removes all faults.
    pub async fn clear_faults(&self) -> Result<(), ClientError> {
        self.ask::<Value>(Method::DELETE, "/faults", None).await.map(drop)
    }

    /// Removes a fault. `NotFound` if it has expired.
    pub async fn clear_fault(&self, id: u64) -> Result<(), ClientError> {
        self.ask::<Value>(Method::DELETE, &format!("/faults/{id}"), None).await.map(drop)
    }

    /// Sets the quota. `None`: no quota.
    pub async fn set_quota(&self, vms: Option<u64>) -> Result<(), ClientError> {
        self.ask::<Quota>(Method::PUT, "/quota", Some(encode(&Quota { vms }))).await.map(drop)
    }

    /// The statistics.
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.ask(Method::GET, "/stats", None).await
    }

    /// Resets the counts of calls and the maximum number of VMs.
    pub async fn reset_stats(&self) -> Result<Stats, ClientError> {
        self.ask(Method::POST, "/stats/reset", None).await
    }

    /// The events after this number. 0: all that are kept.
    pub async fn events(&self, after: u64) -> Result<Vec<Event>, ClientError> {
        let mut events = Vec::new();
        let mut after = Some(after.to_string());
        while let Some(cursor) = after {
            let path = format!("/events?limit={PAGE_LIMIT}&after={cursor}");
            let page: Page<Event> = self.ask(Method::GET, &path, None).await?;
            events.extend(page.items);
            after = page.next;
        }
        Ok(events)
    }

    /// Waits until the VMs satisfy a condition, and returns them. `what` is for the error.
    pub async fn wait_for_vms(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&[Vm]) -> bool,
    ) -> Result<Vec<Vm>, ClientError> {
        let started = Instant::now();
        loop {
            let vms = self.vms().await?;
            if wanted(&vms) {
                return Ok(vms);
            }
            if started.elapsed() > within {
                let seen = format!("there are {} vms", vms.len());
                return Err(ClientError::Waited { waited: within, what: what.to_owned(), seen });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until there are this many VMs, including those in deletion.
    pub async fn wait_for_count(&self, count: usize, within: Duration) -> Result<Vec<Vm>, ClientError> {
        self.wait_for_vms(&format!("{count} vms"), within, |vms| vms.len() == count).await
    }

    /// Waits until the cloud answers.
    pub async fn wait_until_up(&self, within: Duration) -> Result<(), ClientError> {
        let started = Instant::now();
        loop {
            match self.stats().await {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > within => return Err(error),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut entries = Vec::new();
        let mut after = String::new();
        loop {
            let page: Page<T> = self.ask(Method::GET, &format!("{path}{after}"), None).await?;
            entries.extend(page.items);
            match page.next {
                Some(next) => after = format!("&after={}", escape(&next)),
                None => return Ok(entries),
            }
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, ClientError> {
        let call = format!("{method} {path}");
        let no_answer = |reason: String| ClientError::NoAnswer { call: call.clone(), reason };
        let answer = tokio::time::timeout(CALL_TIMEOUT, self.send(method, path, body)).await;
        let (status, body) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(no_answer(error.to_string())),
            Err(_) => return Err(no_answer(format!("no answer within {CALL_TIMEOUT:?}"))),
        };
        let malformed = |error: serde_json::Error| ClientError::Malformed {
            call: call.clone(),
            status: status.as_u16(),
            reason: error.to_string(),
        };
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(malformed);
        }
        let failure = serde_json::from_slice(&body).map_err(malformed)?;
        Err(ClientError::Refused { call, failure })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if self.observer {
            request = request.header(OBSERVER_HEADER, "true");
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let response = self.http.request(request.body(Full::new(Bytes::from(body)))?).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// The types of the API have string keys and finite numbers, so they are always JSON.
fn encode(body: &impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| json!({ "unencodable": error.to_string() }))
}

/// Escapes a text for a path or query.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let digits = [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            escaped.push('%');
            escaped.extend(digits);
        }
    }
    escaped
}

impl FaultOrder {
    /// A fault that applies to all calls of an operation until it is removed.
    pub fn always(operation: super::api::FaultOperation, effect: Effect) -> Self {
        Self {
            operation,
            matching: super::api::FaultMatch::default(),
            count: None,
            for_seconds: None,
            probability: None,
            effect,
        }
    }

    /// Limits the number of calls that it applies to.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Restricts it to machines whose names match the pattern.
    #[must_use]
    pub fn on_machine(self, pattern: impl Into<String>) -> Self {
        Self { matching: super::api::FaultMatch { machine: Some(pattern.into()), ..self.matching }, ..self }
    }

    /// Restricts it to VMs in zones that match the pattern.
    #[must_use]
    pub fn in_zone(self, pattern: impl Into<String>) -> Self {
        Self { matching: super::api::FaultMatch { zone: Some(pattern.into()), ..self.matching }, ..self }
    }

    /// Lets it expire after some seconds.
    #[must_use]
    pub fn for_seconds(self, seconds: f64) -> Self {
        Self { for_seconds: Some(seconds), ..self }
    }
}
