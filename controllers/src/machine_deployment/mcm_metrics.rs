//! What MachineDeployments are, at each scrape.

use std::fmt;

use nodewright_api::{MachineDeployment, MachineDeploymentStatus, StrategyType};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::cache::Stores;

use crate::shared::mcm_metrics::{Number, Scrape, created_at, register_objects};

const NUMBERS: [(&str, Number<MachineDeployment>); 14] = [
    ("info_spec_paused", |it| Some(it.spec.paused.into())),
    ("info_spec_replicas", |it| Some(it.spec.replicas.into())),
    ("info_spec_min_ready_seconds", |it| Some(it.spec.min_ready_seconds.into())),
    ("info_spec_rolling_update_max_surge", |it| bounds(it).map(|(surge, _)| surge)),
    ("info_spec_rolling_update_max_unavailable", |it| bounds(it).map(|(_, unavailable)| unavailable)),
    ("info_spec_revision_history_limit", |it| it.spec.revision_history_limit.map(i64::from)),
    ("info_spec_progress_deadline_seconds", |it| it.spec.progress_deadline_seconds.map(i64::from)),
    ("info_spec_rollback_to_revision", |it| it.spec.rollback_to.as_ref().map(|to| to.revision)),
    ("status_available_replicas", |it| Some(counted(it, |status| status.available_replicas))),
    ("status_unavailable_replicas", |it| Some(counted(it, |status| status.unavailable_replicas))),
    ("status_ready_replicas", |it| Some(counted(it, |status| status.ready_replicas))),
    ("status_updated_replicas", |it| Some(counted(it, |status| status.updated_replicas))),
    ("status_collision_count", |it| it.status.as_ref()?.collision_count.map(i64::from)),
    ("status_replicas", |it| Some(counted(it, |status| status.replicas))),
];

/// A count of the status; 0 without one.
fn counted(deployment: &MachineDeployment, count: fn(&MachineDeploymentStatus) -> i32) -> i64 {
    deployment.status.as_ref().map_or(0, count).into()
}

/// Surge and unavailable machines, as numbers: machine-controller-manager writes 0 for a percentage.
fn bounds(deployment: &MachineDeployment) -> Option<(i64, i64)> {
    let is_rolled = deployment.spec.strategy.effective_type() == StrategyType::RollingUpdate;
    let bounds = deployment.update_bounds().ok().filter(|_| is_rolled)?;
    Some((bounds.max_surge.into(), bounds.max_unavailable.into()))
}

/// Registers them.
pub(crate) fn register(metrics: &Metrics, stores: Stores) {
    register_objects(metrics, stores, "mcm_machine_deployment", write);
}

fn write(scrape: &mut Scrape<'_, '_, MachineDeployment>) -> fmt::Result {
    scrape.gauges("info", |it, write| {
        let strategy = it.spec.strategy.strategy_type.as_str();
        write(&[("createdAt", created_at(it).as_str()), ("spec_strategy_type", strategy)], 1)
    })?;
    scrape.numbers(&NUMBERS)?;
    scrape.conditions(|it| {
        let all = it.status.iter().flat_map(|status| &status.conditions);
        all.map(|it| (it.condition_type.as_str(), it.status.as_str())).collect()
    })?;
    scrape.failed(|it| it.status.as_ref().map_or(&[], |status| &status.failed_machines))
}
