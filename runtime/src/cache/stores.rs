//! All stores of a manager.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::{
    barrier::Until,
    store::{AnyStore, FirstList, Glimpse, Store},
    unreadable::Unreadable,
};
use crate::{
    object::{Cluster, Kind, ObjectRef, ResourceType},
    request::Contact,
    scoped_watch::{self, ScopedWatch},
};

/// The cluster and the kind of a store, and the selector of a scoped watch.
pub(crate) type StoreKey = (Cluster, TypeId, Option<Arc<str>>);

/// The stores of all watched kinds and scoped watches.
#[derive(Clone, Default)]
pub struct Stores {
    shared: Arc<RwLock<BTreeMap<StoreKey, Arc<dyn AnyStore>>>>,
    contacts: BTreeMap<Cluster, Arc<Contact>>,
    view: Option<Arc<View>>,
}

struct View {
    since: Instant,
    reads: Mutex<Reads>,
}

#[derive(Default)]
pub(crate) struct Reads {
    /// The stores that have shown no list since the given moment.
    pub(crate) behind: Vec<Arc<dyn AnyStore>>,
    /// Since when there has been contact with the servers of all stores that were read.
    pub(crate) connected_since: Option<Instant>,
    /// The scoped watches that were read, with their progress at that time.
    pub(crate) scoped: Vec<(StoreKey, Glimpse)>,
}

impl Stores {
    pub(crate) fn with_contacts(contacts: BTreeMap<Cluster, Arc<Contact>>) -> Self {
        Self { contacts, ..Self::default() }
    }

    /// The same stores with one more object and no watch: the input of a controller in a test.
    #[must_use]
    pub fn with<K: Kind>(self, cluster: Cluster, object: K) -> Self {
        let store = self.of::<K>(cluster);
        store.apply(object);
        self.add(store);
        self
    }

    /// The store of a kind. The store of a kind without a watch is always empty.
    pub fn of<K: Kind>(&self, cluster: Cluster) -> Arc<Store<K>> {
        let Some(store) = self.lookup::<K>(&(cluster, TypeId::of::<K>(), None)) else {
            return Arc::new(Store::new(cluster, ""));
        };
        if let Some(view) = &self.view {
            let mut reads = view.reads.lock();
            reads.connected_since =
                reads.connected_since.max(self.contacts.get(&cluster).map(|contact| contact.since()));
            if !store.is_listed_since(self.fresh_since(cluster, view.since)) {
                reads.behind.push(store.clone());
            }
        }
        store
    }

    /// Whether the store of a kind is fresh, as one without a watch always is. An object that is
    /// [planned with unlisted caches](crate::controller::Controller::plans_unlisted) must not rely on another one.
    pub fn is_listed<K: Kind>(&self, cluster: Cluster) -> bool {
        let store = self.lookup::<K>(&(cluster, TypeId::of::<K>(), None));
        let is_fresh =
            |view: &Arc<View>, store: &Store<K>| store.is_listed_since(self.fresh_since(cluster, view.since));
        store.is_none_or(|store| self.view.as_ref().is_none_or(|view| is_fresh(view, &store)))
    }

    /// The moment from which on the lists of a cluster count: `since`, or later if its API server was set back since.
    pub(crate) fn fresh_since(&self, cluster: Cluster, since: Instant) -> Instant {
        let set_back = self.contacts.get(&cluster).and_then(|contact| contact.set_back());
        set_back.map_or(since, |at| at.max(since))
    }

    /// Whether the API server of a cluster has answered within the last minute. A cluster that nothing is requested from has no
    /// server to miss.
    pub fn has_contact(&self, cluster: Cluster) -> bool {
        self.contact(cluster).unwrap_or(true)
    }

    /// The same; `None` for a cluster that nothing is requested from.
    pub fn contact(&self, cluster: Cluster) -> Option<bool> {
        self.contacts.get(&cluster).map(|contact| contact.is_held())
    }

    pub(crate) fn clusters(&self) -> impl Iterator<Item = Cluster> {
        self.contacts.keys().copied()
    }

