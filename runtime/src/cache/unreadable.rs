//! Objects that exist and cannot be decoded.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::RwLock;

use super::Store;
use crate::object::{Kind, ResourceType};

/// The metadata of an object that exists and cannot be decoded, without annotations: they may hold a copy of its content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unreadable {
    metadata: ObjectMeta,
    is_complete: bool,
}

impl Unreadable {
    /// One whose metadata could be decoded.
    pub fn new(metadata: ObjectMeta) -> Self {
        Self { metadata: ObjectMeta { annotations: None, managed_fields: None, ..metadata }, is_complete: true }
    }

    /// One of which only the name and the UID are known.
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

/// The unreadable objects of a store, by namespace and name, and whether the current list has shown them.
pub(super) type UnreadableObjects = RwLock<BTreeMap<(String, String), (Arc<Unreadable>, bool)>>;

impl<K: Kind> Store<K> {
    /// Whether an object exists and cannot be decoded.
    pub fn is_unreadable(&self, namespace: &str, name: &str) -> bool {
        let objects = self.unreadable.read();
        !objects.is_empty() && objects.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// The objects that exist and cannot be decoded, by name. The store still has their last readable versions, if any.
    pub fn unreadable(&self) -> Vec<Arc<Unreadable>> {
        self.unreadable.read().values().map(|(object, _)| object.clone()).collect()
    }

    /// Records an object that exists and cannot be decoded, so that no list reports it gone. Returns whether it is new.
    pub fn add_unreadable(&self, object: Unreadable) -> bool {
        self.keep(object.namespace(), object.name());
        let key = (object.namespace().to_owned(), object.name().to_owned());
        let object = Arc::new(object);
        let former = self.unreadable.write().insert(key, (object.clone(), true));
        former.is_none_or(|(former, _)| former != object)
    }

    /// Forgets an unreadable object: it can be decoded now, or it is gone.
    pub(crate) fn remove_unreadable(&self, namespace: &str, name: &str) -> Option<Arc<Unreadable>> {
        if self.unreadable.read().is_empty() {
            return None;
        }
        let gone = self.unreadable.write().remove(&(namespace.to_owned(), name.to_owned()));
        gone.map(|(object, _)| object)
    }

    /// Ends a list: forgets the unreadable objects that it did not show, and returns them.
    pub(crate) fn end_unreadable(&self) -> Vec<Arc<Unreadable>> {
        let mut objects = self.unreadable.write();
        objects.extract_if(.., |_, (_, is_listed)| !*is_listed).map(|(_, (object, _))| object).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::{HOME, controlled};

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

    #[test]
    fn a_list_that_does_not_show_it_ends_it_and_one_that_breaks_off_does_not() {
        let store = Store::<ConfigMap>::new(HOME, "n");
        assert!(store.add_unreadable(controlled("a", "set")) && store.add_unreadable(controlled("b", "set")));
        assert!(!store.add_unreadable(controlled("a", "set")), "it is known");
        assert!(store.add_unreadable(controlled("a", "other")), "its owner has changed");
        store.begin_list();
        store.begin_list();
        store.add_unreadable(controlled("b", "set"));
        assert!(store.is_unreadable("n", "a"), "the list has not ended");
        let gone: Vec<_> = store.end_unreadable().iter().map(|object| object.name().to_owned()).collect();
        assert_eq!(gone, ["a"]);
        assert!(!store.is_unreadable("n", "a") && store.is_unreadable("n", "b") && !store.is_unreadable("", "b"));
        assert!(store.remove_unreadable("n", "b").is_some() && store.unreadable().is_empty());
    }
}
