//! Logs to a buffer, traces to an in-process collector.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::SpanData;
use parking_lot::Mutex;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tracing::instrument::WithSubscriber;

use super::*;
use crate::trace::{SpanRecord, TraceContext};

/// A log that tests can read.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn build(config: &TelemetryConfig) -> (Telemetry, Dispatch, Buffer) {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let (telemetry, subscriber) = Telemetry::build(config, move || writer.clone()).unwrap();
    (telemetry, subscriber, buffer)
}

/// An in-process collector.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> (Self, SocketAddr) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (collector, address) = (Self::default(), listener.local_addr().unwrap());
        let service = TraceServiceServer::new(collector.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, address)
    }

    /// Each span with the resource attributes of its process.
    fn spans(&self) -> Vec<(Span, BTreeMap<String, String>)> {
        let requests = self.0.lock().clone();
        let resources = requests.into_iter().flat_map(|request| request.resource_spans);
        let spans = resources.flat_map(|spans| {
            let attributes = spans.resource.unwrap_or_default().attributes.into_iter().filter_map(|attribute| {
                match attribute.value?.value? {
                    Value::StringValue(text) => Some((attribute.key, text)),
                    _ => None,
                }
            });
            let attributes: BTreeMap<_, _> = attributes.collect();
            let spans = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| (span, attributes.clone()))
        });
        spans.collect()
    }
}

fn tracing_to(address: SocketAddr) -> TelemetryConfig {
    TelemetryConfig {
        version: "0.1.0".to_owned(),
        attributes: vec![("k8s.namespace.name", "shoot".to_owned())],
        endpoint: Some(format!("http://{address}")),
        interval: Duration::from_millis(50),
        ..TelemetryConfig::default()
    }
}

fn creation() -> SpanRecord {
    let context = TraceContext::from_seed("uid-1/creation", true);
    let at = |text: &str| text.parse().unwrap();
    SpanRecord::root("creation", context, at("2026-11-20T10:00:00Z"), at("2026-11-20T10:02:00.5Z"))
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_both_kinds_reach_the_collector() {
    let (collector, address) = Collector::start().await;
    let (telemetry, subscriber, _) = build(&tracing_to(address));
    telemetry.spans.record(creation());
    async {
        let reconcile = tracing::info_span!("reconcile", machine = "a");
        crate::trace::link(&reconcile, creation().context.at(creation().id));
        reconcile.in_scope(|| {
            let context = crate::trace::current().unwrap();
            assert!(context.sampled && context.trace_id != creation().context.trace_id);
        });
    }
    .with_subscriber(subscriber)
    .await;
    telemetry.flush().await;

    let spans = collector.spans();
    let named = |name: &str| spans.iter().find(|(span, _)| span.name == name).unwrap();
    let (span, process) = named("creation");
    assert_eq!(span.trace_id, creation().context.trace_id.to_bytes());
    assert_eq!(span.span_id, creation().id.to_bytes());
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 120_500_000_000);
    assert_eq!(process["service.name"], "nodewright");
    assert_eq!(process["service.version"], "0.1.0");
    assert_eq!(process["k8s.namespace.name"], "shoot");
    let (span, process) = named("reconcile");
    assert_eq!(span.links[0].trace_id, creation().context.trace_id.to_bytes());
    assert_eq!(process["service.name"], "nodewright");
    telemetry.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_exports_what_waits() {
    let (collector, address) = Collector::start().await;
    let config = TelemetryConfig { interval: Duration::from_hours(1), ..tracing_to(address) };
    let (telemetry, _, _) = build(&config);
    telemetry.spans.record(creation());
    telemetry.shutdown().await;
    assert_eq!(collector.spans().len(), 1);
    telemetry.spans.record(creation());
}

/// An exporter that hangs until it is released.
#[derive(Debug)]
struct Hanging {
    begun: mpsc::Sender<usize>,
    released: Mutex<mpsc::Receiver<OTelSdkResult>>,
}

impl SpanExporter for Hanging {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.begun.send(batch.len()).unwrap();
        // With the other end it is released for good.
        self.released.lock().recv().unwrap_or(Ok(()))
    }
}

/// Telemetry with such an exporter: the lengths of the batches whose export has begun, and what releases it.
fn hanging() -> (Telemetry, mpsc::Receiver<usize>, mpsc::Sender<OTelSdkResult>) {
    let (begun, batches) = mpsc::channel();
    let (release, released) = mpsc::channel();
    // Nothing but a full batch begins an export.
    let config = TelemetryConfig { interval: Duration::from_hours(1), ..TelemetryConfig::default() };
    let traces = traces_to(Hanging { begun, released: Mutex::new(released) }, &config);
    let (telemetry, ..) = build(&config);
    (Telemetry { spans: traces.spans.clone(), traces: Some(traces), ..telemetry }, batches, release)
}

/// The value of one of the metrics of spans.
fn count(telemetry: &Telemetry, series: &str) -> usize {
    let metrics = Metrics::new();
    telemetry.register_metrics(&metrics);
    let text = metrics.encode().unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("otel_sdk_{series} ")));
    value.unwrap_or_else(|| panic!("{series}: {text}")).parse().unwrap()
}

fn record(telemetry: &Telemetry, spans: usize) {
    for _ in 0..spans {
        telemetry.spans.record(creation());
    }
}