    /// The same stores, for one snapshot: they record what is read ([`Reads`]).
    pub(crate) fn since(&self, since: Instant) -> Self {
        let (shared, contacts) = (self.shared.clone(), self.contacts.clone());
        Self { shared, contacts, view: Some(Arc::new(View { since, reads: Mutex::default() })) }
    }

    pub(crate) fn reads(&self) -> Reads {
        self.view.as_ref().map(|view| std::mem::take(&mut *view.reads.lock())).unwrap_or_default()
    }

    /// The objects of a kind in a scoped watch (`crate::scoped_watch`): `None` until its first list is complete.
    pub fn seen<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<Store<K>>> {
        self.scoped_watch(cluster, selector).filter(|store| store.is_synced())
    }

    /// Why a scoped watch has no first list yet, once the API server has failed to give it several times: its message.
    pub fn unseen<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<str>> {
        match self.scoped_watch::<K>(cluster, selector)?.first_list() {
            FirstList::Failed(why) => Some(why),
            FirstList::Pending | FirstList::Complete => None,
        }
    }

    /// The state of the object that [`ScopedWatch::named`] with the same arguments watches.
    pub fn named<K: Kind>(&self, key: &ObjectRef, fields: &str) -> Lookup<K> {
        let store = self.scoped_watch::<K>(key.cluster, &scoped_watch::named_selector(key, fields));
        store.map_or(Lookup::Pending, |store| Lookup::of(&store, key))
    }

    /// The state of the object that this watches, which is a [`ScopedWatch::named`] of `K`.
    pub fn watched<K: Kind>(&self, watch: &ScopedWatch) -> Lookup<K> {
        let Some(key) = watch.object() else { return Lookup::Pending };
        self.scoped::<K>(watch.key()).map_or(Lookup::Pending, |store| Lookup::of(&store, key))
    }

    fn scoped_watch<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<Store<K>>> {
        self.scoped((cluster, TypeId::of::<K>(), Some(selector.into())))
    }

    fn scoped<K: Kind>(&self, key: StoreKey) -> Option<Arc<Store<K>>> {
        let store = self.lookup::<K>(&key);
        if let Some(view) = &self.view {
            // Take the glimpse before the read, so that a change in between counts as unseen.
            let glimpse = store.as_ref().map(|store| store.glimpse()).unwrap_or_default();
            view.reads.lock().scoped.push((key, glimpse));
        }
        store
    }

    /// Whether a scoped watch has changed since it was read. A new scoped watch does not wake its object for earlier changes.
    pub(crate) fn have_moved(&self, reads: &Reads) -> bool {
        let shared = self.shared.read();
        let now = |key: &StoreKey| shared.get(key).map(|store| store.glimpse()).unwrap_or_default();
        reads.scoped.iter().any(|(key, glimpse)| now(key) != *glimpse)
    }

    /// Adds a store; for the manager, and for tests that build a snapshot.
    pub fn add<K: Kind>(&self, store: Arc<Store<K>>) {
        self.shared.write().insert((store.cluster(), TypeId::of::<K>(), None), store);
    }

    /// Adds the store of a scoped watch; for the manager, and for tests that build a snapshot.
    pub fn add_scoped<K: Kind>(&self, watch: &ScopedWatch, store: Arc<Store<K>>) {
        self.shared.write().insert(watch.key(), store);
    }

    pub(crate) fn remove(&self, key: &StoreKey) {
        self.shared.write().remove(key);
    }

