//! Objects, their versions and their history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::kinds::{Kind, Kinds};
use super::refusal::{self, Refusal};
use super::route::{Id, Resource};
use super::selector::Selector;

/// How many changes a watch may lag behind before it fails with 410 Gone.
const HISTORY: usize = 10_000;

pub(super) type Refused = Box<Refusal>;

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) at: Instant,
    pub(super) id: Id,
    pub(super) old: Option<Arc<Value>>,
    pub(super) new: Option<Arc<Value>>,
    /// The new object; for a deletion its last form, with the resource version of the deletion.
    pub(super) last: Arc<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    Created(Arc<Value>),
    /// Changed, or already as wanted.
    Updated(Arc<Value>),
    /// Deleted, with its last form.
    Deleted(Arc<Value>),
}

/// The client that writes, and the time of the write.
#[derive(Clone, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) now: Timestamp,
    /// Validates and answers, but stores nothing.
    pub(super) dry_run: bool,
    /// Whether the body is so large that the size of the stored object has to be checked.
    pub(super) large: bool,
}

impl<'a> Writer<'a> {
    /// A writer that uses no request.
    pub(super) fn direct(manager: &'a str, now: Timestamp) -> Self {
        Self { manager, now, dry_run: false, large: false }
    }
}

/// Namespace and name.
type Place = (String, String);

#[derive(Clone, Debug)]
pub(super) struct Store {
    objects: BTreeMap<Resource, BTreeMap<Place, Arc<Value>>>,
    kinds: Kinds,
    version: u64,
    uids: u64,
    history: VecDeque<Arc<Change>>,
    /// Changes up to this version are no longer known.
    compacted: u64,
    /// Objects whose stored form has empty fields that no answer shows. For these, a write that changes nothing still makes a
    /// new resource version.
    unsettled: BTreeSet<Id>,
    /// Whether objects can be created only in namespaces that exist and are not terminating.
    pub(super) enforces_namespaces: bool,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            kinds: Kinds::default(),
            // A real server has many writes before the first client. Tests rely on no object having version 1.
            version: 1_000,
            uids: 0,
            history: VecDeque::new(),
            compacted: 1_000,
            unsettled: BTreeSet::new(),
            enforces_namespaces: false,
        }
    }
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn kind(&self, resource: &Resource) -> Arc<Kind> {
        self.kinds.get(resource)
    }

    pub(super) fn learn(&mut self, resource: &Resource, object: &Value) -> Arc<Kind> {
        self.kinds.learn(resource, object["kind"].as_str())
    }

    pub(super) fn declare(&mut self, definition: &Value) {
        self.kinds.declare(definition);
    }

    pub(super) fn find(&self, id: &Id) -> Option<&Arc<Value>> {
        self.objects.get(&id.resource)?.get(&(id.namespace.clone(), id.name.clone()))
    }

    pub(super) fn get(&self, id: &Id) -> Result<Arc<Value>, Refused> {
        self.find(id).cloned().ok_or_else(|| refusal::not_found(id))
    }

    /// All kinds that have objects.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.objects.iter().filter(|(_, objects)| !objects.is_empty()).map(|(resource, _)| resource)
    }

    /// All objects of a kind, ordered by namespace and name.
    pub(super) fn all(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Value>> {
        self.objects.get(resource).into_iter().flat_map(BTreeMap::values)
    }

    /// All selected objects of a kind, ordered by name.
    pub(super) fn list(&self, resource: &Resource, selector: &Selector) -> Vec<Arc<Value>> {
        self.all(resource).filter(|object| selector.matches(object)).cloned().collect()
    }

    /// The same at an earlier version; `None` if the history no longer reaches back to it.
    pub(super) fn list_as_of(&self, resource: &Resource, selector: &Selector, version: u64) -> Option<Vec<Arc<Value>>> {
        if version >= self.version {
            return Some(self.list(resource, selector));
        }
        let mut then: BTreeMap<Place, Arc<Value>> = self.objects.get(resource).cloned().unwrap_or_default();
        for change in self.changes_after(version)?.rev().filter(|change| change.id.resource == *resource) {
            let place = (change.id.namespace.clone(), change.id.name.clone());
            match &change.old {
                Some(old) => then.insert(place, old.clone()),
                None => then.remove(&place),
            };
        }
        Some(then.into_values().filter(|object| selector.matches(object)).collect())
    }

    /// The changes after a version; `None` if the history no longer reaches back to it.
    pub(super) fn changes_after(&self, version: u64) -> Option<impl DoubleEndedIterator<Item = &Change>> {
        if version < self.compacted {
            return None;
        }
        let start = self.history.partition_point(|change| change.version <= version);
        Some(self.history.range(start..).map(Arc::as_ref))
    }

    /// Forgets all changes: a watch from an earlier version has to list again.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }

    /// Returns to an earlier state. Versions are assigned a second time, UIDs are not.
    pub(super) fn set_back(&mut self, earlier: &Self) {
        *self = Self { uids: self.uids, ..earlier.clone() };
        self.compact();
    }

    pub(super) fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", self.uids, self.uids)
    }

    pub(super) fn unsettle(&mut self, id: &Id) {
        self.unsettled.insert(id.clone());
    }

    pub(super) fn is_settled(&self, id: &Id) -> bool {
        !self.unsettled.contains(id)
    }

    /// Stores an object under the next version.
    pub(super) fn commit(&mut self, id: &Id, mut object: Value) -> Arc<Value> {
        self.version += 1;
        self.unsettled.remove(id);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.kinds.learn(&id.resource, object["kind"].as_str());
        let new = Arc::new(object);
        let objects = self.objects.entry(id.resource.clone()).or_default();
        let old = objects.insert((id.namespace.clone(), id.name.clone()), new.clone());
        self.remember(id, old, Some(new.clone()), new.clone());
        new
    }

    /// Removes an object at once. Watches see its last form with the resource version of the deletion.
    pub(super) fn evaporate(&mut self, id: &Id) -> Result<Arc<Value>, Refused> {
        let place = (id.namespace.clone(), id.name.clone());
        let old = self.objects.get_mut(&id.resource).and_then(|objects| objects.remove(&place));
        let old = old.ok_or_else(|| refusal::not_found(id))?;
        self.version += 1;
        self.unsettled.remove(id);
        let last = Arc::new(at_version((*old).clone(), self.version));
        self.remember(id, Some(old), None, last.clone());
        Ok(last)
    }

    fn remember(&mut self, id: &Id, old: Option<Arc<Value>>, new: Option<Arc<Value>>, last: Arc<Value>) {
        let (version, at, id) = (self.version, Instant::now(), id.clone());
        self.history.push_back(Arc::new(Change { version, at, id, old, new, last }));
        while self.history.len() > HISTORY {
            self.compacted = self.history.pop_front().map_or(self.compacted, |change| change.version);
        }
    }
}

/// An object with another resource version.
pub(super) fn at_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

/// The wire format of times in metadata.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A field of the metadata, unless it is empty.
pub(super) fn said<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["metadata"][field].as_str().filter(|text| !text.is_empty())
}

pub(super) fn set_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => drop(object.as_object_mut().and_then(|fields| fields.remove(field))),
    }
}
