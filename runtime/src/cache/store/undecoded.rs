//! The objects of a store that exist and cannot be decoded.

use std::sync::Arc;

use super::Store;
use crate::{
    cache::unreadable::{Entry, Unreadable},
    object::Kind,
};

impl<K: Kind> Store<K> {
    /// Whether an object exists and cannot be decoded.
    pub fn is_unreadable(&self, namespace: &str, name: &str) -> bool {
        let objects = self.unreadable.0.read();
        !objects.is_empty() && objects.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// The objects that exist and cannot be decoded, by name. The store still has their last readable versions, if any.
    pub fn unreadable(&self) -> Vec<Arc<Unreadable>> {
        self.unreadable.0.read().values().map(|entry| entry.object.clone()).collect()
    }

    /// Records an object that exists and cannot be decoded, so that no list reports it gone. Returns whether it is new.
    pub fn add_unreadable(&self, object: Unreadable) -> bool {
        self.keep(object.namespace(), object.name());
        let key = (object.namespace().to_owned(), object.name().to_owned());
        let entry = Entry { object: Arc::new(object), is_listed: true };
        let mut objects = self.unreadable.0.write();
        let is_known = objects.get(&key).is_some_and(|known| known.object == entry.object);
        objects.insert(key, entry);
        !is_known
    }

    /// Forgets an unreadable object: it can be decoded now, or it is gone.
    pub(crate) fn remove_unreadable(&self, namespace: &str, name: &str) -> Option<Arc<Unreadable>> {
        // The common case: the map is empty.
        if self.unreadable.0.read().is_empty() {
            return None;
        }
        let gone = self.unreadable.0.write().remove(&(namespace.to_owned(), name.to_owned()));
        gone.map(|entry| entry.object)
    }

    /// Ends a list: forgets the unreadable objects that it did not show, and returns them.
    pub(crate) fn end_unreadable(&self) -> Vec<Arc<Unreadable>> {
        let mut gone = vec![];
        self.unreadable.0.write().retain(|_, entry| {
            if !entry.is_listed {
                gone.push(entry.object.clone());
            }
            entry.is_listed
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::{HOME, controlled};

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
