//! The metric of an API server that is out of reach, for which no health is evaluated.

use std::fmt;

use nodewright_runtime::cache::Stores;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};

use crate::shared::{CONTROL, TARGET};

/// `mcm_machine_controller_frozen`, as in machine-controller-manager: 1 while the API server of a cluster has been silent for a
/// minute. Computed at each scrape.
pub(crate) struct FrozenCollector {
    pub(crate) stores: Stores,
    pub(crate) has_target: bool,
}

impl fmt::Debug for FrozenCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenCollector").finish_non_exhaustive()
    }
}

impl Collector for FrozenCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let is_away = |cluster| !self.stores.has_contact(cluster);
        let frozen = is_away(CONTROL) || self.has_target && is_away(TARGET);
        let gauge = ConstGauge::new(i64::from(frozen));
        let help = "1 while an API server is out of reach: the health of machines is not evaluated";
        gauge.encode(encoder.encode_descriptor("mcm_machine_controller_frozen", help, None, gauge.metric_type())?)
    }
}
