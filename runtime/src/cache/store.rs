//! The objects of one kind, with indexes by name, by controlling owner, and by custom keys.

use std::{
    any::Any,
    cmp::Ordering,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use slab::Slab;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    barrier::{Until, Waiters},
    index::{Entries, Index, Owners},
    unreadable::UnreadableObjects,
};
use crate::{
    counts,
    object::{
        Cluster, Kind, ObjectRef, ResourceType, controller_uid, is_deleting, name, namespace, resource_version, uid,
    },
    queue::RequeueHandle,
};

/// A change of one object: created (no `old`), changed, or gone (no `new`).
#[derive(Debug)]
pub struct Change<K> {
    /// The last known object.
    pub old: Option<Arc<K>>,
    /// The current object.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The old and the new object, so that a mapper wakes both the former and the current dependents.
    pub fn sides(&self) -> impl Iterator<Item = &Arc<K>> {
        self.old.iter().chain(self.new.iter())
    }

    /// Whether the object was created or deleted, or this part of it changed.
    pub fn differs_in<T: PartialEq>(&self, part: impl Fn(&K) -> T) -> bool {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => part(old) != part(new),
            _ => true,
        }
    }
}

impl<K: Kind> Change<K> {
    /// Whether only the status may have changed: not the generation, which each change of other fields but the metadata raises where the
    /// status is a subresource, and no metadata that a user or a controller writes.
    pub fn is_of_status(&self) -> bool {
        let (Some(old), Some(new)) = (&self.old, &self.new) else { return false };
        let (old, new) = (old.meta(), new.meta());
        old.generation.is_some()
            && old.generation == new.generation
            && old.uid == new.uid
            && old.deletion_timestamp == new.deletion_timestamp
            && old.finalizers == new.finalizers
            && old.labels == new.labels
            && old.annotations == new.annotations
            && old.owner_references == new.owner_references
    }
}

/// The watched objects of one kind in one cluster.
///
/// # Guarantees
/// * It rejects objects and deletions that are older than its state, except from a server that was itself set back.
/// * It has seen every change up to its version. A list is sorted by name, so only its end advances the version.
/// * An object that was deleted while the watch was broken is reported as gone, with its last value.
/// * A re-list keeps the allocation of an unchanged object and notifies no controller.
/// * The lists in the metadata of stored objects have no spare capacity. Objects may share equal parts ([`crate::controller::Watched::sharing`]).
/// * Every look-up by name, owner or index costs as much as it returns.
///
/// # Assumptions
/// The watch is the only writer.
pub struct Store<K> {
    cluster: Cluster,
    namespace: Arc<str>,
    objects: RwLock<Objects<K>>,
    waiters: Mutex<Waiters>,
    relist: Notify,
    first_list: watch::Sender<FirstList>,
    pub(super) unreadable: UnreadableObjects,
}

/// Lets a new object share equal parts with a known one: its previous version, or a sibling.
pub(crate) type Share<K> = fn(new: &mut K, known: &K);

struct Objects<K> {
    slots: Slab<Slot<K>>,
    names: HashTable<u32>,
    /// Users choose names, so it is the standard library's flood-proof hash.
    hasher: RandomState,
    owners: Owners,
    indexes: Vec<Entries<K>>,
    share: Option<Share<K>>,
    epoch: u32,
    version: u64,
    listed: Option<Instant>,
    listing: bool,
    /// Whether the next complete list replaces the state, newer or not.
    rewinding: bool,
}

struct Slot<K> {
    object: Arc<K>,
    epoch: u32,
}

impl<K: Kind> Store<K> {
    /// An empty store for the objects of a namespace; an empty name means all namespaces.
    pub fn new(cluster: Cluster, namespace: impl Into<Arc<str>>) -> Self {
        Self {
            cluster,
            namespace: namespace.into(),
            objects: RwLock::new(Objects {
                slots: Slab::new(),
                names: HashTable::new(),
                hasher: RandomState::new(),
                owners: Owners::default(),
                indexes: vec![],
                share: None,
                epoch: 0,
                version: 0,
                listed: None,
                listing: false,
                rewinding: false,
            }),
            waiters: Mutex::default(),
            relist: Notify::new(),
            first_list: watch::Sender::default(),
            unreadable: UnreadableObjects::default(),
        }
    }

