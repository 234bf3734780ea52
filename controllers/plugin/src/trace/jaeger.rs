//! The traces that Jaeger has: OTLP as JSON, from version 3 of its query API.
//!
//! Version 3 finds no traces by attributes over HTTP: version 1.76 ignores `query.attributes`. So the ids of traces come from the
//! API of Jaeger's own pages, which finds them by tags.

use std::{collections::BTreeSet, fmt::Display, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use kube::{Client, Config, client::Body};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::{Fault, Outcome, fail};

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 20;
/// How many traces are requested at once.
const MOST_TRACES: usize = 20;
/// The attributes of spans that name a Machine.
const MACHINE: &str = "nodewright.machine.name";
const NAMESPACE: &str = "nodewright.machine.namespace";
/// The attribute of the span of a Pod with what held it back.
const BLOCKED_BY: &str = "nodewright.pod.blocked_by";
/// The service whose spans name Machines.
pub(super) const SERVICE: &str = "nodewright";

/// A span of any service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Span {
    pub(crate) trace_id: String,
    #[serde(rename = "spanId")]
    pub(crate) id: String,
    #[serde(rename = "parentSpanId", skip_serializing_if = "String::is_empty")]
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) service: String,
    pub(crate) began: Timestamp,
    pub(crate) ended: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<String>,
    /// What held a Pod back that was to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocked_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A query service.
pub(crate) struct Jaeger {
    client: Client,
    url: String,
    timeout: Duration,
}

impl Jaeger {
    /// The service at a URL, such as `http://localhost:16686`.
    pub(crate) fn at(url: &str, timeout: Duration) -> Outcome<Self> {
        let invalid = |message: String| {
            Fault::Message(format!(
                "--jaeger={url} is no URL of a query service, such as http://localhost:16686: {message}"
            ))
        };
        let address = url.parse::<http::Uri>().map_err(|error| invalid(error.to_string()))?;
        if address.scheme().is_none() {
            return Err(invalid("it has no scheme".to_owned()));
        }
        let mut config = Config::new(address);
        config.connect_timeout = Some(timeout);
        let client = Client::try_from(config).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { client, url: url.to_owned(), timeout })
    }

    /// The spans of a trace. None if it is unknown, because it was not sampled, is yet to come or has been dropped.
    pub(crate) async fn trace(&self, id: &str) -> Outcome<Vec<Span>> {
        let Some(body) = self.ask(format!("/api/v3/traces/{id}")).await? else { return Ok(vec![]) };
        spans(&body).map_err(|error| self.unreachable(format!("the answer is no trace: {error}")))
    }

    /// The ids of the traces of a Machine of this name that began since then, in no order.
    pub(crate) async fn about(
        &self,
        namespace: &str,
        machine: &str,
        (since, now): (Timestamp, Timestamp),
    ) -> Outcome<BTreeSet<String>> {
        let tags = json!({MACHINE: machine, NAMESPACE: namespace}).to_string();
        let tags = utf8_percent_encode(&tags, NON_ALPHANUMERIC);
        let period = format!("start={}&end={}", since.as_microsecond(), now.as_microsecond());
        let path = format!("/api/traces?service={SERVICE}&limit={MOST_TRACES}&{period}&tags={tags}");
        let Some(body) = self.ask(path).await? else { return Ok(BTreeSet::new()) };
        let found: Found = serde_json::from_slice(&body)
            .map_err(|error| self.unreachable(format!("the answer is no list of traces: {error}")))?;
        Ok(found.data.into_iter().flatten().map(|trace| trace.id).collect())
    }

    fn unreachable(&self, error: impl Display) -> Fault {
        Fault::Message(format!("failed to ask Jaeger at {} for a trace: {error}", self.url))
    }

    /// The body of an answer; `None` if there is nothing.
    async fn ask(&self, path: String) -> Outcome<Option<Bytes>> {
        let unreachable = |error: String| self.unreachable(error);
        let request = Request::get(path).body(Body::empty()).map_err(|error| unreachable(error.to_string()))?;
        let exchange = async {
            let answer = self.client.send(request).await.map_err(|error| error.to_string())?;
            let status = answer.status();
            let body =
                Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await.map_err(|error| error.to_string())?;
            Ok((status, body.to_bytes()))
        };
        let timeout = tokio::time::timeout(self.timeout, exchange).await;
        let (status, body) = timeout
            .unwrap_or_else(|_| Err(format!("no answer within {} s (see --request-timeout)", self.timeout.as_secs())))
            .map_err(unreachable)?;
        match status {
            StatusCode::OK => Ok(Some(body)),
            StatusCode::NOT_FOUND => Ok(None),
            status => fail(format!("Jaeger at {} answers {status}: is it the URL of its query service?", self.url)),
        }
    }
}

