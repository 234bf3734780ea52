#![allow(clippy::unwrap_used, clippy::panic)]

//! The traces that durations name. A separate process: tracing caches for the whole process whether a span is enabled.

mod support;

use nodewright_observability::telemetry::{Telemetry, TelemetryConfig};
use nodewright_testing::api_server::ApiServer;
use serde_json::json;

use self::support::{Running, annotate, annotated, source};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A manager that has made a call and written its outcome for an object with a trace. `endpoint` is where it exports traces.
async fn called(endpoint: Option<&str>) -> String {
    let config = TelemetryConfig { endpoint: endpoint.map(str::to_owned), ..TelemetryConfig::default() };
    let (telemetry, subscriber) = Telemetry::build(&config, std::io::sink).unwrap();
    let _kept = tracing::dispatcher::set_default(&subscriber);
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"ask": "somebody", "traceparent": TRACE}));
    let running = Running::start_traced(server, vec![], 1, telemetry.spans.clone());
    running.until("its outcome", |it| annotated(&it.server, "s", "asked").is_some()).await;
    let metrics = running.metrics.clone();
    running.end().await;
    metrics.encode().unwrap()
}

/// The families whose buckets name a trace, and that trace's id.
fn exemplars(text: &str) -> Vec<(&str, &str)> {
    let named = text.lines().filter_map(|line| {
        let (family, _) = line.split_once("_bucket{")?;
        Some((family, line.split_once(" # {trace_id=\"")?.1.split_once('"')?.0))
    });
    named.collect()
}

#[tokio::test]
async fn durations_name_the_traces_that_are_exported() {
    // Nobody listens there: spans are dropped, and nothing waits for them.
    let text = called(Some("http://127.0.0.1:1")).await;
    let found = exemplars(&text);
    let of = |family: &str| found.iter().filter(|(of, _)| *of == family).map(|(_, trace)| *trace).collect::<Vec<_>>();
    let object = &TRACE[3..35];
    assert_eq!(of("effect_duration_seconds"), [object], "a call is a part of its object's trace");
    let reconciles = of("controller_runtime_reconcile_time_seconds");
    assert!(!reconciles.is_empty() && !reconciles.contains(&object), "a reconcile has a trace of its own: {found:?}");
    let requests = of("rest_client_request_duration_seconds");
    assert!(requests.iter().any(|trace| reconciles.contains(trace)), "a request belongs to its reconcile: {found:?}");

    assert_eq!(exemplars(&called(None).await), [], "nothing is exported");
}