    /// Adds an index. Does nothing if an index of that name exists.
    pub fn add_index(&self, index: Index<K>) {
        let mut objects = self.objects.write();
        if objects.indexes.iter().any(|entries| entries.index.name == index.name) {
            return;
        }
        let mut entries = Entries::new(index);
        for (slot, entry) in &objects.slots {
            entries.insert(&entry.object, number(slot));
        }
        objects.indexes.push(entries);
    }

    pub(crate) fn set_share(&self, share: Share<K>) {
        self.objects.write().share = Some(share);
    }

    /// The cluster of these objects.
    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    /// The watched namespace; empty for all.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// One object.
    pub fn get(&self, key: &ObjectRef) -> Option<Arc<K>> {
        self.by_name(&key.namespace, &key.name)
    }

    /// One object.
    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let objects = self.objects.read();
        let found = objects.find(namespace, name).and_then(|slot| objects.at(slot)).cloned();
        counts::looked_up::<K>(usize::from(found.is_some()));
        found
    }

    /// The objects that the owner with this UID controls, in the order of their names.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        objects.resolve(objects.owners.get(uid))
    }

    /// How many objects the object with this UID controls.
    pub fn count_owned_by(&self, uid: &str) -> usize {
        counts::looked_up::<K>(0);
        self.objects.read().owners.get(uid).len()
    }

    /// The objects under a key of an index. An index that was never added is empty.
    pub fn by(&self, index: Index<K>, key: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        objects.resolve(objects.indexed(index, key))
    }

    /// The keys under which an index has objects, in no order.
    pub fn keys_of(&self, index: Index<K>) -> Vec<String> {
        counts::looked_up::<K>(0);
        self.objects.read().keys_of(index)
    }

    /// The number of objects under a key of an index.
    pub fn count(&self, index: Index<K>, key: &str) -> usize {
        counts::looked_up::<K>(0);
        self.objects.read().indexed(index, key).len()
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        counts::looked_up::<K>(objects.slots.len());
        objects.slots.iter().map(|(_, slot)| slot.object.clone()).collect()
    }

    /// The keys of all objects, in no order.
    pub fn keys(&self) -> Vec<ObjectRef> {
        let objects = self.objects.read();
        counts::looked_up::<K>(objects.slots.len());
        objects.slots.iter().map(|(_, slot)| ObjectRef::of(self.cluster, slot.object.as_ref())).collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.read().names.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The version that the store has reached.
    pub fn version(&self) -> u64 {
        self.objects.read().version
    }

    /// Whether a first list is complete.
    pub fn is_synced(&self) -> bool {
        self.objects.read().listed.is_some()
    }

    /// When the newest complete list began.
    pub fn listed(&self) -> Option<Instant> {
        self.objects.read().listed
    }

    /// Records why there is no first list.
    pub fn fail(&self, why: &str) {
        self.first_list.send_replace(FirstList::Failed(why.into()));
    }

    pub(super) fn first_list(&self) -> FirstList {
        self.first_list.borrow().clone()
    }

    /// Begins a list. Objects that do not occur before [`Store::end_list`] are gone. Only another list repairs an interrupted
    /// one, which leaves objects of two points in time.
    pub fn begin_list(&self) {
        let mut objects = self.objects.write();
        objects.epoch = objects.epoch.wrapping_add(1);
        objects.listing = true;
        self.unreadable.write().values_mut().for_each(|(_, is_listed)| *is_listed = false);
    }

    /// Makes the next complete list replace the state, also by older versions: the server was itself set back.
    pub(crate) fn rewind(&self) {
        self.objects.write().rewinding = true;
    }

    /// Stores an object from a list or an event. Returns the change, if there is one.
    pub fn apply(&self, object: K) -> Option<Change<K>> {
        let version = resource_version(&object);
        let change = self.objects.write().apply(object, version);
        let changed = change.as_ref().and_then(|change| change.new.as_deref());
        self.release(changed.map(full_name));
        change
    }

    /// Marks an undecodable object as existing, so that the end of a list does not report it gone.
    pub(super) fn keep(&self, namespace: &str, name: &str) {
        let mut objects = self.objects.write();
        let epoch = objects.epoch;
        if let Some(entry) = objects.find(namespace, name).and_then(|slot| objects.slots.get_mut(slot as usize)) {
            entry.epoch = epoch;
        }
    }

    /// Applies the deletion of an object.
    pub fn remove(&self, namespace: &str, name: &str, version: u64) -> Option<Change<K>> {
        let old = self.objects.write().remove(namespace, name, version);
        self.release(Some((namespace, name)));
        old.map(|old| Change { old: Some(old), new: None })
    }

    /// Ends a list that began at `started` and has this version. Returns the objects that it did not show.
    pub fn end_list(&self, version: u64, started: Instant) -> Vec<Change<K>> {
        let gone = {
            let mut objects = self.objects.write();
            let epoch = objects.epoch;
            let stale = objects.slots.iter().filter(|(_, entry)| entry.epoch != epoch);
            let stale: Vec<u32> = stale.map(|(slot, _)| number(slot)).collect();
            objects.version = if objects.rewinding { version } else { objects.version.max(version) };
            objects.listed = Some(started);
            objects.listing = false;
            objects.rewinding = false;
            stale.into_iter().filter_map(|slot| objects.take(slot)).collect::<Vec<_>>()
        };
        self.first_list.send_replace(FirstList::Complete);
        let mut waiters = self.waiters.lock();
        let mut free = waiters.release_listed(started);
        for key in waiters.objects.keys().cloned().collect::<Vec<_>>() {
            free.extend(waiters.release_object(&key, |until| self.meets(until)));
        }
        free.extend(waiters.release(self.version()));
        drop(waiters);
        free.iter().for_each(RequeueHandle::wake);
        gone.into_iter().map(|old| Change { old: Some(old), new: None }).collect()
    }

    /// Records that the watch has reached a version without an event.
    pub fn advance(&self, version: u64) {
        self.objects.write().reach(version);
        self.release(None);
    }

    fn meets(&self, until: &Until) -> bool {
        let objects = self.objects.read();
        let find = |key: &ObjectRef, wanted: &str| {
            let object = objects.find(&key.namespace, &key.name).and_then(|slot| objects.at(slot));
            object.filter(|object| uid(object.as_ref()) == wanted)
        };
        match until {
            Until::Version(version, written) => {
                objects.version >= *version || objects.listed.is_some_and(|started| *written < started)
            }
            Until::Leaving(key, uid) => find(key, uid).is_none_or(|object| is_deleting(object.as_ref())),
            Until::Gone(key, uid) => find(key, uid).is_none(),
            Until::Listed(since) => objects.listed.is_some_and(|started| started >= *since),
        }
    }

    /// Wakes the waiters for what the store has just shown: a version, and perhaps a change of one object.
    fn release(&self, touched: Option<(&str, &str)>) {
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        let mut free = waiters.release(self.version());
        if let Some((namespace, name)) = touched {
            let key = ObjectRef::new(self.cluster, namespace, name);
            free.extend(waiters.release_object(&key, |until| self.meets(until)));
        }
        drop(waiters);
        free.iter().for_each(RequeueHandle::wake);
    }
}

