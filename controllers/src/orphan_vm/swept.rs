//! The orphaned VMs whose deletion was asked for, and the Machines of their tags: an annotation of the class that lists. It is written
//! before the deletion, so that the Nodes of these VMs go after them, whatever happens to the process.

use json_patch::Patch;
use nodewright_api::{
    MachineClass,
    stored::{SWEPT_VMS, SweptVms},
};
use nodewright_runtime::annotations;

use super::calls::Orphan;

/// The annotation has so many VMs at most. The Nodes of others stay.
const MOST: usize = 100;

/// Machines by the provider ids of swept VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept(SweptVms);

impl Swept {
    /// The record of a class. A text that is none is an empty one.
    pub(super) fn recorded(class: &MachineClass) -> Self {
        Self(SWEPT_VMS.of(class).unwrap_or_default())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.0.iter().map(|(id, machine)| (id.as_str(), machine.as_str()))
    }

    /// The record with these VMs as well.
    #[must_use]
    pub(super) fn with<'a>(mut self, orphans: impl IntoIterator<Item = &'a Orphan>) -> Self {
        for orphan in orphans {
            if self.0.0.len() < MOST {
                self.0.0.insert(orphan.provider_id.clone(), orphan.machine.clone());
            }
        }
        self
    }

    /// The record of the VMs that are still of interest.
    #[must_use]
    pub(super) fn only(mut self, is_open: impl Fn(&str) -> bool) -> Self {
        self.0.0.retain(|id, _| is_open(id));
        self
    }

    /// Changes the record of a class to this one; empty if it is the same.
    pub(super) fn patch(&self, class: &MachineClass) -> Patch {
        let text = (!self.0.0.is_empty()).then(|| self.0.to_string());
        annotations::set(&class.metadata, SWEPT_VMS.key, text.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use nodewright_api::annotations as keys;
    use nodewright_testing::object;

    use super::*;

    fn orphan(number: usize) -> Orphan {
        let (provider_id, machine) = (format!("p:///{number:03}"), format!("m-{number}"));
        Orphan { provider_id, machine, keeps: None, explained: true }
    }

    /// The class with this record instead of its own.
    fn after(class: &MachineClass, record: &Swept) -> MachineClass {
        let patch = record.patch(class);
        let mut class = serde_json::to_value(class).unwrap();
        nodewright_testing::json_patch(&mut class, &patch).unwrap();
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn the_record_has_what_was_swept_until_it_is_of_no_interest() {
        let new: MachineClass = object("class").build();
        assert_eq!(Swept::recorded(&new), Swept::default());
        let two = Swept::recorded(&new).with([&orphan(1), &orphan(2)]);
        let class = after(&new, &two);
        assert_eq!(Swept::recorded(&class).iter().collect::<Vec<_>>(), [("p:///001", "m-1"), ("p:///002", "m-2")]);
        assert!(two.patch(&class).0.is_empty(), "it is recorded");
        let class = after(&class, &two.only(|id| id == "p:///002"));
        assert_eq!(Swept::recorded(&class).iter().collect::<Vec<_>>(), [("p:///002", "m-2")]);
        let class = after(&class, &Swept::default());
        assert!(!class.metadata.annotations.unwrap_or_default().contains_key(keys::SWEPT_VMS));
    }

    #[test]
    fn the_record_has_an_end() {
        let all: Vec<_> = (0..150).map(orphan).collect();
        let full = Swept::default().with(&all);
        assert_eq!((full.iter().count(), full.iter().last()), (100, Some(("p:///099", "m-99"))));
    }
}