    /// The stores that must show a write to an object: the lasting ones, and those of its `own` scoped watches. Without a
    /// lasting one, other scoped watches can show that it is gone, but not a version: they may leave the object out.
    pub(crate) fn showing(
        &self,
        resource: &ResourceType,
        key: &ObjectRef,
        until: &Until,
        own: &[ScopedWatch],
    ) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let of_kind = shared.iter().filter(|(at, store)| at.0 == key.cluster && store.resource() == *resource);
        let (mut lasting, scoped): (Vec<_>, Vec<_>) = of_kind.partition(|(at, _)| at.2.is_none());
        lasting.retain(|(_, store)| store.covers(&key.namespace));
        let counts_all = lasting.is_empty() && !matches!(until, Until::Version(..));
        let is_own = |at: &StoreKey| own.iter().any(|watch| watch.is_of(key) && watch.key() == *at);
        let scoped = scoped.into_iter().filter(|(at, _)| counts_all || is_own(at));
        lasting.into_iter().chain(scoped).map(|(_, store)| store.clone()).collect()
    }

    /// All stores that exist as long as the manager.
    pub(crate) fn lasting(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().iter().filter(|(key, _)| key.2.is_none()).map(|(_, store)| store.clone()).collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().values().cloned().collect()
    }

    fn lookup<K: Kind>(&self, key: &StoreKey) -> Option<Arc<Store<K>>> {
        let store: Arc<dyn Any + Send + Sync> = self.shared.read().get(key)?.clone();
        store.downcast().ok()
    }
}

/// The state of an object that is watched by name ([`crate::scoped_watch::ScopedWatch::named`]).
#[derive(Clone, Debug)]
pub enum Lookup<K> {
    /// No plan has requested it, or there is no answer yet.
    Pending,
    /// The API server failed to list it several times: its message.
    Failed(Arc<str>),
    /// It does not exist, as the API server has answered.
    Missing,
    /// It exists and cannot be decoded.
    Unreadable(Arc<Unreadable>),
    /// It exists; this is its last decodable version.
    Found(Arc<K>),
}

impl<K: Kind> Lookup<K> {
    fn of(store: &Store<K>, key: &ObjectRef) -> Self {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::HOME;
    use nodewright_testing::object;

    /// A new scoped watch does not wake its object for earlier changes, not even for those during the plan.
    #[test]
    fn a_change_between_the_read_and_the_start_of_a_scoped_watch_is_noticed() {
        let (all, key) = (Stores::default(), ObjectRef::new(HOME, "default", "a"));
        let watch = ScopedWatch::named::<ConfigMap>(&key, "");
        let read = |expected: &str| {
            let view = all.since(Instant::now());
            let found = view.named::<ConfigMap>(&key, "");
            assert!(format!("{found:?}").starts_with(expected), "{found:?}");
            view.reads()
        };
        let before = read("Pending");
        let store = Arc::new(Store::<ConfigMap>::new(HOME, "default"));
        all.add_scoped(&watch, store.clone());
        assert!(!all.have_moved(&before), "there is no answer yet");
        store.fail("forbidden");
        assert!(all.have_moved(&before));
        let before = read("Failed");
        store.begin_list();
        store.end_list(3, Instant::now());
        assert!(all.have_moved(&before));
        let before = read("Missing");
        assert!(!all.have_moved(&before));
        store.apply(object("a").with("/metadata/resourceVersion", "4").build());
        assert!(all.have_moved(&before) && !all.have_moved(&read("Found")));
        store.add_unreadable(crate::cache::Unreadable::named("default", "a", "u"));
        read("Found");
        store.remove("default", "a", 5);
        read("Unreadable");
    }

    #[tokio::test(start_paused = true)]
    async fn lists_of_before_the_server_was_set_back_do_not_count() {
        let contact = Arc::new(Contact::default());
        let stores = Stores::with_contacts(BTreeMap::from([(HOME, contact.clone())]));
        let store = Arc::new(Store::<ConfigMap>::new(HOME, "default"));
        stores.add(store.clone());
        let gained = Instant::now();
        let list = || {
            store.begin_list();
            store.end_list(3, Instant::now());
        };
        let is_behind = || {
            let view = stores.since(gained);
            drop(view.of::<ConfigMap>(HOME));
            !view.reads().behind.is_empty() && !view.is_listed::<ConfigMap>(HOME)
        };
        list();
        assert!(!is_behind());
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        contact.was_set_back(Instant::now());
        assert!(is_behind());
        list();
        assert!(!is_behind());
    }
}