impl<K: Kind> Objects<K> {
    fn at(&self, slot: u32) -> Option<&Arc<K>> {
        self.slots.get(slot as usize).map(|entry| &entry.object)
    }

    fn find(&self, wanted_namespace: &str, wanted: &str) -> Option<u32> {
        let hash = self.hasher.hash_one((wanted_namespace, wanted));
        let is_it = |object: &Arc<K>| full_name(object.as_ref()) == (wanted_namespace, wanted);
        self.names.find(hash, |slot| self.at(*slot).is_some_and(is_it)).copied()
    }

    fn indexed(&self, index: Index<K>, key: &str) -> &[u32] {
        let entries = self.indexes.iter().find(|entries| entries.index.name == index.name);
        entries.map(|entries| entries.get(key)).unwrap_or_default()
    }

    fn keys_of(&self, index: Index<K>) -> Vec<String> {
        let entries = self.indexes.iter().find(|entries| entries.index.name == index.name);
        entries.map(|entries| entries.keys().map(str::to_owned).collect()).unwrap_or_default()
    }

    fn resolve(&self, slots: &[u32]) -> Vec<Arc<K>> {
        counts::looked_up::<K>(slots.len());
        slots.iter().filter_map(|&slot| self.at(slot).cloned()).collect()
    }

