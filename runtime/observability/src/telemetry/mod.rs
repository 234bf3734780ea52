//! Logs and traces of a process.
//!
//! Logs go to standard error, as text or JSON; their levels can change at run time ([`Levels`]). Traces go to an OpenTelemetry
//! collector, if one is configured, by OTLP over gRPC.
//!
//! # Guarantees
//!
//! - A collector that is unreachable, slow or full blocks nothing: spans wait in a queue of bounded length, and spans that do
//!   not fit are dropped, counted ([`Telemetry::register_metrics`]) and logged once a minute.
//! - [`Telemetry::flush`] and [`Telemetry::shutdown`] return within a second.
//! - Log levels do not affect traces, and the other way round.
//!
//! # Caveats
//!
//! - A process has one `tracing` subscriber. Several managers in one process share it; [`Telemetry::build`] returns it
//!   uninstalled, for tests.

mod export;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanExporter, SpanProcessor,
};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use self::export::{Bounded, Counted};
use crate::metrics::{Metrics, SpanCounts};
use crate::trace::{LOG_ONLY, Spans};

/// How long [`Telemetry::flush`] and [`Telemetry::shutdown`] may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit of one export, including its retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const QUEUE_LENGTH: usize = 4_096;
const BATCH_LENGTH: usize = 512;
/// The instrumentation scope of spans of this process.
const SCOPE: &str = "nodewright";
/// Levels for verbose libraries. The configured levels come after them and take precedence. kube logs each failed request as an
/// error, although its caller gets the error and logs it.
const QUIET: &str = "h2=warn,hyper=warn,hyper_util=warn,tower=warn,rustls=warn,tonic=warn,kube_client=off";
/// Not traced: libraries whose spans would be about the export of spans, and spans that exist only for the log.
const UNTRACED: [&str; 9] =
    ["h2", "hyper", "hyper_util", "tower", "rustls", "tonic", "opentelemetry", "kube_client", LOG_ONLY];

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// JSON for programs: one object on each line.
    Json,
    /// Text without the time, for a process that logs each line of this one.
    Untimed,
}

/// The configuration of logs and traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryConfig {
    /// The service name in traces.
    pub service: String,
    /// The service version in traces.
    pub version: String,
    /// Further resource attributes in traces, such as host and namespace.
    pub attributes: Vec<(&'static str, String)>,
    /// The format of the log.
    pub format: LogFormat,
    /// The log levels: a level, or levels by module as in `info,nodewright_runtime=debug`.
    pub levels: String,
    /// The collector's address, such as `http://collector:4317`. Without it nothing is traced.
    pub endpoint: Option<String>,
    /// The sampling ratio of traces that begin here: 0 to 1. A trace that began elsewhere keeps the sampling decision from
    /// there.
    pub ratio: f64,
    /// How often queued spans are exported.
    pub interval: Duration,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            service: SCOPE.to_owned(),
            version: String::new(),
            attributes: vec![],
            format: LogFormat::Text,
            levels: "info".to_owned(),
            endpoint: None,
            ratio: 1.0,
            interval: Duration::from_secs(2),
        }
    }
}

/// Invalid telemetry configuration.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Neither a level nor levels by module.
    #[error("failed to read log levels {0:?}: {1}; use for example info or info,nodewright_runtime=debug")]
    Levels(String, String),
    /// The ratio is not between 0 and 1.
    #[error("failed to set up tracing: the ratio {0} must be between 0 and 1")]
    Ratio(f64),
    /// The collector's address is invalid.
    #[error("failed to set up tracing to {0}: {1}; use for example http://collector:4317")]
    Endpoint(String, Box<ExporterBuildError>),
    /// The collector's address asks for TLS.
    #[error("failed to set up tracing to {0}: TLS is not supported, use a collector beside this process over http://")]
    Tls(String),
    /// This process has a subscriber already.
    #[error("failed to set up logging: it is set up already")]
    AlreadySet,
}

/// Changes the log levels at run time. Cheap to clone.
#[derive(Clone)]
pub struct Levels {
    set: Arc<dyn Fn(EnvFilter) -> bool + Send + Sync>,
    current: Arc<parking_lot::Mutex<String>>,
}

impl Levels {
    /// Sets the log levels; see [`TelemetryConfig::levels`].
    pub fn set(&self, levels: &str) -> Result<(), TelemetryError> {
        let filter = parse_levels(levels)?;
        let mut current = self.current.lock();
        if (self.set)(filter) {
            levels.clone_into(&mut current);
        }
        Ok(())
    }

    /// The levels as last set.
    pub fn current(&self) -> String {
        self.current.lock().clone()
    }
}

/// The logs and traces of this process.
#[derive(Clone)]
pub struct Telemetry {
    /// Changes the log levels.
    pub levels: Levels,
    /// The recorder of spans of long lives.
    pub spans: Spans,
    traces: Option<Traces>,
}

/// The path of spans to a collector.
#[derive(Clone)]
struct Traces {
    provider: SdkTracerProvider,
    spans: Spans,
    counts: SpanCounts,
}

impl Telemetry {
    /// Sets up the telemetry of this process. With an endpoint, it needs a tokio runtime.
    pub fn start(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let (telemetry, subscriber) = Self::build(config, std::io::stderr)?;
        tracing::dispatcher::set_global_default(subscriber).map_err(|_| TelemetryError::AlreadySet)?;
        Ok(telemetry)
    }

