//! How many sets make machines that do not join.

use std::{fmt, sync::Arc};

use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::Stores,
    leadership::Clock,
    object::{annotation, name, namespace, uid},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{family::Family, gauge::Gauge},
};

use crate::shared::{CONTROL, creation_backoff};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SetLabels {
    namespace: String,
    name: String,
}

/// `machine_set_creation_backoff_rounds`, computed at each scrape. Most sets have no series.
struct BackoffCollector {
    stores: Stores,
    clock: Arc<dyn Clock>,
}

/// Registers the metric.
pub(crate) fn register(metrics: &Metrics, stores: Stores, clock: Arc<dyn Clock>) {
    metrics.register(|registry| registry.register_collector(Box::new(BackoffCollector { stores, clock })));
}

impl fmt::Debug for BackoffCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackoffCollector").finish_non_exhaustive()
    }
}

impl Collector for BackoffCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (all, now) = (Family::<SetLabels, Gauge>::default(), self.clock.wall());
        let sets = self.stores.of::<MachineSet>(CONTROL).all().into_iter();
        for set in sets.filter(|set| annotation(set.as_ref(), annotations::CREATION_BACKOFF).is_some()) {
            let machines = self.stores.of::<Machine>(CONTROL).owned_by(uid(set.as_ref()));
            let backoff = creation_backoff::of_noted(&set, machines.iter().map(AsRef::as_ref), now);
            let Some(rounds) = backoff.and_then(|backoff| backoff.failed_rounds()) else { continue };
            let labels =
                SetLabels { namespace: namespace(set.as_ref()).to_owned(), name: name(set.as_ref()).to_owned() };
            all.get_or_create(&labels).set(rounds.into());
        }
        let help = "Rounds of replacements in a row for machines that did not join";
        all.encode(encoder.encode_descriptor("machine_set_creation_backoff_rounds", help, None, all.metric_type())?)
    }
}
