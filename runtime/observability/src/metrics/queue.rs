//! The metric families of the work queues, with client-go's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Counters, Histograms, Labels, Metrics, Seconds, add, add_histograms, saturating, scrape};

/// The ages of the runs in progress in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// The sum of their ages.
    pub total: Duration,
    /// The greatest age.
    pub longest: Duration,
}

type Probe = Box<dyn Fn() -> Option<Unfinished> + Send + Sync>;

pub(super) struct Queues {
    /// The families of the queues by their own names, then those by other names.
    families: RwLock<Vec<Families>>,
    probes: RwLock<BTreeMap<&'static str, Probe>>,
}

/// The families of all queues under one prefix.
struct Families {
    prefix: &'static str,
    /// The names of the queues here, where they are not their own.
    aliases: Option<BTreeMap<&'static str, &'static str>>,
    depth: Family<Labels<1>, Gauge>,
    adds: Counters<Labels<1>>,
    retries: Counters<Labels<1>>,
    waited: Histograms<Labels<1>>,
    ran: Histograms<Labels<1>>,
}

impl Families {
    fn new(
        registry: &mut Registry,
        prefix: &'static str,
        aliases: Option<BTreeMap<&'static str, &'static str>>,
    ) -> Self {
        let name = |name: &str| format!("{prefix}workqueue_{name}");
        let waited = "Time that keys waited in the queue";
        Self {
            prefix,
            aliases,
            depth: add(registry, &name("depth"), "Keys that wait in the queue"),
            adds: add(registry, &name("adds"), "Keys that joined the queue"),
            retries: add(registry, &name("retries"), "Keys that joined the queue again after a failure"),
            waited: add_histograms(registry, &name("queue_duration_seconds"), waited, queue_buckets),
            ran: add_histograms(registry, &name("work_duration_seconds"), "Time that runs took", queue_buckets),
        }
    }

    fn labels(&self, queue: &'static str) -> Option<Labels<1>> {
        let name = self.aliases.as_ref().map_or(Some(queue), |aliases| aliases.get(queue).copied())?;
        Some([("name", name)])
    }
}

/// client-go's buckets: powers of ten from ten nanoseconds to a thousand seconds; the lowest are not useful here.
fn queue_buckets() -> Histogram {
    Histogram::new([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0])
}

impl Queues {
    pub(super) fn new(registry: &mut Registry) -> Arc<Self> {
        let families = RwLock::new(vec![Families::new(registry, "", None)]);
        let queues = Arc::new(Self { families, probes: RwLock::default() });
        registry.register_collector(Box::new(queues.clone()));
        queues
    }

    /// Records a value for the queue under each of its names.
    fn each(&self, queue: &'static str, record: impl Fn(&Families, &Labels<1>)) {
        for families in self.families.read().iter() {
            if let Some(labels) = families.labels(queue) {
                record(families, &labels);
            }
        }
    }
}

impl Metrics {
    /// Publishes queues a second time as `<prefix>workqueue_*` with other names: for dashboards of a program that named its
    /// queues differently. `names` are pairs of own name and other name.
    #[must_use]
    pub fn with_queue_alias(self, prefix: &'static str, names: &[(&'static str, &'static str)]) -> Self {
        let aliases = Some(names.iter().copied().collect());
        let families = Families::new(&mut self.registry.write(), prefix, aliases);
        self.queues.families.write().push(families);
        self
    }

    /// Shows the counters of the queue `name` as 0.
    pub fn queue_starts(&self, name: &'static str) {
        self.queues.each(name, |families, labels| {
            let _ = families.adds.get_or_create(labels);
            let _ = families.retries.get_or_create(labels);
        });
    }

    /// Records that a key has joined the queue `name`, which now holds `depth` keys.
    pub fn queue_added(&self, name: &'static str, depth: usize) {
        self.queues.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.adds.get_or_create(labels).inc();
        });
    }

    /// Records that a key was taken from the queue after it had waited for `waited`; a run begins.
    pub fn queue_taken(&self, name: &'static str, depth: usize, waited: Duration) {
        self.queues.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.waited.get_or_create(labels).observe(waited.as_secs_f64());
        });
    }

    /// Records that a run has ended after `ran`; a failed one counts as a retry.
    pub fn queue_done(&self, name: &'static str, depth: usize, ran: Duration, failed: bool) {
        self.queues.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.ran.get_or_create(labels).observe(ran.as_secs_f64());
            if failed {
                families.retries.get_or_create(labels).inc();
            }
        });
    }

    /// At each scrape, calls `probe` for the ages of the runs in progress in the queue `name`. If the probe returns `None`, the
    /// queue is gone and is left out.
    pub fn queue_unfinished(&self, name: &'static str, probe: impl Fn() -> Option<Unfinished> + Send + Sync + 'static) {
        self.queues.probes.write().insert(name, Box::new(probe));
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let probes = self.probes.read();
        let unfinished: Vec<_> = probes.iter().filter_map(|(queue, probe)| Some((*queue, probe()?))).collect();
        for families in self.families.read().iter() {
            let (total, longest) = (Seconds::<Labels<1>>::default(), Seconds::<Labels<1>>::default());
            for (queue, ages) in &unfinished {
                if let Some(labels) = families.labels(queue) {
                    total.get_or_create(&labels).set(ages.total.as_secs_f64());
                    longest.get_or_create(&labels).set(ages.longest.as_secs_f64());
                }
            }
            let name = |name| format!("{}workqueue_{name}", families.prefix);
            let help = "Sum of the ages of the runs under way";
            scrape(&mut encoder, &name("unfinished_work_seconds"), help, &total)?;
            let help = "Age of the longest run under way";
            scrape(&mut encoder, &name("longest_running_processor_seconds"), help, &longest)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Queues").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn a_queue_is_counted_under_client_gos_names_and_under_its_alias() {
        let metrics = Metrics::new().with_queue_alias("mcm_", &[("machine-set", "machineset")]);
        metrics.queue_added("machine-set", 3);
        metrics.queue_taken("machine-set", 2, Duration::from_millis(5));
        metrics.queue_done("machine-set", 2, Duration::from_millis(50), true);
        metrics.queue_added("node", 1);
        let unfinished = Unfinished { total: Duration::from_secs(7), longest: Duration::from_secs(4) };
        metrics.queue_unfinished("machine-set", move || Some(unfinished));
        metrics.queue_unfinished("gone", || None);

        let text = metrics.encode().unwrap();
        for line in [
            r#"workqueue_depth{name="machine-set"} 2"#,
            r#"workqueue_depth{name="node"} 1"#,
            r#"workqueue_adds_total{name="machine-set"} 1"#,
            r#"workqueue_retries_total{name="machine-set"} 1"#,
            r#"workqueue_queue_duration_seconds_count{name="machine-set"} 1"#,
            r#"workqueue_work_duration_seconds_sum{name="machine-set"} 0.05"#,
            r#"workqueue_unfinished_work_seconds{name="machine-set"} 7.0"#,
            r#"workqueue_longest_running_processor_seconds{name="machine-set"} 4.0"#,
            r#"mcm_workqueue_depth{name="machineset"} 2"#,
            r#"mcm_workqueue_longest_running_processor_seconds{name="machineset"} 4.0"#,
        ] {
            assert!(text.lines().any(|candidate| candidate == line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains(r#"mcm_workqueue_depth{name="node"}"#));
        assert!(!text.contains(r#"name="gone""#));
    }
}