    /// The same with another log writer, and without installing the subscriber.
    pub fn build<W>(config: &TelemetryConfig, writer: W) -> Result<(Self, Dispatch), TelemetryError>
    where
        W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
    {
        let (filter, handle) = reload::Layer::new(parse_levels(&config.levels)?);
        let traces = config.endpoint.as_deref().map(|endpoint| traces(config, endpoint)).transpose()?;
        let layer = traces.as_ref().map(|traces| trace_layer(traces.provider.tracer(SCOPE)));
        // The log layer comes last: it writes, the other layer only collects.
        let subscriber = Registry::default().with(layer).with(log_layer(config.format, writer).with_filter(filter));
        let levels = Levels {
            set: Arc::new(move |filter| handle.reload(filter).is_ok()),
            current: Arc::new(parking_lot::Mutex::new(config.levels.clone())),
        };
        let spans = traces.as_ref().map(|traces| traces.spans.clone()).unwrap_or_default();
        Ok((Self { levels, spans, traces }, Dispatch::new(subscriber)))
    }

    /// Adds counts of spans, if they are exported.
    pub fn register_metrics(&self, metrics: &Metrics) {
        if let Some(traces) = &self.traces {
            traces.counts.register(metrics);
        }
    }

    /// Exports all finished spans, within a second.
    pub async fn flush(&self) {
        let Some(Traces { provider, .. }) = self.traces.clone() else { return };
        in_time("flush traces", move || provider.force_flush()).await;
    }

    /// Exports all finished spans, within a second, and none after that.
    pub async fn shutdown(&self) {
        let Some(Traces { provider, .. }) = self.traces.clone() else { return };
        in_time("shut down tracing", move || provider.shutdown_with_timeout(STOP_TIMEOUT)).await;
    }
}

/// Runs blocking work on a separate thread and stops waiting for it after the time limit. The runtime does not wait for it at
/// shutdown either, as it would for `spawn_blocking`.
async fn in_time(what: &'static str, work: impl FnOnce() -> opentelemetry_sdk::error::OTelSdkResult + Send + 'static) {
    let (done, finished) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
        // Ignore the error: the receiver is gone after the time limit.
        let _ = done.send(work());
    });
    if let Err(error) = thread {
        tracing::warn!(%error, "failed to {what}");
        return;
    }
    match tokio::time::timeout(STOP_TIMEOUT, finished).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "failed to {what}"),
        Ok(Err(_)) | Err(_) => tracing::warn!("failed to {what} in time, some spans are lost"),
    }
}

fn parse_levels(levels: &str) -> Result<EnvFilter, TelemetryError> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let wrong = |error: &dyn std::fmt::Display| TelemetryError::Levels(levels.to_owned(), error.to_string());
    // Parse the configured levels alone first, so that the error is about them.
    EnvFilter::builder().parse(levels).map_err(|error| wrong(&error))?;
    // A single word would be the name of a target, of which all is logged.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_word = |directive: &&str| directive.chars().all(char::is_alphanumeric) && !directive.is_empty();
    if let Some(word) = levels.split(',').map(str::trim).filter(is_word).find(|word| !is_level(word)) {
        return Err(wrong(&format!(
            "{word:?} is no level: use off, error, warn, info, debug or trace, or `target=level`"
        )));
    }
    filter.parse(format!("{QUIET},{levels}")).map_err(|error| wrong(&error))
}

fn log_layer<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => Box::new(layer.with_ansi(std::io::stderr().is_terminal())),
        LogFormat::Untimed => Box::new(layer.with_ansi(false).without_time()),
        LogFormat::Json => Box::new(layer.json().flatten_event(true).with_current_span(false)),
    }
}

fn trace_layer<S>(tracer: SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let untraced = UNTRACED.map(|target| (target, LevelFilter::OFF));
    let filter = Targets::new().with_default(LevelFilter::INFO).with_targets(untraced);
    // Threads and source locations do not describe a machine.
    tracing_opentelemetry::layer().with_tracer(tracer).with_threads(false).with_location(false).with_filter(filter)
}

/// The path of spans to the collector.
fn traces(config: &TelemetryConfig, endpoint: &str) -> Result<Traces, TelemetryError> {
    if !(0.0..=1.0).contains(&config.ratio) {
        return Err(TelemetryError::Ratio(config.ratio));
    }
    if endpoint.starts_with("https:") {
        return Err(TelemetryError::Tls(endpoint.to_owned()));
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let exporter = exporter.with_timeout(EXPORT_TIMEOUT).build();
    let exporter = exporter.map_err(|error| TelemetryError::Endpoint(endpoint.to_owned(), Box::new(error)))?;
    Ok(traces_to(exporter, config))
}

/// One queue for both kinds of spans.
fn traces_to(exporter: impl SpanExporter + 'static, config: &TelemetryConfig) -> Traces {
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_LENGTH)
        .with_max_export_batch_size(BATCH_LENGTH)
        .with_scheduled_delay(config.interval)
        .build();
    let resource = Resource::builder()
        .with_service_name(config.service.clone())
        .with_attribute(KeyValue::new("service.version", config.version.clone()))
        .with_attributes(config.attributes.iter().map(|(key, value)| KeyValue::new(*key, value.clone())))
        .build();
    let counts = SpanCounts::new(QUEUE_LENGTH);
    let exporter = Counted::new(exporter, counts.clone());
    let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    // Set it before the processor is shared; the provider cannot do it later.
    processor.set_resource(&resource);
    let processor = Bounded::new(processor, counts.clone());
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor.clone())
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.ratio))))
        .with_resource(resource)
        .build();
    Traces { provider, spans: Spans::new(Arc::new(processor), SCOPE, config.ratio), counts }
}

#[cfg(test)]
mod tests;
