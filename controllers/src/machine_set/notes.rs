//! What a MachineSet remembers, in annotations that only its controller writes.

use nodewright_api::{MachineSet, annotations, stored::CreationRound};
use nodewright_runtime::{apply_configuration::ApplyConfiguration, object::annotation};
use serde::Serialize;

use crate::shared::{ledger::Ledger, metadata::SomeAnnotations};

/// The ledger, and the round of replacements of Machines that did not join.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SetNotes {
    metadata: SomeAnnotations,
}

impl SetNotes {
    /// This ledger, and the round that is noted on the set.
    pub(super) fn of(set: &MachineSet, ledger: &Ledger) -> Self {
        let round = annotation(set, annotations::CREATION_BACKOFF);
        let metadata = SomeAnnotations::of(annotations::LEDGER, Some(&ledger.to_string()));
        Self { metadata: metadata.and(annotations::CREATION_BACKOFF, round) }
    }

    /// The same with this round, if one begins.
    pub(super) fn beginning(self, round: Option<CreationRound>) -> Self {
        let round = round.map(|round| round.to_string());
        Self { metadata: self.metadata.and(annotations::CREATION_BACKOFF, round.as_deref()) }
    }
}

impl ApplyConfiguration for SetNotes {
    type Of = MachineSet;

    fn extract(live: &MachineSet) -> Self {
        let metadata = SomeAnnotations::of(annotations::LEDGER, annotation(live, annotations::LEDGER));
        Self { metadata: metadata.and(annotations::CREATION_BACKOFF, annotation(live, annotations::CREATION_BACKOFF)) }
    }
}
