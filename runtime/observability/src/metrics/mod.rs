//! The metrics of the runtime, for Prometheus.
//!
//! Names and labels are those of controller-runtime and client-go wherever they have one, so that existing dashboards and
//! alerts work. There is no global registry: the process creates a [`Metrics`], shares it by `Arc`, and serves it at
//! `/metrics`. A program adds metric families with [`Metrics::register`].
//!
//! # Guarantees
//!
//! - No method blocks on I/O. During a scrape, a method waits at most for the copy of one family.
//! - The number of series is bounded by the number of controllers, kinds and status codes. Objects have no series, except the
//!   first hundred that cannot be decoded.

mod effect;
mod exemplar;
mod exposition;
mod process;
mod queue;
mod request;
mod span;

use std::fmt;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

pub use self::effect::RunningEffect;
pub use self::exemplar::{DurationHistogram, observe};
pub use self::exposition::Format;
pub use self::queue::Unfinished;
pub(crate) use self::span::SpanCounts;

use self::effect::Effects;
use self::exposition::TextWriter;
use self::queue::Queues;
use self::request::Requests;
use crate::trace::TraceContext;

/// Labels with their values.
type Labels<const N: usize, V = &'static str> = [(&'static str, V); N];
type Counters<L> = Family<L, Counter>;
type Seconds<L> = Family<L, Gauge<f64, AtomicU64>>;
type Histograms<L, H = Histogram> = Family<L, H, fn() -> H>;
/// Histograms of durations that may be a part of a trace.
type Durations<L> = Histograms<L, DurationHistogram>;
/// Whose watch, cache or clock it is: `control` or `target`. No label is `cluster`: Prometheus' users give that to whole
/// clusters as an external label, which does not replace one of a series.
const API_SERVER: &str = "api_server";
/// The cluster and the resource of a watch.
type WatchLabels = Labels<2, String>;

/// The outcome of a reconcile, in controller-runtime's categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// Nothing is left to do until a change.
    Success,
    /// It failed and is retried after its back-off.
    Error,
    /// It did not fail, and runs again at once or after its back-off.
    Requeue,
    /// It runs again at the time that it requested.
    RequeueAfter,
}

impl ReconcileOutcome {
    const ALL: [Self; 4] = [Self::Success, Self::Error, Self::Requeue, Self::RequeueAfter];

    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }
}

