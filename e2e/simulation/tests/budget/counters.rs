//! All counts of a manager: of its runtime, its metrics, its connection and its allocations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::body::HttpBody;
use http::{Method, Request};
use kube::client::Body;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::counts::counts;
use nodewright_testing::api_server::ApiServer;
use tower::Service;

use super::allocations;

/// The metrics that are counts, the names of their lines, and the labels that these lines have.
const METRICS: [(&str, &str, &[&str]); 6] = [
    ("rest_client_requests_total", "requests", &["verb", "resource", "code"]),
    ("events_total", "events", &["result"]),
    ("effects_total", "calls", &["effect", "result"]),
    ("stale_sync_skips_total", "stale skips", &["controller"]),
    ("workqueue_retries_total", "retries", &["name"]),
    ("machine_config_renders_total", "renders", &[]),
];

/// What was counted so far, by the names of the lines.
pub(crate) type Counters = BTreeMap<String, u64>;

/// The connection of a manager to the API server. It counts what is sent.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) server: ApiServer,
    pub(crate) sent: Arc<Sent>,
}

#[derive(Default)]
pub(crate) struct Sent {
    bytes: AtomicU64,
    writes: AtomicU64,
}

impl Sent {
    /// The number of writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }
}

impl Service<Request<Body>> for Connection {
    type Response = <ApiServer as Service<Request<Body>>>::Response;
    type Error = <ApiServer as Service<Request<Body>>>::Error;
    type Future = <ApiServer as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let size = HttpBody::size_hint(request.body()).exact().expect("the body of a request is in memory");
        self.sent.bytes.fetch_add(size, Relaxed);
        self.sent.writes.fetch_add(u64::from(request.method() != Method::GET), Relaxed);
        self.server.call(request)
    }
}

/// All counts at present.
pub(crate) fn read(metrics: &Metrics, sent: &Sent) -> Counters {
    let mut all: Counters = allocations::counted().collect();
    all.insert("bytes sent".to_owned(), sent.bytes.load(Relaxed));
    let of_runtime = counts().into_iter().map(|(line, number)| (line.join(" ").trim_end().to_owned(), number));
    all.extend(of_runtime);
    let text = metrics.encode().expect("metrics are text");
    for (line, number) in text.lines().filter_map(metric) {
        *all.entry(line).or_default() += number;
    }
    all
}

/// The line that a metric counts for, and its value.
fn metric(line: &str) -> Option<(String, u64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let (_, what, shown) = METRICS.iter().find(|(metric, ..)| *metric == name)?;
    let value_of = |label: &&str| Some(labels.split_once(&format!("{label}=\""))?.1.split_once('"')?.0);
    // An answer is noted where it is none of success.
    let shown = shown.iter().filter_map(value_of).filter(|value| !value.is_empty() && !value.starts_with('2'));
    let words = [*what].into_iter().chain(shown).collect::<Vec<_>>();
    Some((words.join(" "), value.parse().ok()?))
}

/// What was counted between two moments.
pub(crate) fn between(before: &Counters, after: &Counters) -> Counters {
    let grown = |(line, now): (&String, &u64)| {
        let more = now - before.get(line).unwrap_or(&0);
        (more > 0).then(|| (line.clone(), more))
    };
    after.iter().filter_map(grown).collect()
}

#[test]
fn metrics_become_lines() {
    let cases = [
        (
            r#"rest_client_requests_total{code="201",method="POST",verb="create",resource="pods/eviction"} 3"#,
            Some(("requests create pods/eviction", 3)),
        ),
        (
            r#"rest_client_requests_total{code="429",method="POST",verb="create",resource="pods/eviction"} 2"#,
            Some(("requests create pods/eviction 429", 2)),
        ),
        (
            r#"rest_client_requests_total{code="200",method="GET",verb="list",resource=""} 5"#,
            Some(("requests list", 5)),
        ),
        ("machine_config_renders_total 4", Some(("renders", 4))),
        (r#"workqueue_depth{name="machine"} 4"#, None),
        ("# EOF", None),
    ];
    for (line, expected) in cases {
        assert_eq!(metric(line), expected.map(|(name, value)| (name.to_owned(), value)), "{line}");
    }
}
