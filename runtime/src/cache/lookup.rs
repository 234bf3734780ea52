//! What is known of one object that is looked at by its name.

use std::sync::Arc;

use super::{store::Store, unreadable::Unreadable};
use crate::object::{Kind, ObjectRef};

/// What is known of an object that is looked at by its name ([`crate::scoped_watch::ScopedWatch::named`]).
///
/// Only [`Lookup::Missing`] says that there is none: the API server was asked, and said so.
#[derive(Clone, Debug)]
pub enum Lookup<K> {
    /// Nobody has asked, or there is no answer yet.
    Pending,
    /// The API server was asked several times and gives no list: what it says instead.
    Failed(Arc<str>),
    /// There is none.
    Missing,
    /// It exists and cannot be decoded.
    Unreadable(Arc<Unreadable>),
    /// It is there, as it was when it could be decoded last.
    Found(Arc<K>),
}

impl<K: Kind> Lookup<K> {
    pub(super) fn of(store: &Store<K>, key: &ObjectRef) -> Self {
        if !store.is_synced() {
            return store.failure().map_or(Self::Pending, Self::Failed);
        }
        if let Some(object) = store.get(key) {
            return Self::Found(object);
        }
        let unreadable = store.unreadable().into_iter().find(|object| object.name() == &*key.name);
        unreadable.map_or(Self::Missing, Self::Unreadable)
    }
}

impl<K> Lookup<K> {
    /// The object, if it is there.
    pub fn found(&self) -> Option<&Arc<K>> {
        match self {
            Self::Found(object) => Some(object),
            Self::Pending | Self::Failed(_) | Self::Missing | Self::Unreadable(_) => None,
        }
    }
}
