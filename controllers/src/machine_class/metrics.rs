//! The metric of invalid classes.

use nodewright_api::MachineClass;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{cache::Stores, object::ObjectRef};

use super::call::Refused;
use crate::shared::{
    CONTROL,
    gauges::{ObjectLabels, register_gauge},
};

const SERIES_LIMIT: usize = 100;

/// Registers `machine_class_invalid`: 1 for each class whose providerSpec the driver refuses. A class that is valid again, or
/// deleted, has no series.
pub(crate) fn register_metrics(metrics: &Metrics, stores: Stores, refused: Refused) {
    let series = move || {
        let classes = stores.of::<MachineClass>(CONTROL).all();
        let refused = refused.lock().clone();
        let refused = classes.iter().filter(|class| refused.contains(&ObjectRef::of(CONTROL, class.as_ref())));
        refused.take(SERIES_LIMIT).map(|class| (ObjectLabels::of(class.as_ref()), 1)).collect()
    };
    let help = "1 for each class whose providerSpec the driver cannot read";
    register_gauge(metrics, "machine_class_invalid", help, series);
}
