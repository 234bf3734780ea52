//! Secondary keys of a store.

use std::{collections::HashMap, fmt, hash::BuildHasher};

use hashbrown::DefaultHashBuilder;

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

/// The slots of the objects that an owner controls.
///
/// UIDs are kept as numbers: a set of a hundred machines costs what its slots do.
#[derive(Default)]
pub(super) struct Owners {
    slots: hashbrown::HashMap<u128, Vec<u32>>,
    hasher: [DefaultHashBuilder; 2],
}

impl Owners {
    pub(super) fn insert(&mut self, owner: Option<&str>, slot: u32) {
        if let Some(owner) = owner {
            self.slots.entry(self.number(owner)).or_default().push(slot);
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

    /// A UID as a number; whatever is no UID by a hash of twice the usual length, under keys of this process.
    fn number(&self, uid: &str) -> u128 {
        parse(uid).unwrap_or_else(|| {
            let [high, low] = self.hasher.each_ref().map(|hasher| u128::from(hasher.hash_one(uid)));
            high << 64 | low
        })
    }
}

/// Parses a UUID in its only usual form: lower case, with dashes.
fn parse(uid: &str) -> Option<u128> {
    let bytes: &[u8; 36] = uid.as_bytes().try_into().ok()?;
    let mut number = 0_u128;
    for (place, byte) in bytes.iter().enumerate() {
        let digit = match (place, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => byte - b'0',
            (_, b'a'..=b'f') => byte - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(digit);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_numbers_and_other_names_are_told_apart_too() {
        assert_eq!(parse("00000000-0000-0000-0000-0000000000ff"), Some(255));
        assert_eq!(parse("f0000000-0000-0000-0000-000000000000"), Some(15 << 124));
        assert!(parse("F0000000-0000-0000-0000-000000000000").is_none(), "not the same text");
        assert!(parse("f0000000-0000-0000-0000-00000000000-").is_none());
        let mut owners = Owners::default();
        for (slot, owner) in ["a", "b", "a", "f0000000-0000-0000-0000-000000000000"].into_iter().enumerate() {
            owners.insert(Some(owner), u32::try_from(slot).unwrap());
        }
        assert_eq!((owners.get("a"), owners.get("b")), ([0, 2].as_slice(), [1].as_slice()));
        assert_eq!(owners.get("f0000000-0000-0000-0000-000000000000"), [3]);
        owners.remove(Some("a"), 0);
        owners.remove(Some("a"), 2);
        assert!(owners.get("a").is_empty() && owners.slots.len() == 2, "an owner of nothing costs nothing");
    }
}
