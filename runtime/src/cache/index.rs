//! Secondary keys of a store.

use std::{collections::HashMap, fmt};

/// A secondary key of a kind: a constant that the registration and the look-up share.
///
/// Two indexes of one kind must not have one name: whoever comes second finds what the first one put there.
pub struct Index<K> {
    /// What the index is known by.
    pub name: &'static str,
    /// The key that an object is found under; `None` leaves it out.
    pub key_of: fn(&K) -> Option<String>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Index<K> {}

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.name).finish()
    }
}

/// The slots in which objects with a key stand.
pub(super) struct Entries<K> {
    pub(super) index: Index<K>,
    slots: HashMap<Box<str>, Vec<u32>>,
}

impl<K> Entries<K> {
    pub(super) fn new(index: Index<K>) -> Self {
        Self { index, slots: HashMap::new() }
    }

    pub(super) fn insert(&mut self, object: &K, slot: u32) {
        if let Some(key) = (self.index.key_of)(object) {
            self.slots.entry(key.into()).or_default().push(slot);
        }
    }

    pub(super) fn remove(&mut self, object: &K, slot: u32) {
        let Some(key) = (self.index.key_of)(object) else { return };
        if let Some(slots) = self.slots.get_mut(key.as_str()) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.slots.remove(key.as_str());
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> &[u32] {
        self.slots.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}
