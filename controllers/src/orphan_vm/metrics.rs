//! How many orphaned VMs there are, and what became of those that were due.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use nodewright_api::MachineClass;
use nodewright_driver::Driver;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, namespace},
};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use super::{
    calls::{Listed, SweepResult},
    orphans::orphans as evaluate,
    snapshot::{Fleet, group_of},
};
use crate::shared::{CONTROL, driver::Provider};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    namespace: String,
    name: String,
}

type Lists = Mutex<BTreeMap<ObjectRef, Arc<Listed>>>;

/// The metrics of orphaned VMs.
#[derive(Clone)]
pub(crate) struct OrphanMetrics {
    swept: Family<ResultLabel, Counter>,
    lists: Arc<Lists>,
}

impl OrphanMetrics {
    pub(crate) fn register(metrics: &Metrics, stores: Stores, driver: &dyn Driver) -> Self {
        let (swept, lists) = (Family::default(), Arc::new(Lists::default()));
        let collector = OrphanCollector { stores, provider: Provider::of(driver), lists: Arc::downgrade(&lists) };
        metrics.register(|registry| {
            let help = "Orphaned VMs that were due: deleted, kept because a machine has appeared, or failed";
            registry.register("machine_orphan_vm_deletions", help, swept.clone());
            registry.register_collector(Box::new(collector));
        });
        Self { swept, lists }
    }

    pub(super) fn listed(&self, class: &ObjectRef, listed: Arc<Listed>) {
        self.lists.lock().insert(class.clone(), listed);
    }

    pub(super) fn swept(&self, result: &SweepResult) {
        let result = match result {
            SweepResult::Deleted => "deleted",
            SweepResult::Kept => "kept",
            SweepResult::Failed(_) => "failed",
        };
        self.swept.get_or_create(&ResultLabel { result }).inc();
    }
}

/// `machine_orphan_vms`: the VMs without a Machine in the newest list of each class that lists. Computed at each scrape, so that
/// it follows the Machines.
struct OrphanCollector {
    stores: Stores,
    provider: Provider,
    lists: Weak<Lists>,
}

impl fmt::Debug for OrphanCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrphanCollector").finish_non_exhaustive()
    }
}

impl Collector for OrphanCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let orphans = Family::<ClassLabels, Gauge>::default();
        let lists = self.lists.upgrade().map(|lists| lists.lock().clone()).unwrap_or_default();
        for (key, listed) in lists {
            let Some(class) = self.stores.of::<MachineClass>(CONTROL).get(&key) else { continue };
            let group = group_of(&self.stores, &class, &self.provider);
            let fleet = Fleet::take(&self.stores, namespace(class.as_ref()), &group);
            let count = evaluate(&listed, &fleet).map_or(0, |orphans| orphans.len());
            let labels = ClassLabels { namespace: key.namespace.to_string(), name: key.name.to_string() };
            orphans.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let help = "VMs without a machine in the newest list of the VMs of a class's cluster";
        orphans.encode(encoder.encode_descriptor("machine_orphan_vms", help, None, orphans.metric_type())?)
    }
}