    fn reach(&mut self, version: u64) {
        if !self.listing {
            self.version = self.version.max(version);
        }
    }

    fn apply(&mut self, mut object: K, version: u64) -> Option<Change<K>> {
        self.reach(version);
        let epoch = self.epoch;
        let known = self.find(namespace(&object), name(&object));
        if let Some(entry) = known.and_then(|slot| self.slots.get_mut(slot as usize)) {
            entry.epoch = epoch;
            let is_newer = version > resource_version(entry.object.as_ref());
            // After a rewind, an equal version may belong to another history.
            if !is_newer && !self.rewinding {
                return None;
            }
        }
        drop_spare_capacity(object.meta_mut());
        self.share(&mut object, known);
        let new = Arc::new(object);
        let old = known.and_then(|slot| self.replace(slot, new.clone()));
        if known.is_none() {
            self.put(&new, epoch);
        }
        Some(Change { old, new: Some(new) })
    }

    fn remove(&mut self, namespace: &str, name: &str, version: u64) -> Option<Arc<K>> {
        self.reach(version);
        let slot = self.find(namespace, name)?;
        if version < resource_version(self.at(slot)?.as_ref()) {
            return None;
        }
        self.take(slot)
    }

    fn replace(&mut self, slot: u32, new: Arc<K>) -> Option<Arc<K>> {
        let old = self.at(slot)?.clone();
        let (was, is) = (controller_uid(old.as_ref()), controller_uid(new.as_ref()));
        if was != is {
            let Self { owners, slots, .. } = self;
            owners.remove(was, slot);
            owners.insert(is, slot, |other| order(slots, other, new.as_ref()));
        }
        self.indexes.iter_mut().for_each(|index| index.replace(&old, &new, slot));
        self.slots.get_mut(slot as usize)?.object = new;
        Some(old)
    }

    fn share(&self, new: &mut K, known: Option<u32>) {
        let Some(share) = self.share else { return };
        let sibling = || controller_uid(new).and_then(|owner| self.owners.get(owner).first().copied());
        if let Some(known) = known.or_else(sibling).and_then(|slot| self.at(slot)) {
            share(new, known);
        }
    }

    fn put(&mut self, object: &Arc<K>, epoch: u32) {
        let slot = number(self.slots.insert(Slot { object: object.clone(), epoch }));
        let Self { owners, slots, names, hasher, .. } = self;
        owners.insert(controller_uid(object.as_ref()), slot, |other| order(slots, other, object.as_ref()));
        let hash_of = |object: &K| hasher.hash_one(full_name(object));
        names.insert_unique(hash_of(object), slot, |&other| hash_of(&slots[other as usize].object));
        self.indexes.iter_mut().for_each(|index| index.insert(object, slot));
    }

    fn take(&mut self, slot: u32) -> Option<Arc<K>> {
        let object = self.slots.try_remove(slot as usize)?.object;
        let hash = self.hasher.hash_one(full_name(object.as_ref()));
        if let Ok(entry) = self.names.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        self.owners.remove(controller_uid(object.as_ref()), slot);
        self.indexes.iter_mut().for_each(|index| index.remove(&object, slot));
        Some(object)
    }
}

/// Decoding a list leaves room for up to as many elements again.
fn drop_spare_capacity(meta: &mut ObjectMeta) {
    meta.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
    meta.finalizers.iter_mut().for_each(Vec::shrink_to_fit);
}

