//! The metrics of Machines that machine-controller-manager has.

mod durations;
mod objects;

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::cache::{Change, Stores};

use self::durations::Durations;
use super::calls::{Call, Outcome};
use crate::shared::mcm_metrics::{DriverCalls, register_objects};

/// The metrics of the process that has Machines and their VMs.
#[derive(Clone, Debug, Default)]
pub struct MachineMetrics {
    calls: DriverCalls,
    durations: Arc<Durations>,
}

impl MachineMetrics {
    pub(crate) fn register(metrics: &Metrics, stores: &Stores, calls: DriverCalls) -> Self {
        let this = Self { calls, durations: Arc::new(Durations::of(stores)) };
        register_objects(metrics, stores.clone(), "mcm_machine", objects::write);
        metrics.register(|registry| registry.register_collector(Box::new(this.durations.clone())));
        this
    }

    /// Sees a change of a Machine: it may have joined, or not in time, or be gone.
    pub(super) fn changed(&self, change: &Change<Machine>) {
        if let Some(old) = change.old.as_deref() {
            self.durations.changed(old, change.new.as_deref());
        }
    }

    /// Sees a call for a Machine that has ended.
    pub(super) fn called(&self, call: &Call, during: (Timestamp, Timestamp), outcome: &Outcome) {
        self.durations.called(call, during, outcome);
    }

    /// The calls of the driver.
    pub(super) fn calls(&self) -> &DriverCalls {
        &self.calls
    }
}
