//! Where a watch puts what it hears: into the store of a kind, whose listeners learn of it.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{decode, reports::Reports, undecodable::Undecodable};
use crate::{
    cache::{AnyStore, Change, Store, Unreadable},
    object::{Kind, name, namespace, resource_version},
    queue::Priority,
};

pub(crate) enum Notice<'a, K> {
    Change(&'a Change<K>),
    /// An object has become unreadable, has become readable again, or is gone.
    Unreadable(&'a Unreadable),
}

/// Returns false if a mapper has panicked.
pub(crate) type Deliver<K> = Box<dyn Fn(&Notice<'_, K>, Priority) -> bool + Send + Sync>;

/// Where a watch puts what it hears, without the type of the objects.
pub(crate) trait Sink: Send + Sync {
    fn store(&self) -> &dyn AnyStore;
    /// Takes an object of a list or of an event. Its change is delivered if `is_delivered`.
    fn take(&self, object: &RawValue, is_delivered: bool, reports: &Reports<'_>);
    /// Takes a line of a watch if it is an object that exists and can be decoded. Otherwise does nothing and returns false.
    fn take_line(&self, line: &str, reports: &Reports<'_>) -> bool;
    fn remove(&self, namespace: &str, name: &str, version: u64, reports: &Reports<'_>);
    /// Ends a list that began at `started`. Of the first one all objects are delivered now.
    fn end_list(&self, version: u64, started: Instant, is_first: bool, reports: &Reports<'_>);
    /// Nothing follows.
    fn end(&self, reports: &Reports<'_>);
}

pub(crate) struct TypedSink<K> {
    pub(crate) store: Arc<Store<K>>,
    /// Objects that it does not keep are as good as gone.
    pub(crate) keeps: fn(&K) -> bool,
    pub(crate) deliver: Deliver<K>,
}

impl<K: Kind> Sink for TypedSink<K> {
    fn store(&self) -> &dyn AnyStore {
        self.store.as_ref()
    }

    fn take(&self, object: &RawValue, is_delivered: bool, reports: &Reports<'_>) {
        match decode::object(object) {
            Ok(object) => self.apply(object, is_delivered, reports),
            Err(undecodable) => self.leave_out(*undecodable, reports),
        }
    }

    fn take_line(&self, line: &str, reports: &Reports<'_>) -> bool {
        let object = decode::present(line);
        object.map(|object| self.apply(object, true, reports)).is_some()
    }

    fn remove(&self, namespace: &str, name: &str, version: u64, reports: &Reports<'_>) {
        if let Some(change) = self.store.remove(namespace, name, version) {
            self.deliver(&Notice::Change(&change), Priority::Live, reports);
        }
        if let Some(object) = self.store.remove_unreadable(namespace, name) {
            self.end_unreadable(&object, reports);
        }
    }

    fn end_list(&self, version: u64, started: Instant, is_first: bool, reports: &Reports<'_>) {
        for change in self.store.end_list(version, started) {
            self.deliver(&Notice::Change(&change), Priority::Live, reports);
        }
        self.store.end_unreadable().iter().for_each(|object| self.end_unreadable(object, reports));
        let listed = if is_first { self.store.all() } else { vec![] };
        for object in listed {
            self.deliver(&Notice::Change(&Change { old: None, new: Some(object) }), Priority::Initial, reports);
        }
    }

    fn end(&self, reports: &Reports<'_>) {
        self.store.unreadable().iter().for_each(|object| reports.undecodable_ended(object));
    }
}

impl<K: Kind> TypedSink<K> {
    fn apply(&self, object: Box<K>, is_delivered: bool, reports: &Reports<'_>) {
        let (place, called) = (namespace(object.as_ref()), name(object.as_ref()));
        let known = self.store.is_unreadable(place, called).then(|| (place.to_owned(), called.to_owned()));
        let change = if (self.keeps)(&object) {
            self.store.apply(*object)
        } else {
            self.store.remove(place, called, resource_version(object.as_ref()))
        };
        // Keep this order, so that the object is always in one of the two places.
        if let Some(object) = known.and_then(|(place, called)| self.store.remove_unreadable(&place, &called)) {
            self.end_unreadable(&object, reports);
        }
        if let Some(change) = change.filter(|_| is_delivered) {
            self.deliver(&Notice::Change(&change), Priority::Live, reports);
        }
    }

    fn leave_out(&self, undecodable: Undecodable, reports: &Reports<'_>) {
        reports.undecodable(&undecodable);
        let Undecodable { object, version, .. } = undecodable;
        let is_new = self.store.add_unreadable(object.clone());
        if let Some(version) = version {
            self.store.advance(version);
        }
        // Nothing is planned before the end of the first list, and after it all objects are.
        if is_new && self.store.is_synced() {
            self.deliver(&Notice::Unreadable(&object), Priority::Live, reports);
        }
    }

    fn end_unreadable(&self, object: &Unreadable, reports: &Reports<'_>) {
        reports.undecodable_ended(object);
        self.deliver(&Notice::Unreadable(object), Priority::Live, reports);
    }

    fn deliver(&self, notice: &Notice<'_, K>, priority: Priority, reports: &Reports<'_>) {
        if !(self.deliver)(notice, priority) {
            reports.handler_panicked();
        }
    }
}