fn order<K: Kind>(slots: &Slab<Slot<K>>, slot: u32, other: &K) -> Ordering {
    full_name(slots[slot as usize].object.as_ref()).cmp(&full_name(other))
}

/// Indexes keep slots as 32-bit numbers to save memory.
fn number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}

fn full_name<K: Kind>(object: &K) -> (&str, &str) {
    (namespace(object), name(object))
}

/// The progress of a store, which has not changed while this is the same.
pub(crate) type Glimpse = (u64, FirstList);

#[derive(Clone, Default, PartialEq)]
pub(crate) enum FirstList {
    #[default]
    Pending,
    /// It has failed several times, lastly for this reason.
    Failed(Arc<str>),
    Complete,
}

/// A store without its type parameter, for callers that only need versions and names.
pub(crate) trait AnyStore: Any + Send + Sync {
    fn resource(&self) -> ResourceType;
    fn cluster(&self) -> Cluster;
    /// The watched namespace; empty for all.
    fn namespace(&self) -> &str;
    fn covers(&self, namespace: &str) -> bool {
        self.namespace().is_empty() || self.namespace() == namespace
    }
    fn version(&self) -> u64;
    fn len(&self) -> usize;
    fn glimpse(&self) -> Glimpse;
    /// When the newest complete list began.
    fn listed(&self) -> Option<Instant>;
    fn is_synced(&self) -> bool {
        self.listed().is_some()
    }
    fn is_listed_since(&self, since: Instant) -> bool {
        self.listed().is_some_and(|started| started >= since)
    }
    /// Whether the condition holds. If not, the store wakes the waiter once it does.
    fn wait(&self, until: &Until, who: &RequeueHandle) -> bool;
    fn oldest_wait(&self) -> Option<Instant>;
    fn begin_list(&self);
    fn rewind(&self);
    fn advance(&self, version: u64);
    fn fail(&self, why: &str);
    /// Asks the watch for a consistent list.
    fn relist(&self);
    /// Notified when another list is wanted.
    fn relist_wanted(&self) -> &Notify;
    fn next_list(&self) -> futures::future::BoxFuture<'_, ()>;
}

impl<K: Kind> AnyStore for Store<K> {
    fn resource(&self) -> ResourceType {
        ResourceType::of::<K>()
    }
    fn cluster(&self) -> Cluster {
        self.cluster
    }
    fn version(&self) -> u64 {
        Self::version(self)
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
    fn glimpse(&self) -> Glimpse {
        (self.version(), self.first_list())
    }
    fn namespace(&self) -> &str {
        &self.namespace
    }
    fn begin_list(&self) {
        Self::begin_list(self);
    }
    fn rewind(&self) {
        Self::rewind(self);
    }
    fn advance(&self, version: u64) {
        Self::advance(self, version);
    }
    fn fail(&self, why: &str) {
        Self::fail(self, why);
    }
    fn listed(&self) -> Option<Instant> {
        self.objects.read().listed
    }
    fn wait(&self, until: &Until, who: &RequeueHandle) -> bool {
        // Hold the lock across the check, so that an event in between finds the waiter.
        let mut waiters = self.waiters.lock();
        let met = self.meets(until);
        if !met {
            waiters.push(until, who.clone());
        }
        met
    }
    fn oldest_wait(&self) -> Option<Instant> {
        self.waiters.lock().oldest()
    }
    fn relist(&self) {
        self.relist.notify_one();
    }
    fn relist_wanted(&self) -> &Notify {
        &self.relist
    }
    fn next_list(&self) -> futures::future::BoxFuture<'_, ()> {
        let mut lists = self.first_list.subscribe();
        Box::pin(async move { drop(lists.changed().await) })
    }
}

impl<K> Store<K> {
    pub(crate) async fn synced(&self) {
        let _ = self.first_list.subscribe().wait_for(|list| *list == FirstList::Complete).await;
    }

    /// Resolves once the first list is complete or has failed several times.
    pub(crate) async fn answered(&self) {
        let _ = self.first_list.subscribe().wait_for(|list| *list != FirstList::Pending).await;
    }
}

#[cfg(test)]
mod tests;
