//! Secondary keys of a store.

use std::{collections::HashMap, fmt, sync::Arc};

/// The name of an index: a constant that the registration and the look-up share.
pub type IndexName = &'static str;

/// Derives the key that an object is found under; `None` leaves it out.
pub type IndexFn<K> = Arc<dyn Fn(&K) -> Option<String> + Send + Sync>;

/// The slots in which objects with a key stand.
pub(super) struct Index<K> {
    pub(super) name: IndexName,
    key_of: IndexFn<K>,
    slots: HashMap<Box<str>, Vec<u32>>,
}

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("name", &self.name).field("keys", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<K> Index<K> {
    pub(super) fn new(name: IndexName, key_of: IndexFn<K>) -> Self {
        Self { name, key_of, slots: HashMap::new() }
    }

    pub(super) fn insert(&mut self, object: &K, slot: u32) {
        if let Some(key) = (self.key_of)(object) {
            self.slots.entry(key.into()).or_default().push(slot);
        }
    }

    pub(super) fn remove(&mut self, object: &K, slot: u32) {
        let Some(key) = (self.key_of)(object) else { return };
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
