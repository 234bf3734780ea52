//! The metric of invalid classes.

use std::fmt;

use nodewright_api::MachineClass;
use nodewright_runtime::{
    cache::Stores,
    object::{name, namespace},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{family::Family, gauge::Gauge},
};

use super::ProviderSpecCheck;
use crate::shared::clusters::CONTROL;

/// The largest number of series.
const LIMIT: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    namespace: String,
    name: String,
}

/// `machine_class_invalid`: 1 for each class whose providerSpec the driver refuses. Computed at each scrape, so that a class
/// that is valid again, or deleted, has no series.
pub struct InvalidClasses {
    stores: Stores,
    check: ProviderSpecCheck,
}

impl InvalidClasses {
    /// The classes in these caches that the check refuses.
    pub fn new(stores: Stores, check: ProviderSpecCheck) -> Self {
        Self { stores, check }
    }
}

impl fmt::Debug for InvalidClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidClasses").finish_non_exhaustive()
    }
}

impl Collector for InvalidClasses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let classes = self.stores.of::<MachineClass>(CONTROL).all();
        let labels =
            |class: &MachineClass| ClassLabels { namespace: namespace(class).to_owned(), name: name(class).to_owned() };
        let refused = classes.iter().filter(|class| !(self.check)(class).is_empty());
        let invalid = Family::<ClassLabels, Gauge>::default();
        for class in refused.take(LIMIT) {
            invalid.get_or_create(&labels(class)).set(1);
        }
        let help = "1 for each class whose providerSpec the driver cannot read";
        invalid.encode(encoder.encode_descriptor("machine_class_invalid", help, None, invalid.metric_type())?)
    }
}
