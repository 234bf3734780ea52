//! The metric of pools whose MachineConfigs cannot become their targets.

use nodewright_api::{
    ConditionStatus, conditions::machine_config_pool::RENDER_DEGRADED, machine_config::MachineConfigPool,
};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{cache::Stores, object::name};
use prometheus_client::encoding::EncodeLabelSet;

use crate::shared::{TARGET, gauges::register_gauge};

const SERIES_LIMIT: usize = 100;

#[derive(Clone, Debug, EncodeLabelSet)]
struct PoolLabels {
    name: String,
    reason: String,
}

/// Registers `machine_config_pool_render_degraded`: 1 for each pool of which `RenderDegraded` is True. A pool that is well again,
/// or deleted, has no series.
pub(crate) fn register(metrics: &Metrics, stores: Stores) {
    let series = move || {
        let pools = stores.of::<MachineConfigPool>(TARGET).all();
        let degraded = pools.iter().filter_map(|pool| {
            let conditions = pool.status.iter().flat_map(|status| &status.conditions);
            let mut conditions = conditions.filter(|it| it.condition_type == RENDER_DEGRADED);
            let condition = conditions.find(|it| it.status == ConditionStatus::True)?;
            Some(PoolLabels { name: name(pool.as_ref()).to_owned(), reason: condition.reason.clone() })
        });
        degraded.take(SERIES_LIMIT).map(|labels| (labels, 1)).collect()
    };
    let help = "1 for each pool whose MachineConfigs cannot become its target, by reason";
    register_gauge(metrics, "machine_config_pool_render_degraded", help, series);
}
