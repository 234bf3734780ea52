//! Orphans of which it is not known why their Machine is gone, and since when each was seen: an annotation of the class that lists.
//!
//! What is missing there only makes a VM wait for longer. So nothing is lost with a process, and a restored backup of the
//! API server, which knows of no orphan that appeared after it, starts the time of each.

use std::collections::BTreeMap;

use jiff::Timestamp;
use json_patch::Patch;
use nodewright_api::{
    MachineClass,
    stored::{UNEXPLAINED_VMS, UnexplainedVms},
};
use nodewright_runtime::annotations;

use super::calls::Orphan;

/// The annotation has so many VMs at most. The others wait until these are gone.
const MOST: usize = 100;

/// Since when orphans were seen, by provider id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unexplained(UnexplainedVms);

impl Unexplained {
    /// The record of a class. A text that is none is an empty one.
    pub(super) fn recorded(class: &MachineClass) -> Self {
        Self(UNEXPLAINED_VMS.of(class).unwrap_or_default())
    }

    /// The record after a list that shows these orphans: it forgets VMs that are gone, or have a Machine again.
    pub(super) fn after<'a>(&self, orphans: impl Iterator<Item = &'a Orphan>, now: Timestamp) -> Self {
        let unexplained: Vec<_> =
            orphans.filter(|orphan| !orphan.explained).map(|orphan| &orphan.provider_id).collect();
        let known = unexplained.iter().filter_map(|id| self.0.0.get_key_value(*id));
        let mut after: BTreeMap<_, _> = known.map(|(id, since)| (id.clone(), (*since).min(now))).collect();
        for id in unexplained {
            if after.len() < MOST && !after.contains_key(id) {
                after.insert(id.clone(), now);
            }
        }
        Self(UnexplainedVms(after))
    }

    /// Since when this record has a VM.
    pub(super) fn since(&self, provider_id: &str) -> Option<Timestamp> {
        self.0.0.get(provider_id).copied()
    }

    /// Changes the record of a class to this one; empty if it is the same.
    pub(super) fn patch(&self, class: &MachineClass) -> Patch {
        let text = (!self.0.0.is_empty()).then(|| self.0.to_string());
        annotations::set(&class.metadata, UNEXPLAINED_VMS.key, text.as_deref())
    }
}
