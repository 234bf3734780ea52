//! Sends events to the API server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use k8s_openapi::{
    api::core::v1::{Event as CoreEvent, EventSource},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    Queued,
    correlate::{Correlator, EventName},
};
use crate::{
    json,
    leadership::Clock,
    request::{Call, Connection, FailureClass, RequestError},
};
use nodewright_observability::metrics::Metrics;

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses before the retries of a request that got no answer, a 429 or a 5xx.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The log interval of refusals: the cause is probably the same for all.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// Sends the requests for events, one at a time.
pub(super) struct Sender {
    connection: Connection,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    correlator: Correlator,
    instance: String,
    logged: Option<Instant>,
}

impl Sender {
    pub(super) fn new(connection: Connection, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { connection, metrics, clock, correlator: Correlator::default(), instance, logged: None }
    }

    pub(super) async fn take(&mut self, queued: Queued) {
        let Some((name, count)) = self.correlator.admit(&queued.event, self.clock.elapsed()) else {
            self.metrics.event_dropped();
            return;
        };
        let result = match count {
            None => self.create(&name, &queued).await,
            Some(_) => match self.patch(&name, count, &queued).await {
                // Events expire after an hour, and users may delete them before.
                Err(error) if error.is_not_found() => self.create(&name, &queued).await,
                result => result.map(drop),
            },
        };
        self.metrics.event_sent(result.is_ok());
        if let Err(error) = result {
            self.correlator.forget(&name);
            self.log(&queued, &error);
        }
    }

    async fn create(&mut self, name: &EventName, queued: &Queued) -> Result<(), RequestError> {
        let event = serde_json::to_value(self.body(name, queued)).unwrap_or_default();
        match self.send(queued, &Call::with(Method::POST, collection(name), "application/json", &event)).await {
            Ok(_) => {
                self.correlator.correct(name, 1);
                Ok(())
            }
            // An earlier process created it, or its record was dropped: the server has the count.
            Err(error) if error.class == FailureClass::Conflict => {
                let known = self.patch(name, None, queued).await?.count.unwrap_or(1);
                let count = known.saturating_add(1);
                self.correlator.correct(name, count);
                self.patch(name, Some(count), queued).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    fn body(&self, name: &EventName, Queued { event, source }: &Queued) -> CoreEvent {
        let now = Time(self.clock.wall());
        let EventName { namespace, name } = name.clone();
        CoreEvent {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: event.regarding.clone(),
            type_: Some(event.type_().to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.clone()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource { component: Some(source.component.to_string()), host: None }),
            reporting_component: Some(source.component.to_string()),
            reporting_instance: Some(self.instance.clone()),
            ..CoreEvent::default()
        }
    }

    async fn patch(&self, name: &EventName, count: Option<i32>, queued: &Queued) -> Result<CoreEvent, RequestError> {
        let mut patch = json!({ "lastTimestamp": Time(self.clock.wall()) });
        if let Some(count) = count {
            patch["count"] = count.into();
        }
        let address = format!("{}/{}", collection(name), name.name);
        let answer =
            self.send(queued, &Call::with(Method::PATCH, address, "application/merge-patch+json", &patch)).await?;
        Ok(json::from_slice(answer.body()).unwrap_or_default())
    }

    /// Sends a request up to three times, during leadership. A repeat is harmless: the name is fixed, and so is the count.
    async fn send(&self, Queued { source, .. }: &Queued, call: &Call) -> Result<Response<Bytes>, RequestError> {
        let connection = self.connection.as_agent(source.user_agent.clone()).within(source.leadership.clone());
        let mut pauses = PAUSES.into_iter();
        loop {
            if source.leadership.is_over() {
                return Err(RequestError::local(FailureClass::Expired, "this process is no longer the leader"));
            }
            let result = connection.send(call.clone()).await;
            let may_pass = |error: &RequestError| {
                matches!(
                    error.class,
                    FailureClass::TooManyRequests
                        | FailureClass::Unreachable
                        | FailureClass::Unauthorized
                        | FailureClass::Unknown
                )
            };
            match pauses.next().filter(|_| result.as_ref().is_err_and(may_pass)) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return result,
            }
        }
    }

    fn log(&mut self, Queued { event, source }: &Queued, error: &RequestError) {
        if self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        self.logged = Some(Instant::now());
        let (component, reason) = (&*source.component, event.reason);
        if error.status == Some(StatusCode::FORBIDDEN) {
            let hint = "grant create and patch on events, unless the namespace is being deleted";
            tracing::warn!(component, reason, %error, "failed to send event: {hint}");
        } else {
            tracing::warn!(component, reason, %error, "failed to send event, it is dropped");
        }
    }
}

fn collection(name: &EventName) -> String {
    format!("/api/v1/namespaces/{}/events", name.namespace)
}
