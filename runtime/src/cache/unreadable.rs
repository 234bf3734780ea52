//! Objects that exist and cannot be decoded.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::RwLock;

use crate::object::{Kind, ResourceType};

/// The readable metadata of an object that exists and cannot be decoded.
///
/// It holds none of the object's content. That includes its annotations, which may hold a copy of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unreadable {
    metadata: ObjectMeta,
    /// Whether all of the metadata could be decoded, and not only the name and UID.
    is_complete: bool,
}

impl Unreadable {
    /// An object whose metadata could be decoded.
    pub fn new(metadata: ObjectMeta) -> Self {
        Self { metadata: ObjectMeta { annotations: None, managed_fields: None, ..metadata }, is_complete: true }
    }

    /// An object of which only the name and the UID are known.
    pub fn named(namespace: &str, name: &str, uid: &str) -> Self {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let metadata =
            ObjectMeta { namespace: some(namespace), name: some(name), uid: some(uid), ..ObjectMeta::default() };
        Self { metadata, is_complete: false }
    }

    /// Its namespace; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its metadata without annotations; `None` where it could not be decoded either.
    pub fn metadata(&self) -> Option<&ObjectMeta> {
        self.is_complete.then_some(&self.metadata)
    }

    /// A label, where the metadata could be decoded.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The owner that controls it, where the metadata could be decoded.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
    }

    /// Whether the owner with this UID may control it: it does, or nothing is known of its owner.
    pub fn may_be_controlled_by(&self, uid: &str) -> bool {
        !self.is_complete || self.controller().is_some_and(|owner| owner.uid == uid)
    }

    /// Whether its deletion has begun, where the metadata could be decoded.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Describes for people which object it is and what to do.
    pub fn describe<K: Kind>(&self) -> String {
        let kind = ResourceType::of::<K>().kind;
        let place = if self.namespace().is_empty() { String::new() } else { format!("{}/", self.namespace()) };
        // Its finalizers stay until their controllers can read it, so its deletion waits for that.
        let is_kept = self.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        let remedy = if is_kept { "correct it (its finalizers keep it until then)" } else { "correct it or delete it" };
        format!("{kind} {place}{} exists and cannot be read: {remedy}", self.name())
    }
}

/// The unreadable objects of a store, by namespace and name. Nearly always there is none.
#[derive(Default)]
pub(super) struct UnreadableObjects(pub(super) RwLock<BTreeMap<(String, String), Entry>>);

pub(super) struct Entry {
    pub(super) object: Arc<Unreadable>,
    /// Whether the current list has shown it.
    pub(super) is_listed: bool,
}

impl UnreadableObjects {
    /// Begins a list. Objects that do not occur before its end are gone.
    pub(super) fn begin_list(&self) {
        self.0.write().values_mut().for_each(|entry| entry.is_listed = false);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::controlled;

    #[test]
    fn the_metadata_tells_whose_it_is_and_keeps_no_content() {
        let known = controlled("a", "set");
        assert!(known.may_be_controlled_by("set") && !known.may_be_controlled_by("other"));
        assert!(!format!("{known:?}").contains("hush"));
        let unknown = Unreadable::named("n", "a", "u");
        assert!(unknown.may_be_controlled_by("other") && unknown.metadata().is_none());
        let text = known.describe::<ConfigMap>();
        assert_eq!(text, "ConfigMap n/a exists and cannot be read: correct it or delete it");
    }
}
