//! The metric of pools whose MachineConfigs cannot become their targets.

use std::fmt;

use nodewright_api::{
    ConditionStatus, conditions::machine_config_pool::RENDER_DEGRADED, machine_config::MachineConfigPool,
};
use nodewright_runtime::{cache::Stores, object::name};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{family::Family, gauge::Gauge},
};

use crate::shared::TARGET;

const SERIES_LIMIT: usize = 100;

/// `machine_config_pool_render_degraded`: 1 for each pool of which `RenderDegraded` is True. Computed at each scrape, so that a
/// pool that is well again, or deleted, has no series.
pub struct DegradedPools {
    pub(crate) stores: Stores,
}

impl fmt::Debug for DegradedPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DegradedPools").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    name: String,
    reason: String,
}

impl Collector for DegradedPools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let degraded = Family::<PoolLabels, Gauge>::default();
        let pools = self.stores.of::<MachineConfigPool>(TARGET).all();
        let found = pools.iter().filter_map(|pool| {
            let conditions = pool.status.iter().flat_map(|status| &status.conditions);
            let mut conditions = conditions.filter(|it| it.condition_type == RENDER_DEGRADED);
            let condition = conditions.find(|it| it.status == ConditionStatus::True)?;
            Some(PoolLabels { name: name(pool.as_ref()).to_owned(), reason: condition.reason.clone() })
        });
        for labels in found.take(SERIES_LIMIT) {
            degraded.get_or_create(&labels).set(1);
        }
        let help = "1 for each pool whose MachineConfigs cannot become its target, by reason";
        degraded.encode(encoder.encode_descriptor(
            "machine_config_pool_render_degraded",
            help,
            None,
            degraded.metric_type(),
        )?)
    }
}
