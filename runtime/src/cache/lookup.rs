//! The state of one object that is watched by name.

use std::sync::Arc;

use super::{
    store::{FirstList, Store},
    unreadable::Unreadable,
};
use crate::object::{Kind, ObjectRef};

/// The state of an object that is watched by name ([`crate::scoped_watch::ScopedWatch::named`]).
///
/// Only [`Lookup::Missing`] means that the object does not exist: the API server has said so.
#[derive(Clone, Debug)]
pub enum Lookup<K> {
    /// No plan has requested it, or there is no answer yet.
    Pending,
    /// The API server failed to list it several times: its message.
    Failed(Arc<str>),
    /// It does not exist.
    Missing,
    /// It exists and cannot be decoded.
    Unreadable(Arc<Unreadable>),
    /// It exists; this is its last decodable version.
    Found(Arc<K>),
}

impl<K: Kind> Lookup<K> {
    pub(super) fn of(store: &Store<K>, key: &ObjectRef) -> Self {
        match store.first_list() {
            FirstList::Pending => return Self::Pending,
            FirstList::Failed(why) => return Self::Failed(why),
            FirstList::Complete => {}
        }
        if let Some(object) = store.get(key) {
            return Self::Found(object);
        }
        let unreadable = store.unreadable().into_iter().find(|object| object.name() == &*key.name);
        unreadable.map_or(Self::Missing, Self::Unreadable)
    }
}

impl<K> Lookup<K> {
    /// The object, if it exists.
    pub fn found(&self) -> Option<&Arc<K>> {
        match self {
            Self::Found(object) => Some(object),
            Self::Pending | Self::Failed(_) | Self::Missing | Self::Unreadable(_) => None,
        }
    }
}
