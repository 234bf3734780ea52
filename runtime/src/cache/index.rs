//! Secondary keys of a store.

use std::{cmp::Ordering, collections::HashMap, hash::BuildHasher};

use hashbrown::DefaultHashBuilder;

/// A secondary key of a kind: a constant that the registration and the look-up share. Its name is unique for the kind.
pub struct Index<K> {
    /// The identity of the index.
    pub name: &'static str,
    /// The key of an object; `None` leaves it out.
    pub key_of: fn(&K) -> Option<String>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Index<K> {}

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

    pub(super) fn replace(&mut self, old: &K, new: &K, slot: u32) {
        if (self.index.key_of)(old) != (self.index.key_of)(new) {
            self.remove(old, slot);
            self.insert(new, slot);
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.slots.keys().map(AsRef::as_ref)
    }

    pub(super) fn get(&self, key: &str) -> &[u32] {
        self.slots.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The slots of the objects that an owner controls, sorted by object name, so that no plan depends on the order of arrival.
#[derive(Default)]
pub(super) struct Owners {
    slots: hashbrown::HashMap<u128, Vec<u32>>,
    hasher: [DefaultHashBuilder; 2],
}

impl Owners {
    /// `order` compares the object of another slot with the new one.
    pub(super) fn insert(&mut self, owner: Option<&str>, slot: u32, order: impl Fn(u32) -> Ordering) {
        if let Some(owner) = owner {
            let slots = self.slots.entry(self.number(owner)).or_default();
            let place = slots.partition_point(|&other| order(other) == Ordering::Less);
            slots.insert(place, slot);
        }
    }

    pub(super) fn remove(&mut self, owner: Option<&str>, slot: u32) {
        let Some(owner) = owner.map(|owner| self.number(owner)) else { return };
        if let Some(slots) = self.slots.get_mut(&owner) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.slots.remove(&owner);
            }
        }
    }

    pub(super) fn get(&self, owner: &str) -> &[u32] {
        self.slots.get(&self.number(owner)).map(Vec::as_slice).unwrap_or_default()
    }

    /// A UID as a 128-bit hash with random keys: it needs less memory than the text, and less time than parsing.
    fn number(&self, uid: &str) -> u128 {
        let [high, low] = self.hasher.each_ref().map(|hasher| u128::from(hasher.hash_one(uid)));
        high << 64 | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_distinguished_and_forgotten() {
        let mut owners = Owners::default();
        for (slot, owner) in ["a", "b", "a", "f0000000-0000-0000-0000-000000000000"].into_iter().enumerate() {
            owners.insert(Some(owner), u32::try_from(slot).unwrap(), |_| Ordering::Less);
        }
        assert_eq!((owners.get("a"), owners.get("b")), ([0, 2].as_slice(), [1].as_slice()));
        assert_eq!(owners.get("f0000000-0000-0000-0000-000000000000"), [3]);
        owners.remove(Some("a"), 0);
        owners.remove(Some("a"), 2);
        assert!(owners.get("a").is_empty() && owners.slots.len() == 2, "an owner of nothing costs nothing");
    }
}