/// All metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: RwLock<Registry>,
    /// The length of the newest text.
    last_length: AtomicUsize,
    queues: Arc<Queues>,
    reconciles: Counters<Labels<2>>,
    reconcile_errors: Counters<Labels<1>>,
    reconcile_panics: Counters<Labels<1>>,
    reconcile_time: Durations<Labels<1>>,
    freshness_wait: Histograms<Labels<1>>,
    stale_skips: Counters<Labels<1>>,
    requests: Requests,
    watch_restarts: Counters<WatchLabels>,
    watch_rewinds: Counters<WatchLabels>,
    watch_healthy: Family<WatchLabels, Gauge>,
    watch_panics: Counters<WatchLabels>,
    undecodable: Family<WatchLabels, Gauge>,
    undecodable_names: Family<Labels<4, String>, Gauge>,
    longest_wait: Seconds<WatchLabels>,
    cached: Family<WatchLabels, Gauge>,
    version: Family<WatchLabels, Gauge>,
    effects: Arc<Effects>,
    events: Counters<Labels<1>>,
    leading: Family<Labels<1, String>, Gauge>,
    clock_skew: Seconds<Labels<1, String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The runtime's metrics, all at zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process::new()));
        let to = &mut registry;
        let events: Counters<Labels<1>> = add(to, "events", "Events by what became of them: sent, refused or dropped");
        for result in ["sent", "refused", "dropped"] {
            let _ = events.get_or_create(&[("result", result)]);
        }
        Self {
            reconciles: add(to, "controller_runtime_reconcile", "Reconciles by controller and result"),
            reconcile_errors: add(to, "controller_runtime_reconcile_errors", "Reconciles that failed"),
            reconcile_panics: add(
                to,
                "controller_runtime_reconcile_panics",
                "Reconciles that panicked and were caught",
            ),
            reconcile_time: {
                let name = "controller_runtime_reconcile_time_seconds";
                add_histograms(to, name, "Time that a reconcile took", || {
                    DurationHistogram::new(RECONCILE_BUCKETS.into_iter())
                })
            },
            freshness_wait: {
                let help = "Time that a reconcile waited until the cache had this process's writes";
                add_histograms(to, "freshness_wait_seconds", help, || Histogram::new(RECONCILE_BUCKETS))
            },
            stale_skips: add(to, "stale_sync_skips", "Reconciles put off until the cache has this process's writes"),
            watch_restarts: add(to, "watch_restarts", "Watches that were opened again after a break"),
            watch_rewinds: add(to, "watch_rewinds", "Lists older than the cache, as after the restore of a backup"),
            watch_healthy: add(to, "watch_healthy", "1 while the watch follows the server"),
            watch_panics: add(to, "watch_panics", "Panics of change handlers"),
            undecodable: add(to, "watch_undecodable_objects", "Objects that this process cannot decode"),
            undecodable_names: add(to, "watch_undecodable_object_info", "The first hundred of these objects"),
            longest_wait: add(to, "store_longest_wait_seconds", "Age of the longest wait for writes in the cache"),
            cached: add(to, "cache_objects", "Objects in the cache"),
            version: add(to, "store_resource_version", "Version that the cache has reached"),
            requests: Requests::new(to),
            events,
            leading: add(to, "leader_election_master_status", "1 while this process holds the lease"),
            clock_skew: {
                let help = "How far the clock of this computer is ahead of that of the API server, at least; negative if behind";
                add(to, "clock_skew_seconds", help)
            },
            effects: Effects::new(to),
            queues: Queues::new(to),
            registry: RwLock::new(registry),
            last_length: AtomicUsize::new(0),
        }
    }

    /// Lets a program add its own metric families.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write());
    }

    /// All metrics as `OpenMetrics` text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        self.encode_as(Format::OpenMetrics)
    }

    /// All metrics as text in this format.
    pub fn encode_as(&self, format: Format) -> Result<String, fmt::Error> {
        // A text that grows is copied, and is in memory twice meanwhile: most are about as long as the one before.
        let before = self.last_length.load(Ordering::Relaxed);
        let mut text = String::with_capacity(before + before / 64 + (16 << 10));
        let registry = self.registry.read();
        match format {
            Format::OpenMetrics => encode(&mut text, &registry)?,
            Format::Text => encode(&mut TextWriter::new(&mut text), &registry)?,
        }
        self.last_length.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    /// Shows the counters of a controller as 0, before anything has happened: `increase()` takes no notice of a series' first value.
    pub fn controller_starts(&self, controller: &'static str) {
        let labels = [("controller", controller)];
        for result in ReconcileOutcome::ALL {
            let _ = self.reconciles.get_or_create(&[labels[0], ("result", result.as_str())]);
        }
        for counters in [&self.reconcile_errors, &self.reconcile_panics, &self.stale_skips] {
            let _ = counters.get_or_create(&labels);
        }
    }

    /// Shows the counters of a watch as 0.
    pub fn watch_starts(&self, cluster: impl Display, resource: impl Display) {
        let labels = watch_labels(cluster, resource);
        for counters in [&self.watch_restarts, &self.watch_rewinds, &self.watch_panics] {
            let _ = counters.get_or_create(&labels);
        }
    }

    /// Records the end of a reconcile, and the trace of its execution if there was one.
    pub fn reconciled(
        &self,
        controller: &'static str,
        result: ReconcileOutcome,
        took: Duration,
        trace: Option<TraceContext>,
    ) {
        let labels = [("controller", controller)];
        self.reconciles.get_or_create(&[labels[0], ("result", result.as_str())]).inc();
        observe(&self.reconcile_time.get_or_create(&labels), took.as_secs_f64(), trace);
        if result == ReconcileOutcome::Error {
            self.reconcile_errors.get_or_create(&labels).inc();
        }
    }

    /// Records a reconcile that panicked and was caught.
    pub fn reconcile_panicked(&self, controller: &'static str) {
        self.reconcile_panics.get_or_create(&[("controller", controller)]).inc();
    }

    /// Records how long a reconcile has waited for the cache.
    pub fn freshness_waited(&self, controller: &'static str, waited: Duration) {
        self.freshness_wait.get_or_create(&[("controller", controller)]).observe(waited.as_secs_f64());
    }

    /// Records a reconcile that was postponed because the cache did not show earlier writes.
    pub fn stale_skipped(&self, controller: &'static str) {
        self.stale_skips.get_or_create(&[("controller", controller)]).inc();
    }

    /// Records that a watch broke and was opened again.
    pub fn watch_restarted(&self, cluster: impl Display, resource: impl Display) {
        self.watch_restarts.get_or_create(&watch_labels(cluster, resource)).inc();
    }

    /// Records that a list was older than the store and has replaced it: the server was set back.
    pub fn watch_rewound(&self, cluster: impl Display, resource: impl Display) {
        self.watch_rewinds.get_or_create(&watch_labels(cluster, resource)).inc();
    }

    /// Sets whether a watch follows its server.
    pub fn watch_healthy(&self, cluster: impl Display, resource: impl Display, healthy: bool) {
        self.watch_healthy.get_or_create(&watch_labels(cluster, resource)).set(i64::from(healthy));
    }

    /// Sets how many objects of a kind currently cannot be decoded.
    pub fn undecodable_objects(&self, cluster: impl Display, resource: impl Display, count: usize) {
        self.undecodable.get_or_create(&watch_labels(cluster, resource)).set(saturating(count));
    }

    /// Adds or removes the series of an object that cannot be decoded.
    pub fn undecodable_object(
        &self,
        cluster: impl Display,
        resource: impl Display,
        namespace: &str,
        name: &str,
        is_bad: bool,
    ) {
        let [cluster, resource] = watch_labels(cluster, resource);
        let labels = [cluster, resource, ("namespace", namespace.to_owned()), ("name", name.to_owned())];
        if is_bad {
            self.undecodable_names.get_or_create(&labels).set(1);
        } else {
            self.undecodable_names.remove(&labels);
        }
    }

    /// Records a panic of a change handler, which was caught.
    pub fn watch_panicked(&self, cluster: impl Display, resource: impl Display) {
        self.watch_panics.get_or_create(&watch_labels(cluster, resource)).inc();
    }

    /// Sets how long the longest wait for the cache of a kind has lasted.
    pub fn store_longest_wait(&self, cluster: impl Display, resource: impl Display, waited: Duration) {
        self.longest_wait.get_or_create(&watch_labels(cluster, resource)).set(waited.as_secs_f64());
    }

    /// Sets how many objects of a kind are cached.
    pub fn cached_objects(&self, cluster: impl Display, resource: impl Display, count: usize) {
        self.cached.get_or_create(&watch_labels(cluster, resource)).set(saturating(count));
    }

    /// Sets the version that the cache of a kind has reached.
    pub fn store_version(&self, cluster: impl Display, resource: impl Display, version: u64) {
        self.version.get_or_create(&watch_labels(cluster, resource)).set(saturating(version));
    }

    /// Records that the API server accepted or refused an event.
    pub fn event_sent(&self, accepted: bool) {
        self.events.get_or_create(&[("result", if accepted { "sent" } else { "refused" })]).inc();
    }

    /// Records a dropped event: too many for its object, or too many in the queue.
    pub fn event_dropped(&self) {
        self.events.get_or_create(&[("result", "dropped")]).inc();
    }

    /// Records how far the clock of this computer is ahead of that of a cluster's API server, in seconds.
    pub fn clock_skew(&self, cluster: impl Display, seconds: f64) {
        self.clock_skew.get_or_create(&[(API_SERVER, cluster.to_string())]).set(seconds);
    }

    /// Sets whether this process holds the lease `name`.
    pub fn leading(&self, name: &str, holds: bool) {
        self.leading.get_or_create(&[("name", name.to_owned())]).set(i64::from(holds));
    }
}

