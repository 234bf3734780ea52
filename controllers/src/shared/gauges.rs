//! Gauges that are computed at each scrape: what is gone has no series.

use std::fmt;

use nodewright_observability::metrics::Metrics;
use nodewright_runtime::object::{Kind, name, namespace};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

/// The labels of an object in a namespace.
#[derive(Clone, Debug, EncodeLabelSet)]
pub(crate) struct ObjectLabels {
    namespace: String,
    name: String,
}

impl ObjectLabels {
    pub(crate) fn of<K: Kind>(object: &K) -> Self {
        Self { namespace: namespace(object).to_owned(), name: name(object).to_owned() }
    }
}

/// Registers a gauge. The series at a scrape differ in their labels.
pub(crate) fn register_gauge<L: EncodeLabelSet>(
    metrics: &Metrics,
    name: &'static str,
    help: &'static str,
    series: impl Fn() -> Vec<(L, i64)> + Send + Sync + 'static,
) {
    metrics.register(|registry| registry.register_collector(Box::new(Gauge { name, help, series })));
}

struct Gauge<F> {
    name: &'static str,
    help: &'static str,
    series: F,
}

impl<F> fmt::Debug for Gauge<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").field(&self.name).finish()
    }
}

impl<L: EncodeLabelSet, F: Fn() -> Vec<(L, i64)> + Send + Sync + 'static> Collector for Gauge<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        for (labels, value) in (self.series)() {
            ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
