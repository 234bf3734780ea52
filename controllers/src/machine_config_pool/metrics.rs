//! The metrics of pools: whose MachineConfigs cannot become their targets, and how far their Nodes are.

use nodewright_api::{
    ConditionStatus,
    conditions::machine_config_pool::RENDER_DEGRADED,
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
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

#[derive(Clone, Debug, EncodeLabelSet)]
struct CountLabels {
    pool: String,
}

/// Registers machine-config-operator's counts of Nodes, as the statuses of pools have them.
fn register_counts(metrics: &Metrics, stores: &Stores) {
    type Count = fn(&MachineConfigPoolStatus) -> i32;
    let counts: [(&str, &str, Count); 4] = [
        ("mco_machine_count", "Nodes of a pool", |status| status.machine_count),
        ("mco_updated_machine_count", "Nodes that run the target of their pool", |status| status.updated_machine_count),
        ("mco_degraded_machine_count", "Nodes whose agent reports a failure", |status| status.degraded_machine_count),
        ("mco_unavailable_machine_count", "Nodes that are not available", |status| status.unavailable_machine_count),
    ];
    for (name_of_metric, help, count) in counts {
        let stores = stores.clone();
        let series = move || {
            let pools = stores.of::<MachineConfigPool>(TARGET).all();
            let counted = pools.iter().filter_map(|pool| {
                Some((CountLabels { pool: name(pool.as_ref()).to_owned() }, count(pool.status.as_ref()?).into()))
            });
            counted.take(SERIES_LIMIT).collect()
        };
        register_gauge(metrics, name_of_metric, help, series);
    }
}

/// Registers the counts of Nodes, and `machine_config_pool_render_degraded`: 1 for each pool of which `RenderDegraded` is True. A pool that is well again,
/// or deleted, has no series.
pub(crate) fn register(metrics: &Metrics, stores: Stores) {
    register_counts(metrics, &stores);
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
