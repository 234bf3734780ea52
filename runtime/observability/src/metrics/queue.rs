//! The metric families of the work queues, with client-go's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{Histograms, saturating, scrape};

/// The ages of the runs in progress in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// The sum of their ages.
    pub total: Duration,
    /// The greatest age.
    pub longest: Duration,
}

type Probe = Box<dyn Fn() -> Option<Unfinished> + Send + Sync>;

/// The queues of a process, each with its own name and optional aliases.
#[derive(Default)]
pub(super) struct Queues {
    own: Families,
    aliases: RwLock<Vec<Alias>>,
    probes: RwLock<BTreeMap<&'static str, Probe>>,
}

/// The same queues with another prefix and other names.
struct Alias {
    prefix: &'static str,
    names: BTreeMap<&'static str, &'static str>,
    families: Families,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
}

struct Families {
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    waited: Histograms<QueueLabels>,
    ran: Histograms<QueueLabels>,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(queue_buckets),
            ran: Family::new_with_constructor(queue_buckets),
        }
    }
}

/// client-go's buckets: powers of ten from ten nanoseconds to a thousand seconds; the lowest are not useful here.
fn queue_buckets() -> Histogram {
    Histogram::new([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0])
}

impl Queues {
    pub(super) fn alias(&self, prefix: &'static str, names: &[(&'static str, &'static str)]) {
        let names = names.iter().copied().collect();
        self.aliases.write().push(Alias { prefix, names, families: Families::default() });
    }

    pub(super) fn probe(&self, name: &'static str, probe: Probe) {
        self.probes.write().insert(name, probe);
    }

    pub(super) fn added(&self, name: &'static str, depth: usize) {
        self.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.adds.get_or_create(labels).inc();
        });
    }

    pub(super) fn taken(&self, name: &'static str, depth: usize, waited: Duration) {
        self.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.waited.get_or_create(labels).observe(waited.as_secs_f64());
        });
    }

    pub(super) fn done(&self, name: &'static str, depth: usize, ran: Duration, failed: bool) {
        self.each(name, |families, labels| {
            families.depth.get_or_create(labels).set(saturating(depth));
            families.ran.get_or_create(labels).observe(ran.as_secs_f64());
            if failed {
                families.retries.get_or_create(labels).inc();
            }
        });
    }

    /// Records a value for the queue under each of its names.
    fn each(&self, name: &'static str, record: impl Fn(&Families, &QueueLabels)) {
        record(&self.own, &QueueLabels { name });
        for alias in self.aliases.read().iter() {
            if let Some(name) = alias.names.get(name) {
                record(&alias.families, &QueueLabels { name });
            }
        }
    }

    fn unfinished(&self) -> Vec<(&'static str, Unfinished)> {
        self.probes.read().iter().filter_map(|(name, probe)| Some((*name, probe()?))).collect()
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let unfinished = self.unfinished();
        self.own.encode(&mut encoder, "", &unfinished)?;
        for alias in self.aliases.read().iter() {
            let renamed = unfinished.iter().filter_map(|(name, ages)| Some((*alias.names.get(name)?, *ages)));
            alias.families.encode(&mut encoder, &format!("{}_", alias.prefix), &renamed.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Families {
    fn encode(
        &self,
        encoder: &mut DescriptorEncoder,
        prefix: &str,
        unfinished: &[(&'static str, Unfinished)],
    ) -> fmt::Result {
        let mut put = |name: &str, help: &str, metric: &dyn prometheus_client::encoding::EncodeMetric| {
            scrape(encoder, &format!("{prefix}workqueue_{name}"), help, metric)
        };
        put("depth", "Keys that wait in the queue", &self.depth)?;
        put("adds", "Keys that joined the queue", &self.adds)?;
        put("retries", "Keys that joined the queue again after a failure", &self.retries)?;
        put("queue_duration_seconds", "Time that keys waited in the queue", &self.waited)?;
        put("work_duration_seconds", "Time that runs took", &self.ran)?;
        let ages = |pick: fn(&Unfinished) -> Duration| {
            let family = Family::<QueueLabels, Gauge<f64, AtomicU64>>::default();
            for (name, unfinished) in unfinished {
                family.get_or_create(&QueueLabels { name }).set(pick(unfinished).as_secs_f64());
            }
            family
        };
        put("unfinished_work_seconds", "Sum of the ages of the runs under way", &ages(|of| of.total))?;
        put("longest_running_processor_seconds", "Age of the longest run under way", &ages(|of| of.longest))
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
        let metrics = Metrics::new().with_queue_alias("mcm", &[("machine-set", "machineset")]);
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