/// That nothing waits for the collector shows in the end of each line before it is released.
#[test]
fn while_a_collector_hangs_the_queue_is_bounded_and_drops_are_counted() {
    let (telemetry, batches, release) = hanging();
    record(&telemetry, BATCH_LENGTH);
    assert_eq!(batches.recv(), Ok(BATCH_LENGTH));
    record(&telemetry, QUEUE_LENGTH);
    assert_eq!(count(&telemetry, r#"processor_span_processed_total{error_type="queue_full"}"#), 0);
    record(&telemetry, 1_000);
    assert_eq!(count(&telemetry, r#"processor_span_processed_total{error_type="queue_full"}"#), 1_000);
    assert_eq!(count(&telemetry, "processor_span_queue_size"), QUEUE_LENGTH);
    assert_eq!(count(&telemetry, "processor_span_queue_capacity"), QUEUE_LENGTH);
    assert_eq!(count(&telemetry, r#"processor_span_processed_total{error_type=""}"#), BATCH_LENGTH);

    let failure = OTelSdkError::InternalFailure("no".to_owned());
    release.send(Err(failure)).unwrap();
    drop(release);
    // It comes back when all that waits is exported.
    telemetry.traces.as_ref().unwrap().provider.force_flush().unwrap();
    assert_eq!(batches.try_iter().sum::<usize>(), QUEUE_LENGTH);
    assert_eq!(count(&telemetry, "processor_span_queue_size"), 0);
    assert_eq!(count(&telemetry, r#"exporter_span_exported_total{error_type="_OTHER"}"#), BATCH_LENGTH);
    assert_eq!(count(&telemetry, r#"exporter_span_exported_total{error_type=""}"#), QUEUE_LENGTH);
    record(&telemetry, 1);
    assert_eq!(count(&telemetry, "processor_span_queue_size"), 1, "there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_and_a_shutdown_end_while_a_collector_hangs() {
    let (telemetry, batches, release) = hanging();
    record(&telemetry, BATCH_LENGTH);
    assert_eq!(batches.recv(), Ok(BATCH_LENGTH));
    let ended = async {
        telemetry.flush().await;
        telemetry.shutdown().await;
    };
    // Long enough for any computer: it is to fail and not to hang.
    tokio::time::timeout(Duration::from_mins(1), ended).await.unwrap();
    record(&telemetry, 1);
    assert_eq!(count(&telemetry, r#"processor_span_processed_total{error_type="already_shutdown"}"#), 1);
    assert_eq!(count(&telemetry, r#"exporter_span_exported_total{error_type=""}"#), 0, "it hangs");
    drop(release);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_is_abandoned() {
    // Bound and never served: clients can connect but get no answer.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (telemetry, _, _) = build(&tracing_to(silent.local_addr().unwrap()));
    record(&telemetry, QUEUE_LENGTH * 2);
    assert!(count(&telemetry, r#"processor_span_processed_total{error_type="queue_full"}"#) > 0);
    telemetry.shutdown().await;
    assert_eq!(count(&telemetry, r#"exporter_span_exported_total{error_type=""}"#), 0);
}

#[test]
fn levels_change_while_the_process_runs() {
    let (telemetry, subscriber, buffer) = build(&TelemetryConfig::default());
    tracing::dispatcher::with_default(&subscriber, || {
        tracing::debug!("before");
        telemetry.levels.set("warn,nodewright=debug").unwrap();
        tracing::debug!(target: "nodewright", "after");
        tracing::info!(target: "elsewhere", "others");
    });
    assert_eq!(telemetry.levels.current(), "warn,nodewright=debug");
    let text = buffer.text();
    assert!(text.contains("after") && !text.contains("before") && !text.contains("others"), "{text}");
    let error = telemetry.levels.set("nodewright=loud").unwrap_err();
    assert!(error.to_string().starts_with("failed to read log levels \"nodewright=loud\""), "{error}");
}

#[test]
fn json_lines_carry_their_context() {
    let config = TelemetryConfig { format: LogFormat::Json, ..TelemetryConfig::default() };
    let (_, subscriber, buffer) = build(&config);
    tracing::dispatcher::with_default(&subscriber, || {
        let _reconcile = tracing::info_span!("reconcile", machine = "a").entered();
        tracing::info!(vm = "i-1", "created");
    });
    let line: serde_json::Value = serde_json::from_str(&buffer.text()).unwrap();
    assert_eq!((&line["message"], &line["vm"], &line["level"]), (&"created".into(), &"i-1".into(), &"INFO".into()));
    assert_eq!(line["spans"][0]["machine"], "a");
}

#[test]
fn without_a_collector_nothing_is_traced() {
    let (telemetry, subscriber, _) = build(&TelemetryConfig::default());
    assert!(!telemetry.spans.begin("uid-1").sampled);
    tracing::dispatcher::with_default(&subscriber, || {
        tracing::info_span!("reconcile").in_scope(|| assert_eq!(crate::trace::current(), None));
    });
}

#[tokio::test]
async fn what_cannot_work_is_refused() {
    let refused = |change: fn(&mut TelemetryConfig)| {
        let mut config = tracing_to(SocketAddr::from(([127, 0, 0, 1], 4317)));
        change(&mut config);
        Telemetry::build(&config, std::io::sink).err().unwrap().to_string()
    };
    assert!(refused(|config| config.ratio = 1.5).contains("between 0 and 1"));
    assert!(refused(|config| config.endpoint = Some("https://collector:4317".into())).contains("TLS is not supported"));
    let error = refused(|config| config.endpoint = Some("not a url".into()));
    assert!(error.contains("use for example http://collector:4317"), "{error}");
}

#[test]
fn a_word_that_is_no_level_is_refused() {
    for levels in ["loud", "info,loud", "inf"] {
        let error = parse_levels(levels).err().unwrap().to_string();
        assert!(error.contains("is no level: use off, error, warn, info, debug or trace"), "{error}");
    }
    for levels in ["info", "OFF", "info,nodewright_runtime=debug", "nodewright_runtime=trace", "", "warn,a::b"] {
        assert!(parse_levels(levels).is_ok(), "{levels}");
    }
}