fn watch_labels(cluster: impl Display, resource: impl Display) -> WatchLabels {
    [(API_SERVER, cluster.to_string()), ("resource", resource.to_string())]
}

/// Registers a new family; clones of a family share their series.
fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn add_histograms<L, H>(registry: &mut Registry, name: &str, help: &str, buckets: fn() -> H) -> Histograms<L, H>
where
    L: Clone + Eq + std::hash::Hash,
    Histograms<L, H>: Metric,
{
    let family = Family::new_with_constructor(buckets);
    registry.register(name, help, family.clone());
    family
}

/// Encodes one family or metric immediately.
fn scrape(encoder: &mut DescriptorEncoder, name: &str, help: &str, metric: &dyn EncodeMetric) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn saturating(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// From the duration of an idle plan to a wait for a slow API server.
const RECONCILE_BUCKETS: [f64; 16] =
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|candidate| candidate == line), "{line:?} is not in\n{text}");
    }

    #[test]
    fn reconciles_carry_controller_runtimes_names() {
        let metrics = Metrics::new();
        metrics.reconciled("machine-set", ReconcileOutcome::Success, Duration::from_millis(3), None);
        metrics.reconciled("machine-set", ReconcileOutcome::Error, Duration::from_millis(3), None);
        metrics.reconcile_panicked("machine-set");
        metrics.stale_skipped("machine-set");
        let text = metrics.encode().unwrap();
        has(&text, r#"controller_runtime_reconcile_total{controller="machine-set",result="success"} 1"#);
        has(&text, r#"controller_runtime_reconcile_total{controller="machine-set",result="error"} 1"#);
        has(&text, r#"controller_runtime_reconcile_errors_total{controller="machine-set"} 1"#);
        has(&text, r#"controller_runtime_reconcile_panics_total{controller="machine-set"} 1"#);
        has(&text, r#"controller_runtime_reconcile_time_seconds_count{controller="machine-set"} 2"#);
        has(&text, r#"stale_sync_skips_total{controller="machine-set"} 1"#);
        assert!(text.ends_with("# EOF\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_call_shows_while_it_hangs() {
        let metrics = Metrics::new();
        let first = metrics.effect_started("create", None);
        tokio::time::advance(Duration::from_secs(5)).await;
        let second = metrics.effect_started("create", None);
        tokio::time::advance(Duration::from_secs(2)).await;
        let text = metrics.encode().unwrap();
        has(&text, r#"effects_in_flight{effect="create"} 2"#);
        has(&text, r#"effects_longest_running_seconds{effect="create"} 7.0"#);
        first.finish("success");
        drop(second);
        let text = metrics.encode().unwrap();
        has(&text, r#"effects_in_flight{effect="create"} 0"#);
        has(&text, r#"effects_total{effect="create",result="success"} 1"#);
        has(&text, r#"effects_total{effect="create",result="dropped"} 1"#);
        has(&text, r#"effect_duration_seconds_sum{effect="create"} 9.0"#);
    }

    #[test]
    fn watches_and_caches_are_distinguished_by_cluster() {
        let metrics = Metrics::new();
        metrics.watch_restarted("target", "nodes");
        metrics.watch_healthy("control", "machines.machine.sapcloud.io", true);
        metrics.undecodable_objects("control", "machines.machine.sapcloud.io", 2);
        metrics.store_version("control", "machines.machine.sapcloud.io", 4711);
        let text = metrics.encode().unwrap();
        has(&text, r#"watch_restarts_total{api_server="target",resource="nodes"} 1"#);
        has(&text, r#"watch_healthy{api_server="control",resource="machines.machine.sapcloud.io"} 1"#);
        has(&text, r#"watch_undecodable_objects{api_server="control",resource="machines.machine.sapcloud.io"} 2"#);
        has(&text, r#"store_resource_version{api_server="control",resource="machines.machine.sapcloud.io"} 4711"#);
    }

    /// `increase()` of Prometheus misses what a series counts before it is seen first.
    #[test]
    fn counters_begin_with_zero() {
        let metrics = Metrics::new().with_queue_alias("mcm_", &[("machine", "machine")]);
        metrics.controller_starts("machine");
        metrics.queue_starts("machine");
        metrics.watch_starts("target", "nodes");
        let running = metrics.effect_started("create", None);
        let text = metrics.encode().unwrap();
        for outcome in ["success", "error", "requeue", "requeue_after"] {
            has(&text, &format!(r#"controller_runtime_reconcile_total{{controller="machine",result="{outcome}"}} 0"#));
        }
        for family in ["controller_runtime_reconcile_errors", "controller_runtime_reconcile_panics", "stale_sync_skips"]
        {
            has(&text, &format!(r#"{family}_total{{controller="machine"}} 0"#));
        }
        for family in ["workqueue_adds", "workqueue_retries", "mcm_workqueue_adds", "mcm_workqueue_retries"] {
            has(&text, &format!(r#"{family}_total{{name="machine"}} 0"#));
        }
        for family in ["watch_restarts", "watch_rewinds", "watch_panics"] {
            has(&text, &format!(r#"{family}_total{{api_server="target",resource="nodes"}} 0"#));
        }
        for result in ["sent", "refused", "dropped"] {
            has(&text, &format!(r#"events_total{{result="{result}"}} 0"#));
        }
        for result in ["success", "error", "dropped"] {
            has(&text, &format!(r#"effects_total{{effect="create",result="{result}"}} 0"#));
        }
        running.finish("success");
        has(&metrics.encode().unwrap(), r#"effects_total{effect="create",result="success"} 1"#);
    }

    #[test]
    fn a_program_adds_its_own_families() {
        let metrics = Metrics::new();
        let created = Counter::<u64>::default();
        metrics.register(|registry| registry.register("created", "Things created", created.clone()));
        created.inc();
        has(&metrics.encode().unwrap(), "created_total 1");
    }
}
