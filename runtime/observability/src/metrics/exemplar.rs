//! Exemplars: the trace of an observation, by which Prometheus and Grafana lead from a bucket of a histogram to a trace.

use std::time::SystemTime;

use prometheus_client::metrics::exemplar::HistogramWithExemplars;

use crate::trace::TraceContext;

/// A histogram of durations. Each bucket keeps the trace of its newest observation that had a sampled one.
pub type DurationHistogram = HistogramWithExemplars<[(&'static str, String); 2]>;

/// Records a duration in seconds. `trace` is its exemplar, if it is sampled: a trace that is not exported would lead nowhere.
pub fn observe(histogram: &DurationHistogram, seconds: f64, trace: Option<TraceContext>) {
    match trace.filter(|trace| trace.sampled) {
        Some(trace) => histogram.observe(seconds, Some(labels(trace)), Some(SystemTime::now())),
        None => histogram.observe(seconds, None, None),
    }
}

/// As `OpenTelemetry` names them.
fn labels(trace: TraceContext) -> [(&'static str, String); 2] {
    [("trace_id", trace.trace_id.to_string()), ("span_id", trace.span_id.to_string())]
}

#[cfg(test)]
mod tests {
    use http::Method;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use std::time::Duration;
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::{Format, Metrics, ReconcileOutcome};
    use super::*;
    use crate::trace;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const EXEMPLAR: &str = r#" # {trace_id="4bf92f3577b34da6a3ce929d0e0e4736",span_id="00f067aa0ba902b7"} 0.003 "#;

    fn reconciled(traceparent: &str) -> Metrics {
        let (metrics, took) = (Metrics::new(), Duration::from_millis(3));
        metrics.reconciled("machine", ReconcileOutcome::Success, took, traceparent.parse().ok());
        metrics.effect_started("create", traceparent.parse().ok()).finish("success");
        metrics
    }

    /// The lines of the histograms of durations that have an exemplar.
    fn exemplars(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.contains("_seconds_bucket{") && line.contains(" # {")).collect()
    }

    #[test]
    fn the_bucket_of_a_duration_names_its_trace_in_openmetrics_alone() {
        let metrics = reconciled(SAMPLED);
        let text = metrics.encode_as(Format::OpenMetrics).unwrap();
        let [reconcile, effect] = exemplars(&text)[..] else { panic!("{text}") };
        let bucket = r#"controller_runtime_reconcile_time_seconds_bucket{le="0.005",controller="machine"} 1"#;
        assert!(reconcile.starts_with(&format!("{bucket}{EXEMPLAR}")), "{reconcile}");
        assert!(effect.starts_with(r#"effect_duration_seconds_bucket{le="0.01",effect="create"} 1 # {trace_id="4bf9"#));
        assert!(text.ends_with("# EOF\n"));

        let text = metrics.encode_as(Format::Text).unwrap();
        assert!(text.lines().any(|line| line == bucket), "{text}");
        assert_eq!(text.matches(" # ").count() + text.matches("# EOF").count(), 0, "{text}");
        assert!(text.contains("# TYPE controller_runtime_reconcile_total counter\n"), "{text}");
    }

    #[test]
    fn what_is_not_exported_has_no_exemplar() {
        for traceparent in ["", &SAMPLED.replace("-01", "-00")] {
            assert_eq!(exemplars(&reconciled(traceparent).encode().unwrap()), [""; 0], "{traceparent}");
        }
    }

    /// A request in a span, by a process that samples this fraction of traces, or exports none.
    fn requested(ratio: Option<f64>) -> (Metrics, Option<TraceContext>) {
        let provider = |ratio| SdkTracerProvider::builder().with_sampler(Sampler::TraceIdRatioBased(ratio)).build();
        let layer = ratio.map(|ratio| tracing_opentelemetry::layer().with_tracer(provider(ratio).tracer("test")));
        let metrics = Metrics::new();
        let trace = tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info_span!("reconcile").in_scope(|| {
                metrics.requested(&Method::GET, "/api/v1/nodes/n", 200, Duration::from_millis(3));
                trace::current()
            })
        });
        (metrics, trace)
    }

    #[test]
    fn a_request_names_the_trace_of_its_span() {
        let (metrics, trace) = requested(Some(1.0));
        let (text, id) = (metrics.encode().unwrap(), trace.unwrap().trace_id);
        let [line] = exemplars(&text)[..] else { panic!("{text}") };
        assert!(line.contains(&format!(r#"verb="get",resource="nodes"}} 1 # {{trace_id="{id}""#)), "{line}");
        for ratio in [None, Some(0.0)] {
            assert_eq!(exemplars(&requested(ratio).0.encode().unwrap()), [""; 0], "{ratio:?}");
        }
    }
}
