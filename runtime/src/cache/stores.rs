//! All stores of a manager.

use std::{any::TypeId, collections::BTreeMap, fmt, sync::Arc};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::{
    lookup::Lookup,
    store::{AnyStore, Glimpse, Store},
};
use crate::{
    object::{Cluster, Kind, ObjectRef, ResourceType},
    request::Contact,
    scoped_watch::{self, ScopedWatch},
};

type Place = (Cluster, TypeId, Option<Arc<str>>);

/// The stores of all watched kinds and of all scoped watches.
#[derive(Clone, Default)]
pub struct Stores {
    shared: Arc<RwLock<BTreeMap<Place, Arc<dyn AnyStore>>>>,
    contacts: BTreeMap<Cluster, Arc<Contact>>,
    view: Option<Arc<View>>,
}

/// What one snapshot may trust, and which stores it has read.
struct View {
    since: Instant,
    asked: Mutex<Asked>,
}

/// See [`Stores::since`].
#[derive(Default)]
pub(crate) struct Asked {
    /// The stores that have shown no list since the given moment.
    pub(crate) behind: Vec<Arc<dyn AnyStore>>,
    /// Since when this process has been connected to the servers of all stores that were read.
    pub(crate) connected_since: Option<Instant>,
    /// The scoped watches that were read, complete or not.
    pub(crate) looked: Vec<Looked>,
}

/// The progress of a scoped watch at the time of the read.
pub(crate) struct Looked {
    place: Place,
    glimpse: Glimpse,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("count", &self.shared.read().len()).finish_non_exhaustive()
    }
}

