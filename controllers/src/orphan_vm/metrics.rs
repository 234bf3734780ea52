//! How many orphaned VMs there are, and what became of those that were due.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::MachineClass;
use nodewright_driver::Driver;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, namespace},
};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use super::{
    calls::{Listed, SweepResult},
    orphans::orphans as evaluate,
    snapshot::NamespaceMachines,
};
use crate::shared::{
    CONTROL,
    driver::Provider,
    gauges::{ObjectLabels, register_gauge},
    usable_class::group_of,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

const DELETED: &str = "deleted";
const KEPT: &str = "kept";
const FAILED: &str = "failed";

type Lists = Mutex<BTreeMap<ObjectRef, Arc<Listed>>>;

/// The metrics of orphaned VMs.
#[derive(Clone)]
pub(crate) struct OrphanMetrics {
    swept: Family<ResultLabel, Counter>,
    lists: Arc<Lists>,
}

impl OrphanMetrics {
    pub(crate) fn register(metrics: &Metrics, stores: Stores, driver: &dyn Driver) -> Self {
        let (swept, lists) = (Family::<_, Counter>::default(), Arc::new(Lists::default()));
        // Alerts take the increase of a series, which misses what was counted before it is seen first.
        for result in [DELETED, KEPT, FAILED] {
            let _ = swept.get_or_create(&ResultLabel { result });
        }
        metrics.register(|registry| {
            let help = "Orphaned VMs that were due: deleted, kept because a machine has appeared, or failed";
            registry.register("machine_orphan_vm_deletions", help, swept.clone());
        });
        let (provider, newest) = (Provider::of(driver), Arc::downgrade(&lists));
        let series = move || newest.upgrade().map(|lists| counts(&stores, &provider, &lists)).unwrap_or_default();
        let help = "VMs without a machine in the newest list of the VMs of a class's cluster";
        register_gauge(metrics, "machine_orphan_vms", help, series);
        Self { swept, lists }
    }

    pub(super) fn listed(&self, class: &ObjectRef, listed: Arc<Listed>) {
        self.lists.lock().insert(class.clone(), listed);
    }

    pub(super) fn swept(&self, result: &SweepResult) {
        let result = match result {
            SweepResult::Deleted => DELETED,
            SweepResult::Kept => KEPT,
            SweepResult::Failed(_) => FAILED,
        };
        self.swept.get_or_create(&ResultLabel { result }).inc();
    }
}

/// The VMs without a Machine in the newest list of each class that lists.
fn counts(stores: &Stores, provider: &Provider, lists: &Lists) -> Vec<(ObjectLabels, i64)> {
    let lists = lists.lock().clone();
    let counted = lists.iter().filter_map(|(key, listed)| {
        let class = stores.of::<MachineClass>(CONTROL).get(key)?;
        let fleet = NamespaceMachines::take(stores, namespace(class.as_ref()), &group_of(stores, &class, provider));
        let count = evaluate(listed, &fleet).map_or(0, |orphans| orphans.len());
        Some((ObjectLabels::of(class.as_ref()), i64::try_from(count).unwrap_or(i64::MAX)))
    });
    counted.collect()
}
