//! The ledger of a MachineSet, as the set writes it.

pub use nodewright_api::stored::{Ledger, Ordinal, base, set_of};
use nodewright_api::{MachineSet, annotations};
use nodewright_runtime::{apply_configuration::ApplyConfiguration, object::annotation};
use serde::Serialize;

use crate::shared::metadata::SomeAnnotations;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LedgerAnnotation {
    metadata: SomeAnnotations,
}

impl LedgerAnnotation {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        Self { metadata: SomeAnnotations::of(annotations::LEDGER, Some(&ledger.to_string())) }
    }
}

impl ApplyConfiguration for LedgerAnnotation {
    type Of = MachineSet;

    fn extract(live: &MachineSet) -> Self {
        Self { metadata: SomeAnnotations::of(annotations::LEDGER, annotation(live, annotations::LEDGER)) }
    }
}
