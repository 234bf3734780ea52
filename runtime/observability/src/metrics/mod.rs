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

mod process;
mod queue;
mod request;

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::{Mutex, RwLock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tokio::time::Instant;

use self::queue::Queues;
pub use self::queue::Unfinished;
use self::request::{RequestLabels, RestClient};

/// The content type of the text that [`Metrics::encode`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A family of histograms, with a constructor that sets the buckets.
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

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
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    cluster: String,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    cluster: String,
    resource: String,
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectLabels {
    effect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectResultLabels {
    effect: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabels {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// All metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: RwLock<Registry>,
    queues: Arc<Queues>,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_errors: Family<ControllerLabels, Counter>,
    reconcile_panics: Family<ControllerLabels, Counter>,
    reconcile_time: Histograms<ControllerLabels>,
    freshness_wait: Histograms<ControllerLabels>,
    stale_skips: Family<ControllerLabels, Counter>,
    requests: RestClient,
    watch_restarts: Family<WatchLabels, Counter>,
    watch_rewinds: Family<WatchLabels, Counter>,
    watch_healthy: Family<WatchLabels, Gauge>,
    watch_panics: Family<WatchLabels, Counter>,
    undecodable: Family<WatchLabels, Gauge>,
    undecodable_names: Family<ObjectLabels, Gauge>,
    oldest_wait: Family<WatchLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    cached: Family<WatchLabels, Gauge>,
    version: Family<WatchLabels, Gauge>,
    effects: Arc<Effects>,
    events: Family<ResultLabels, Counter>,
    leading: Family<NameLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The runtime's metrics, all at zero.
    pub fn new() -> Self {
        let metrics = Self {
            registry: RwLock::new(Registry::default()),
            queues: Arc::default(),
            reconciles: Family::default(),
            reconcile_errors: Family::default(),
            reconcile_panics: Family::default(),
            reconcile_time: Family::new_with_constructor(reconcile_buckets),
            freshness_wait: Family::new_with_constructor(reconcile_buckets),
            stale_skips: Family::default(),
            requests: RestClient::default(),
            watch_restarts: Family::default(),
            watch_rewinds: Family::default(),
            watch_healthy: Family::default(),
            watch_panics: Family::default(),
            undecodable: Family::default(),
            undecodable_names: Family::default(),
            oldest_wait: Family::default(),
            cached: Family::default(),
            version: Family::default(),
            effects: Arc::default(),
            events: Family::default(),
            leading: Family::default(),
        };
        metrics.register(|registry| {
            metrics.register_reconciles(registry);
            metrics.register_watches(registry);
            metrics.register_rest(registry);
        });
        metrics
    }

    fn register_reconciles(&self, registry: &mut Registry) {
        let reconciler = registry.sub_registry_with_prefix("controller_runtime");
        add(reconciler, "reconcile", "Reconciles by controller and result", &self.reconciles);
        add(reconciler, "reconcile_errors", "Reconciles that failed", &self.reconcile_errors);
        add(reconciler, "reconcile_panics", "Reconciles that panicked and were caught", &self.reconcile_panics);
        add(reconciler, "reconcile_time_seconds", "Time that a reconcile took", &self.reconcile_time);
        let help = "Time that a reconcile waited for the cache to reach what this process had written";
        add(registry, "freshness_wait_seconds", help, &self.freshness_wait);
        let help = "Reconciles put off because the cache had not reached what this process had written";
        add(registry, "stale_sync_skips", help, &self.stale_skips);
    }

    fn register_watches(&self, registry: &mut Registry) {
        add(registry, "watch_restarts", "Watches that were opened again after a break", &self.watch_restarts);
        let help = "Lists that were older than what was known, as after the restore of a backup";
        add(registry, "watch_rewinds", help, &self.watch_rewinds);
        add(registry, "watch_healthy", "1 while the watch follows the server", &self.watch_healthy);
        add(registry, "watch_panics", "Panics of whoever was told of a change", &self.watch_panics);
        let help = "Objects that the server holds and this process cannot decode";
        add(registry, "watch_undecodable_objects", help, &self.undecodable);
        let help = "The first hundred of the objects that this process cannot decode, by name";
        add(registry, "watch_undecodable_object_info", help, &self.undecodable_names);
        let help = "Age of the longest wait for the cache to show what was written";
        add(registry, "store_longest_wait_seconds", help, &self.oldest_wait);
        add(registry, "cache_objects", "Objects in the cache", &self.cached);
        add(registry, "store_resource_version", "Version that the cache has reached", &self.version);
    }

    fn register_rest(&self, registry: &mut Registry) {
        self.requests.register(registry);
        add(registry, "events", "Events by what became of them: sent, refused or dropped", &self.events);
        add(registry, "leader_election_master_status", "1 while this process holds the lease", &self.leading);
        add(registry, "effects", "Calls outside Kubernetes by result", &self.effects.results);
        add(registry, "effect_duration_seconds", "Time that calls outside Kubernetes took", &self.effects.durations);
        registry.register_collector(Box::new(self.effects.clone()));
        registry.register_collector(Box::new(self.queues.clone()));
        registry.register_collector(Box::new(process::Process));
    }

    /// Lets a program add its own metric families.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write());
    }

    /// All metrics as `OpenMetrics` text ([`CONTENT_TYPE`]).
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 << 10);
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read())?;
        Ok(text)
    }

    /// Publishes queues a second time as `<prefix>_workqueue_*` with other names: for dashboards of a program that named its
    /// queues differently. `names` are pairs of own name and other name.
    #[must_use]
    pub fn with_queue_alias(self, prefix: &'static str, names: &[(&'static str, &'static str)]) -> Self {
        self.queues.alias(prefix, names);
        self
    }

    /// Records that a key has joined the queue `name`, which now holds `depth` keys.
    pub fn queue_added(&self, name: &'static str, depth: usize) {
        self.queues.added(name, depth);
    }

    /// Records that a key was taken from the queue after it had waited for `waited`; a run begins.
    pub fn queue_taken(&self, name: &'static str, depth: usize, waited: Duration) {
        self.queues.taken(name, depth, waited);
    }

    /// Records that a run has ended after `ran`; a failed one counts as a retry.
    pub fn queue_done(&self, name: &'static str, depth: usize, ran: Duration, failed: bool) {
        self.queues.done(name, depth, ran, failed);
    }

    /// At each scrape, calls `probe` for the ages of the runs in progress in the queue `name`. If the probe returns `None`, the
    /// queue is gone and is left out.
    pub fn queue_unfinished(&self, name: &'static str, probe: impl Fn() -> Option<Unfinished> + Send + Sync + 'static) {
        self.queues.probe(name, Box::new(probe));
    }

    /// Records the end of a reconcile.
    pub fn reconciled(&self, controller: &'static str, result: ReconcileOutcome, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, result: result.as_str() }).inc();
        self.reconcile_time.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
        if result == ReconcileOutcome::Error {
            self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc();
        }
    }

    /// Records a reconcile that panicked and was caught.
    pub fn reconcile_panicked(&self, controller: &'static str) {
        self.reconcile_panics.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Records how long a reconcile has waited for the cache.
    pub fn freshness_waited(&self, controller: &'static str, waited: Duration) {
        self.freshness_wait.get_or_create(&ControllerLabels { controller }).observe(waited.as_secs_f64());
    }

    /// Records a reconcile that was postponed because the cache did not show earlier writes.
    pub fn stale_skipped(&self, controller: &'static str) {
        self.stale_skips.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Records the end of a request to an API server with this status code; 0 means no answer.
    ///
    /// `path` is the request's path and query. It yields the resource, but not the name of the object.
    pub fn requested(&self, method: &Method, path: &str, code: u16) {
        self.requests.count(&RequestLabels::new(method, path, code));
    }

    /// Records the duration of a request to an API server.
    pub fn request_took(&self, method: &Method, path: &str, took: Duration) {
        self.requests.observe(method, path, took);
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
        let WatchLabels { cluster, resource } = watch_labels(cluster, resource);
        let labels = ObjectLabels { cluster, resource, namespace: namespace.to_owned(), name: name.to_owned() };
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
        self.oldest_wait.get_or_create(&watch_labels(cluster, resource)).set(waited.as_secs_f64());
    }

    /// Sets how many objects of a kind are cached.
    pub fn cached_objects(&self, cluster: impl Display, resource: impl Display, count: usize) {
        self.cached.get_or_create(&watch_labels(cluster, resource)).set(saturating(count));
    }

    /// Sets the version that the cache of a kind has reached.
    pub fn store_version(&self, cluster: impl Display, resource: impl Display, version: u64) {
        self.version.get_or_create(&watch_labels(cluster, resource)).set(saturating(version));
    }

    /// Records the start of a call outside Kubernetes. Dropping the returned value counts the call as `dropped`.
    #[must_use]
    pub fn effect_started(&self, effect: &'static str) -> RunningEffect {
        RunningEffect::begin(self.effects.clone(), effect)
    }

    /// Records that the API server accepted or refused an event.
    pub fn event_sent(&self, accepted: bool) {
        let result = if accepted { "sent" } else { "refused" };
        self.events.get_or_create(&ResultLabels { result }).inc();
    }

    /// Records a dropped event: too many for its object, or too many in the queue.
    pub fn event_dropped(&self) {
        self.events.get_or_create(&ResultLabels { result: "dropped" }).inc();
    }

    /// Sets whether this process holds the lease `name`.
    pub fn leading(&self, name: &str, holds: bool) {
        self.leading.get_or_create(&NameLabels { name: name.to_owned() }).set(i64::from(holds));
    }
}

/// A call outside Kubernetes that is in progress.
#[derive(Debug)]
pub struct RunningEffect {
    effects: Arc<Effects>,
    effect: &'static str,
    id: u64,
    result: &'static str,
}

impl RunningEffect {
    fn begin(effects: Arc<Effects>, effect: &'static str) -> Self {
        let id = {
            let mut running = effects.running.lock();
            let by_id = running.entry(effect).or_default();
            // Ids increase, so the first one is always the longest call.
            let id = by_id.last_key_value().map_or(0, |(id, _)| id + 1);
            by_id.insert(id, Instant::now());
            id
        };
        Self { effects, effect, id, result: "dropped" }
    }

    /// Ends the call with a result label, such as `success` or an error code.
    pub fn finish(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for RunningEffect {
    fn drop(&mut self) {
        let begun = self.effects.running.lock().get_mut(self.effect).and_then(|by_id| by_id.remove(&self.id));
        let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        self.effects.durations.get_or_create(&EffectLabels { effect: self.effect }).observe(took.as_secs_f64());
        let labels = EffectResultLabels { effect: self.effect, result: self.result };
        self.effects.results.get_or_create(&labels).inc();
    }
}

/// Calls outside Kubernetes. The ages of calls in progress are computed at each scrape, so that a hanging call is visible while
/// it hangs.
#[derive(Debug)]
struct Effects {
    running: Mutex<BTreeMap<&'static str, BTreeMap<u64, Instant>>>,
    results: Family<EffectResultLabels, Counter>,
    durations: Histograms<EffectLabels>,
}

impl Default for Effects {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
            results: Family::default(),
            durations: Family::new_with_constructor(effect_buckets),
        }
    }
}

impl Collector for Effects {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let in_flight = Family::<EffectLabels, Gauge>::default();
        let longest = Family::<EffectLabels, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        for (effect, by_id) in self.running.lock().iter() {
            let oldest = by_id.first_key_value().map_or(Duration::ZERO, |(_, begun)| begun.elapsed());
            in_flight.get_or_create(&EffectLabels { effect }).set(saturating(by_id.len()));
            longest.get_or_create(&EffectLabels { effect }).set(oldest.as_secs_f64());
        }
        scrape(&mut encoder, "effects_in_flight", "Calls outside Kubernetes under way", &in_flight)?;
        let help = "Age of the longest call outside Kubernetes under way";
        scrape(&mut encoder, "effects_longest_running_seconds", help, &longest)
    }
}