impl Stores {
    /// Empty stores, for clusters with these contacts.
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
            let mut asked = view.asked.lock();
            asked.connected_since =
                asked.connected_since.max(self.contacts.get(&cluster).map(|contact| contact.since()));
            if !store.is_listed_since(view.since) {
                asked.behind.push(store.clone());
            }
        }
        store
    }

    /// The store of a kind, if it is fresh: for an object that continues without it and does not wait.
    pub fn listed<K: Kind>(&self, cluster: Cluster) -> Option<Arc<Store<K>>> {
        let store = self.lookup::<K>(&(cluster, TypeId::of::<K>(), None))?;
        let counts = self.view.as_ref().is_none_or(|view| store.is_listed_since(view.since));
        counts.then(|| self.of(cluster))
    }

    /// The same stores, for one snapshot. It records which stores were read and have shown no list since `since`, and since
    /// when this process has been connected to their servers.
    pub(crate) fn since(&self, since: Instant) -> Self {
        let (shared, contacts) = (self.shared.clone(), self.contacts.clone());
        Self { shared, contacts, view: Some(Arc::new(View { since, asked: Mutex::default() })) }
    }

    /// What was read through [`Stores::since`].
    pub(crate) fn asked(&self) -> Asked {
        self.view.as_ref().map(|view| std::mem::take(&mut *view.asked.lock())).unwrap_or_default()
    }

    /// The objects of a kind in a scoped watch (`crate::scoped_watch`): `None` until its first list is complete.
    pub fn seen<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<Store<K>>> {
        self.scoped_watch(cluster, selector).filter(|store| store.is_synced())
    }

    /// The state of the object that [`ScopedWatch::named`] with the same arguments watches.
    pub fn named<K: Kind>(&self, key: &ObjectRef, fields: &str) -> Lookup<K> {
        let store = self.scoped_watch::<K>(key.cluster, &scoped_watch::named_selector(key, fields));
        store.map_or(Lookup::Pending, |store| Lookup::of(&store, key))
    }

    /// The store of a scoped watch, whether it is complete or not.
    fn scoped_watch<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<Store<K>>> {
        let place = (cluster, TypeId::of::<K>(), Some(selector.into()));
        let store = self.lookup::<K>(&place);
        if let Some(view) = &self.view {
            // Take the glimpse before the read, so that a change in between counts as unseen.
            let glimpse = store.as_ref().map(|store| store.glimpse()).unwrap_or_default();
            view.asked.lock().looked.push(Looked { place, glimpse });
        }
        store
    }

    /// Whether a scoped watch has changed since it was read. A new scoped watch does not wake its object for earlier changes.
    pub(crate) fn have_moved(&self, looked: &[Looked]) -> bool {
        let shared = self.shared.read();
        let now = |place: &Place| shared.get(place).map(|store| store.glimpse()).unwrap_or_default();
        looked.iter().any(|looked| now(&looked.place) != looked.glimpse)
    }

    /// Adds a store; for the manager, and for tests that build a snapshot.
    pub fn add<K: Kind>(&self, store: Arc<Store<K>>) {
        self.shared.write().insert((store.cluster(), TypeId::of::<K>(), None), store);
    }

    /// Adds the store of a scoped watch; for the manager, and for tests that build a snapshot.
    pub fn add_look<K: Kind>(&self, look: &ScopedWatch, store: Arc<Store<K>>) {
        self.shared.write().insert((store.cluster(), TypeId::of::<K>(), Some(look.selector().into())), store);
    }

    pub(crate) fn remove_look(&self, cluster: Cluster, kind: TypeId, selector: &Arc<str>) {
        self.shared.write().remove(&(cluster, kind, Some(selector.clone())));
    }

    /// The stores that would show a write to an object.
    pub(crate) fn showing(&self, resource: &ResourceType, key: &ObjectRef) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let shows = |(place, store): (&Place, &Arc<dyn AnyStore>)| {
            let fits = place.0 == key.cluster && place.2.is_none();
            (fits && store.covers(&key.namespace) && store.resource() == *resource).then(|| store.clone())
        };
        shared.iter().filter_map(shows).collect()
    }

    /// The stores of the scoped watches of this object alone.
    pub(crate) fn of_looks(
        &self,
        looks: &[ScopedWatch],
        resource: &ResourceType,
        key: &ObjectRef,
    ) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let places = looks.iter().filter(|look| look.is_of(key)).map(ScopedWatch::place);
        let stores = places.filter_map(|at| shared.get(&(at.cluster, at.kind, Some(at.selector))).cloned());
        stores.filter(|store| store.resource() == *resource).collect()
    }

    /// The stores of scoped watches that hold objects of a resource.
    pub(crate) fn looking_at(&self, resource: &ResourceType, cluster: Cluster) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let fits = |(place, store): (&Place, &Arc<dyn AnyStore>)| {
            (place.0 == cluster && place.2.is_some() && store.resource() == *resource).then(|| store.clone())
        };
        shared.iter().filter_map(fits).collect()
    }

    /// All stores that exist as long as the manager.
    pub(crate) fn lasting(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().iter().filter(|(place, _)| place.2.is_none()).map(|(_, store)| store.clone()).collect()
    }

    /// All current stores.
    pub(crate) fn all(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().values().cloned().collect()
    }

    fn lookup<K: Kind>(&self, place: &Place) -> Option<Arc<Store<K>>> {
        let store = self.shared.read().get(place)?.clone();
        store.as_any().downcast().ok()
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
    fn what_comes_between_a_look_and_its_beginning_is_noticed() {
        let (all, key) = (Stores::default(), ObjectRef::new(HOME, "default", "a"));
        let look = ScopedWatch::named::<ConfigMap>(&key, "");
        let asked = |expected: &str| {
            let view = all.since(Instant::now());
            let found = view.named::<ConfigMap>(&key, "");
            assert!(format!("{found:?}").starts_with(expected), "{found:?}");
            view.asked().looked
        };
        let before = asked("Pending");
        let store = Arc::new(Store::<ConfigMap>::new(HOME, "default"));
        all.add_look(&look, store.clone());
        assert!(!all.have_moved(&before), "there is no answer yet");
        store.fail("forbidden");
        assert!(all.have_moved(&before));
        let before = asked("Failed");
        store.begin_list();
        store.end_list(3, Instant::now());
        assert!(all.have_moved(&before));
        let before = asked("Missing");
        assert!(!all.have_moved(&before));
        store.apply(object("a").with("/metadata/resourceVersion", "4").build());
        assert!(all.have_moved(&before) && !all.have_moved(&asked("Found")));
        store.add_unreadable(crate::cache::Unreadable::named("default", "a", "u"));
        asked("Found");
        store.remove("default", "a", 5);
        asked("Unreadable");
    }
}