/// What the API of Jaeger's pages has found.
#[derive(Deserialize)]
struct Found {
    /// Null if it has found nothing.
    data: Option<Vec<FoundTrace>>,
}

#[derive(Deserialize)]
struct FoundTrace {
    #[serde(rename = "traceID")]
    id: String,
}

#[derive(Deserialize)]
struct Answer {
    result: Resources,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resources {
    #[serde(default)]
    resource_spans: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    #[serde(default)]
    resource: Attributes,
    #[serde(default)]
    scope_spans: Vec<Scope>,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
struct Attribute {
    key: String,
    #[serde(default)]
    value: Value,
}

#[derive(Deserialize)]
struct Scope {
    #[serde(default)]
    spans: Vec<Sent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sent {
    trace_id: String,
    span_id: String,
    #[serde(default)]
    parent_span_id: String,
    name: String,
    start_time_unix_nano: Value,
    end_time_unix_nano: Value,
    #[serde(flatten)]
    attributes: Attributes,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

/// The code of a failure in OTLP.
const ERROR: i64 = 2;

impl Attributes {
    fn text(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|attribute| attribute.key == key)?.value.get("stringValue")?.as_str()
    }
}

/// The spans in an answer, each once: one that was exported twice is the same span.
fn spans(body: &[u8]) -> Result<Vec<Span>, serde_json::Error> {
    let answer: Answer = serde_json::from_slice(body)?;
    let (mut spans, mut known) = (vec![], BTreeSet::new());
    for Resource { resource, scope_spans } in answer.result.resource_spans {
        let service = resource.text("service.name").unwrap_or_default();
        for sent in scope_spans.into_iter().flat_map(|scope| scope.spans) {
            if known.insert((sent.trace_id.clone(), sent.span_id.clone())) {
                spans.push(span(sent, service));
            }
        }
    }
    spans.sort_by_key(|span: &Span| span.began);
    Ok(spans)
}

fn span(sent: Sent, service: &str) -> Span {
    let failed = sent.status.code == ERROR;
    Span {
        machine: sent.attributes.text(MACHINE).map(str::to_owned),
        blocked_by: sent.attributes.text(BLOCKED_BY).map(str::to_owned),
        began: time(&sent.start_time_unix_nano),
        ended: time(&sent.end_time_unix_nano),
        error: failed.then_some(sent.status.message),
        trace_id: sent.trace_id,
        id: sent.span_id,
        parent: sent.parent_span_id,
        name: sent.name,
        service: service.to_owned(),
    }
}

/// Nanoseconds, as a text in OTLP's JSON, and as a number in that of some programs.
fn time(nanoseconds: &Value) -> Timestamp {
    let number = nanoseconds.as_str().map_or_else(|| nanoseconds.as_i64().map(i128::from), |text| text.parse().ok());
    number.and_then(|number| Timestamp::from_nanosecond(number).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_jaeger_is_read() {
        // As Jaeger 1.76 sends it, with one span twice.
        let span = json!({"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "name": "create call",
            "kind": 1, "startTimeUnixNano": "1764339000000000000", "endTimeUnixNano": "1764339001500000000",
            "attributes": [{"key": MACHINE, "value": {"stringValue": "m"}}, {"key": "n", "value": {"intValue": "1"}}],
            "status": {"message": "no capacity", "code": 2}});
        let body = json!({"result": {"resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "nodewright"}}]},
            "scopeSpans": [{"scope": {"name": "s"}, "spans": [span, span]}]}]}});
        let spans = spans(body.to_string().as_bytes()).unwrap();
        assert_eq!(spans.len(), 1);
        let Span { name, service, machine, error, began, ended, .. } = &spans[0];
        assert_eq!((name.as_str(), service.as_str()), ("create call", "nodewright"));
        assert_eq!((machine.as_deref(), error.as_deref()), (Some("m"), Some("no capacity")));
        assert_eq!(ended.duration_since(*began).as_millis(), 1_500);
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for url in ["localhost:16686", "", "http://"] {
            let error =
                Jaeger::at(url, Duration::from_secs(1)).err().map(|fault| fault.to_string()).unwrap_or_default();
            assert!(error.contains("--jaeger="), "{url}: {error}");
        }
    }
}
