//! What MachineSets are, at each scrape.

use std::fmt;

use nodewright_api::{Machine, MachinePhase, MachineSet, MachineSetStatus, OperationType};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Change, Stores},
    object::{controller_uid, is_deleting},
};
use prometheus_client::metrics::counter::Counter;

use crate::shared::{
    CONTROL,
    indexes::SET_BY_UID,
    mcm_metrics::{Number, Scrape, created_at, register_objects},
};

/// `status_replicas` is that, where machine-controller-manager writes the ready ones.
const NUMBERS: [(&str, Number<MachineSet>); 6] = [
    ("info_spec_replicas", |set| Some(set.spec.replicas.into())),
    ("info_spec_min_ready_seconds", |set| Some(set.spec.min_ready_seconds.into())),
    ("status_available_replicas", |set| Some(counted(set, |status| status.available_replicas))),
    ("status_fully_labelled_replicas", |set| Some(counted(set, |status| status.fully_labeled_replicas))),
    ("status_ready_replicas", |set| Some(counted(set, |status| status.ready_replicas))),
    ("status_replicas", |set| Some(counted(set, |status| status.replicas))),
];

/// A count of the status; 0 without one.
fn counted(set: &MachineSet, count: fn(&MachineSetStatus) -> i32) -> i64 {
    set.status.as_ref().map_or(0, count).into()
}

/// Counts Machines that sets have deleted because they were unhealthy for too long.
#[derive(Clone, Debug, Default)]
pub struct StaleMachines(Counter);

impl StaleMachines {
    /// Registers the counter, and the metrics of sets.
    pub(crate) fn register(metrics: &Metrics, stores: Stores) -> Self {
        let this = Self::default();
        register_objects(metrics, stores, "mcm_machine_set", write);
        metrics.register(|registry| {
            let help = "Machines that sets have deleted because they were unhealthy for too long";
            registry.register("mcm_machine_stale_machines", help, this.0.clone());
        });
        this
    }

    pub(crate) fn count(&self, change: &Change<Machine>, stores: &Stores) {
        let (Some(old), Some(new)) = (change.old.as_deref(), change.new.as_deref()) else { return };
        let was_sick = *old.phase() == MachinePhase::Failed
            && old.status.as_ref().is_some_and(|it| it.last_operation.operation_type == OperationType::HealthCheck);
        if !was_sick || is_deleting(old) || !is_deleting(new) {
            return;
        }
        let set = controller_uid(new).and_then(|uid| stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, uid).pop());
        if set.is_some_and(|set| !is_deleting(set.as_ref())) {
            self.0.inc();
        }
    }
}

fn write(scrape: &mut Scrape<'_, '_, MachineSet>) -> fmt::Result {
    scrape.gauges("info", |set, write| {
        // `spec.machineClass` is not used.
        let (class, created) = (&set.spec.template.spec.class, created_at(set));
        let labels = [
            ("createdAt", created.as_str()),
            ("spec_machine_class_api_group", &class.api_group),
            ("spec_machine_class_kind", &class.kind),
            ("spec_machine_class_name", &class.name),
        ];
        write(&labels, 1)
    })?;
    scrape.numbers(&NUMBERS)?;
    scrape.conditions(|set| {
        let all = set.status.iter().flat_map(|status| &status.conditions);
        all.map(|it| (it.condition_type.as_str(), it.status.as_str())).collect()
    })?;
    scrape.failed(|set| set.status.as_ref().map_or(&[], |status| &status.failed_machines))
}