/// Encodes one family or metric immediately.
fn scrape(encoder: &mut DescriptorEncoder, name: &str, help: &str, metric: &dyn EncodeMetric) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Registers a family under a name; clones of a family share their series.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: &M) {
    registry.register(name, help, metric.clone());
}

fn watch_labels(cluster: impl Display, resource: impl Display) -> WatchLabels {
    WatchLabels { cluster: cluster.to_string(), resource: resource.to_string() }
}

fn saturating(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// From the duration of an idle plan to a wait for a slow API server.
fn reconcile_buckets() -> Histogram {
    Histogram::new([0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

/// From the duration of a local answer to the deadline of a slow cloud.
fn effect_buckets() -> Histogram {
    Histogram::new([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|candidate| candidate == line), "{line:?} is not in\n{text}");
    }

    #[test]
    fn reconciles_carry_controller_runtimes_names() {
        let metrics = Metrics::new();
        metrics.reconciled("machine-set", ReconcileOutcome::Success, Duration::from_millis(3));
        metrics.reconciled("machine-set", ReconcileOutcome::Error, Duration::from_millis(3));
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
        let first = metrics.effect_started("create");
        tokio::time::advance(Duration::from_secs(5)).await;
        let second = metrics.effect_started("create");
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
    fn watches_and_caches_are_told_apart_by_cluster() {
        let metrics = Metrics::new();
        metrics.watch_restarted("target", "nodes");
        metrics.watch_healthy("control", "machines.machine.sapcloud.io", true);
        metrics.undecodable_objects("control", "machines.machine.sapcloud.io", 2);
        metrics.store_version("control", "machines.machine.sapcloud.io", 4711);
        let text = metrics.encode().unwrap();
        has(&text, r#"watch_restarts_total{cluster="target",resource="nodes"} 1"#);
        has(&text, r#"watch_healthy{cluster="control",resource="machines.machine.sapcloud.io"} 1"#);
        has(&text, r#"watch_undecodable_objects{cluster="control",resource="machines.machine.sapcloud.io"} 2"#);
        has(&text, r#"store_resource_version{cluster="control",resource="machines.machine.sapcloud.io"} 4711"#);
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
