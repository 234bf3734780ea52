//! How many sets make machines that do not join.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::Stores,
    leadership::Clock,
    object::{annotation, uid},
};

use crate::shared::{
    CONTROL, creation_backoff,
    gauges::{ObjectLabels, register_gauge},
};

/// Registers `machine_set_creation_backoff_rounds`. Most sets have no series.
pub(crate) fn register(metrics: &Metrics, stores: Stores, clock: Arc<dyn Clock>) {
    let series = move || {
        let now = clock.wall();
        let sets = stores.of::<MachineSet>(CONTROL).all();
        sets.iter()
            .filter_map(|set| Some((ObjectLabels::of(set.as_ref()), rounds(&stores, set, now)?.into())))
            .collect()
    };
    let help = "Rounds of replacements in a row for machines that did not join";
    register_gauge(metrics, "machine_set_creation_backoff_rounds", help, series);
}

fn rounds(stores: &Stores, set: &MachineSet, now: Timestamp) -> Option<u32> {
    annotation(set, annotations::CREATION_BACKOFF)?;
    let machines = stores.of::<Machine>(CONTROL).owned_by(uid(set));
    creation_backoff::of_noted(set, machines.iter().map(AsRef::as_ref), now)?.failed_rounds()
}
