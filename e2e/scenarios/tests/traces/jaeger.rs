//! Jaeger as a process, and what it knows.

use std::{sync::Arc, time::Duration};

use http::Request;
use kube::{Client, Config, client::Body};
use nodewright_e2e_lab::process::{Process, Supervisor, executable, free_ports};
use nodewright_e2e_scenarios::{Failure, TestResult};
use serde_json::{Value, json};

/// The attribute of spans that names a machine.
const MACHINE: &str = "nodewright.machine.name";
/// The environment variable with the path of `jaeger`, which `hack/jaeger.sh` builds.
const VARIABLE: &str = "NODEWRIGHT_JAEGER";
/// How long it may take to start.
const START_TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A collector with a memory and a query service. Dropping it kills it.
pub(crate) struct Jaeger {
    _process: Process,
    client: Client,
    otlp: u16,
    query: u16,
}

/// A span of any service.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) service: String,
    /// In seconds since 1970.
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// Trace and span.
    pub(crate) links: Vec<(String, String)>,
    attributes: Vec<Value>,
}

impl Jaeger {
    pub(crate) async fn start(log: std::path::PathBuf) -> TestResult<Self> {
        let supervisor = Arc::new(Supervisor::start(&[], None)?);
        let [otlp, otlp_http, query, query_grpc, admin, grpc, http]: [u16; 7] = free_ports()?;
        let flag = |name: &str, port: u16| format!("--{name}.host-port=127.0.0.1:{port}");
        let arguments = vec![
            flag("collector.otlp.grpc", otlp),
            flag("collector.otlp.http", otlp_http),
            flag("query.http-server", query),
            flag("query.grpc-server", query_grpc),
            flag("admin.http", admin),
            flag("collector.grpc-server", grpc),
            flag("collector.http-server", http),
        ];
        let mut process = Process::new(&supervisor, "jaeger", executable("jaeger", VARIABLE)?, arguments, log);
        process.start()?;
        let client = Client::try_from(Config::new(format!("http://127.0.0.1:{query}").parse()?))?;
        let jaeger = Self { _process: process, client, otlp, query };
        let started = async {
            while jaeger.ask("/api/services").await.is_err() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(START_TIMEOUT, started).await.map_err(|_| Failure::new("Jaeger does not start"))?;
        Ok(jaeger)
    }

    /// Where it takes spans by OTLP over gRPC.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.otlp)
    }

    /// The URL of its query service.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.query)
    }

    /// All spans of a trace.
    pub(crate) async fn trace(&self, id: &str) -> TestResult<Vec<Span>> {
        Ok(spans(&self.ask(&format!("/api/v3/traces/{id}")).await?))
    }

    /// The traces that have a span of this name: all of their spans.
    pub(crate) async fn traces(&self, span: &str) -> TestResult<Vec<Span>> {
        let quoted = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        let period = "query.start_time_min=2020-01-01T00:00:00Z&query.start_time_max=2100-01-01T00:00:00Z";
        let query = format!(
            "/api/v3/traces?query.service_name=nodewright&query.operation_name={}&query.num_traces=100&{period}",
            quoted(span)
        );
        Ok(spans(&self.ask(&query).await.unwrap_or_default()))
    }

    async fn ask(&self, path: &str) -> TestResult<Value> {
        Ok(self.client.request(Request::get(path).body(Body::empty())?.map(|_| vec![])).await?)
    }
}

fn spans(answer: &Value) -> Vec<Span> {
    let mut spans: Vec<Span> = vec![];
    for resource in answer["result"]["resourceSpans"].as_array().into_iter().flatten() {
        let service = text_of(&resource["resource"]["attributes"], "service.name").unwrap_or_default();
        let scopes = resource["scopeSpans"].as_array().into_iter().flatten();
        spans.extend(
            scopes.flat_map(|scope| scope["spans"].as_array().into_iter().flatten()).map(|it| span(it, &service)),
        );
    }
    spans.sort_by(|a, b| (&a.trace, &a.id).cmp(&(&b.trace, &b.id)));
    spans.dedup_by(|a, b| (&a.trace, &a.id) == (&b.trace, &b.id));
    spans.sort_by(|a, b| a.start.total_cmp(&b.start));
    spans
}

fn span(sent: &Value, service: &str) -> Span {
    let text = |key: &str| sent[key].as_str().unwrap_or_default().to_owned();
    #[expect(clippy::cast_precision_loss, reason = "parts of a microsecond do not matter")]
    let seconds = |key: &str| text(key).parse::<u64>().unwrap_or_default() as f64 / 1e9;
    let links = sent["links"].as_array().into_iter().flatten();
    let part = |link: &Value, key: &str| link[key].as_str().unwrap_or_default().to_owned();
    Span {
        trace: text("traceId"),
        id: text("spanId"),
        parent: text("parentSpanId"),
        name: text("name"),
        service: service.to_owned(),
        start: seconds("startTimeUnixNano"),
        end: seconds("endTimeUnixNano"),
        links: links.map(|link| (part(link, "traceId"), part(link, "spanId"))).collect(),
        attributes: sent["attributes"].as_array().cloned().unwrap_or_default(),
    }
}

impl Span {
    /// A part of something about a machine.
    pub(crate) fn sample(id: &str, parent: &str, (start, end): (f64, f64)) -> Self {
        let machine = json!({"key": MACHINE, "value": {"stringValue": "m"}});
        let text = |text: &str| text.to_owned();
        let (trace, name, service) = (text("t"), text("part"), text("nodewright"));
        Self {
            trace,
            id: text(id),
            parent: text(parent),
            name,
            service,
            start,
            end,
            links: vec![],
            attributes: vec![machine],
        }
    }

    /// The machine that it is about.
    pub(crate) fn machine(&self) -> Option<String> {
        text_of(&Value::Array(self.attributes.clone()), MACHINE)
    }
}

fn text_of(attributes: &Value, key: &str) -> Option<String> {
    let attribute = attributes.as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    attribute["value"]["stringValue"].as_str().map(str::to_owned)
}
