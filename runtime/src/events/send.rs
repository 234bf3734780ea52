//! Sends events to the API server.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, header};
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::Queued;
use super::correlate::{Action, Correlator, Same, wire_type};
use crate::leadership::Clock;
use nodewright_observability::metrics::Metrics;

/// The time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses before the retries of a request that got no answer, a 429 or a 5xx.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The log interval of refusals: the cause is probably the same for all.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// Sends the requests for events, one at a time.
pub(super) struct Sender {
    client: kube::Client,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    correlator: Correlator,
    instance: String,
    logged: Option<Instant>,
}

/// The required part of the answer.
#[derive(Deserialize)]
struct Counted {
    #[serde(default)]
    count: Option<i32>,
}

impl Sender {
    pub(super) fn new(client: kube::Client, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { client, metrics, clock, correlator: Correlator::default(), instance, logged: None }
    }

    /// Sends an event, as a creation or as a repeat.
    pub(super) async fn take(&mut self, queued: Queued) {
        let Some(action) = self.correlator.admit(&queued.event, self.clock.elapsed()) else {
            self.metrics.event_dropped();
            return;
        };
        let result = self.perform(&action, &queued).await;
        self.metrics.event_sent(result.is_ok());
        if let Err(error) = result {
            let (Action::Create(same) | Action::Repeat(same, _)) = &action;
            self.correlator.forget(same);
            self.log(&queued, &error);
        }
    }

    async fn perform(&mut self, action: &Action, queued: &Queued) -> Result<(), kube::Error> {
        match action {
            Action::Create(same) => self.create(same, queued).await,
            Action::Repeat(same, count) => match self.patch(same, Some(*count), queued).await {
                // Events expire after an hour, and users may delete them before.
                Err(error) if code(&error) == Some(404) => self.create(same, queued).await,
                result => result.map(drop),
            },
        }
    }

    async fn create(&mut self, same: &Same, queued: &Queued) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(&self.body(same, queued)).map_err(kube::Error::SerdeError)?;
        let result = self.send(queued, &Method::POST, &collection(same), body, "application/json").await;
        match result {
            Ok(_) => {
                self.correlator.correct(same, 1);
                Ok(())
            }
            // An earlier process created it, or its record was dropped: the server has the count.
            Err(error) if code(&error) == Some(409) => {
                let known = self.patch(same, None, queued).await?.count.unwrap_or(1);
                let count = known.saturating_add(1);
                self.correlator.correct(same, count);
                self.patch(same, Some(count), queued).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    fn body(&self, same: &Same, Queued { event, reporter, .. }: &Queued) -> CoreEvent {
        let now = Time(self.clock.wall());
        CoreEvent {
            metadata: ObjectMeta {
                name: Some(same.name.clone()),
                namespace: Some(same.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: event.regarding.clone(),
            type_: Some(wire_type(event.kind)),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.clone()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource { component: Some(reporter.component.clone()), host: None }),
            reporting_component: Some(reporter.component.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..CoreEvent::default()
        }
    }

    /// Raises the time of an event, and its count if it is known.
    async fn patch(&self, same: &Same, count: Option<i32>, queued: &Queued) -> Result<Counted, kube::Error> {
        let mut patch = json!({ "lastTimestamp": Time(self.clock.wall()) });
        if let Some(count) = count {
            patch["count"] = count.into();
        }
        let address = format!("{}/{}", collection(same), same.name);
        let content = "application/merge-patch+json";
        let answer = self.send(queued, &Method::PATCH, &address, patch.to_string().into_bytes(), content).await?;
        serde_json::from_str(&answer).map_err(kube::Error::SerdeError)
    }

    /// Sends a request up to three times, during leadership. A repeat is harmless: the name is fixed, and so is the count.
    async fn send(
        &self,
        queued: &Queued,
        method: &Method,
        path: &str,
        body: Vec<u8>,
        content: &'static str,
    ) -> Result<String, kube::Error> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let request = request(&queued.reporter.user_agent, method, path, body.clone(), content)?;
            let begun = Instant::now();
            let limit = REQUEST_TIMEOUT.min(queued.term.remaining());
            if limit.is_zero() {
                return Err(kube::Error::Service("this process is no longer the leader".into()));
            }
            let result = match tokio::time::timeout(limit, self.client.request_text(request)).await {
                Ok(result) => result,
                Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
            };
            let status = if result.is_ok() { Some(200) } else { result.as_ref().err().and_then(code) };
            self.metrics.requested(method, path, status.unwrap_or(0), begun.elapsed());
            let may_pass =
                result.as_ref().is_err_and(|error| code(error).is_none_or(|code| code == 429 || code >= 500));
            match pauses.next().filter(|_| may_pass) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return result,
            }
        }
    }

    fn log(&mut self, Queued { event, reporter, .. }: &Queued, error: &kube::Error) {
        if self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        self.logged = Some(Instant::now());
        let (component, reason) = (&reporter.component, event.reason);
        if code(error) == Some(403) {
            let hint = "grant create and patch on events, unless the namespace is being deleted";
            tracing::warn!(component, reason, %error, "failed to send event: {hint}");
        } else {
            tracing::warn!(component, reason, %error, "failed to send event, it is dropped");
        }
    }
}

fn request(
    user_agent: &HeaderValue,
    method: &Method,
    path: &str,
    body: Vec<u8>,
    content: &'static str,
) -> Result<Request<Vec<u8>>, kube::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::USER_AGENT, user_agent)
        .header(header::CONTENT_TYPE, content)
        .header(header::ACCEPT, "application/json")
        .body(body)
        .map_err(kube::Error::HttpError)
}

fn collection(same: &Same) -> String {
    format!("/api/v1/namespaces/{}/events", same.namespace)
}

/// The status code of an answer; `None` without an answer.
fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
