//! All stores of a manager.

use std::{any::TypeId, collections::BTreeMap, fmt, sync::Arc};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::store::{AnyStore, Store};
use crate::{
    contact::Contact,
    object::{Cluster, Key, Kind, ResourceType},
};

type Place = (Cluster, TypeId, Option<Arc<str>>);

/// The stores of all watched kinds, and of what single objects look at for a while.
#[derive(Clone, Default)]
pub struct Stores {
    shared: Arc<RwLock<BTreeMap<Place, Arc<dyn AnyStore>>>>,
    contacts: BTreeMap<Cluster, Arc<Contact>>,
    view: Option<Arc<View>>,
}

/// What one look at the stores may trust, and what it has asked.
struct View {
    since: Instant,
    asked: Mutex<Asked>,
}

/// See [`Stores::since`].
#[derive(Default)]
pub(crate) struct Asked {
    /// The stores that have shown no list since the moment that was given.
    pub(crate) behind: Vec<Arc<dyn AnyStore>>,
    /// Since when there is contact with the servers of all stores that were asked.
    pub(crate) in_touch: Option<Instant>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("count", &self.shared.read().len()).finish_non_exhaustive()
    }
}

impl Stores {
    /// Without stores, for clusters with these contacts.
    pub(crate) fn with_contacts(contacts: BTreeMap<Cluster, Arc<Contact>>) -> Self {
        Self { contacts, ..Self::default() }
    }

    /// The store of a kind. One that nobody watches is empty, and stays so.
    pub fn of<K: Kind>(&self, cluster: Cluster) -> Arc<Store<K>> {
        let Some(store) = self.lookup::<K>(&(cluster, TypeId::of::<K>(), None)) else {
            return Arc::new(Store::new(cluster, ""));
        };
        if let Some(view) = &self.view {
            let mut asked = view.asked.lock();
            asked.in_touch = asked.in_touch.max(self.contacts.get(&cluster).map(|contact| contact.since()));
            if !store.is_listed_since(view.since) {
                asked.behind.push(store.clone());
            }
        }
        store
    }

    /// The store of a kind, if it counts: for an object that rather goes on without it than waits.
    pub fn listed<K: Kind>(&self, cluster: Cluster) -> Option<Arc<Store<K>>> {
        let store = self.lookup::<K>(&(cluster, TypeId::of::<K>(), None))?;
        let counts = self.view.as_ref().is_none_or(|view| store.is_listed_since(view.since));
        counts.then(|| self.of(cluster))
    }

    /// The same stores, for one look that notes what it asks: which stores have shown no list since `since`, and how long
    /// there has been contact with their servers.
    pub(crate) fn since(&self, since: Instant) -> Self {
        let (shared, contacts) = (self.shared.clone(), self.contacts.clone());
        Self { shared, contacts, view: Some(Arc::new(View { since, asked: Mutex::default() })) }
    }

    /// What was asked through [`Stores::since`].
    pub(crate) fn asked(&self) -> Asked {
        self.view.as_ref().map(|view| std::mem::take(&mut *view.asked.lock())).unwrap_or_default()
    }

    /// What is seen of a kind through a look (`crate::look`): `None` until its first list is complete.
    pub fn seen<K: Kind>(&self, cluster: Cluster, selector: &str) -> Option<Arc<Store<K>>> {
        let store: Arc<Store<K>> = self.lookup(&(cluster, TypeId::of::<K>(), Some(selector.into())))?;
        store.is_synced().then_some(store)
    }

    /// Adds a store; for the manager and for tests that build a world.
    pub fn add<K: Kind>(&self, store: Arc<Store<K>>) {
        self.shared.write().insert((store.cluster(), TypeId::of::<K>(), None), store);
    }

    pub(crate) fn add_look<K: Kind>(&self, selector: &Arc<str>, store: Arc<Store<K>>) {
        self.shared.write().insert((store.cluster(), TypeId::of::<K>(), Some(selector.clone())), store);
    }

    pub(crate) fn remove_look(&self, cluster: Cluster, kind: TypeId, selector: &Arc<str>) {
        self.shared.write().remove(&(cluster, kind, Some(selector.clone())));
    }

    /// The stores that would show a write to an object.
    pub(crate) fn showing(&self, resource: &ResourceType, key: &Key) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let shows = |(place, store): (&Place, &Arc<dyn AnyStore>)| {
            let fits = place.0 == key.cluster && place.2.is_none();
            (fits && store.covers(&key.namespace) && store.resource() == *resource).then(|| store.clone())
        };
        shared.iter().filter_map(shows).collect()
    }

    /// The stores of looks that hold objects of a resource.
    pub(crate) fn looking_at(&self, resource: &ResourceType, cluster: Cluster) -> Vec<Arc<dyn AnyStore>> {
        let shared = self.shared.read();
        let fits = |(place, store): (&Place, &Arc<dyn AnyStore>)| {
            (place.0 == cluster && place.2.is_some() && store.resource() == *resource).then(|| store.clone())
        };
        shared.iter().filter_map(fits).collect()
    }

    /// All stores that last as long as the manager.
    pub(crate) fn lasting(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().iter().filter(|(place, _)| place.2.is_none()).map(|(_, store)| store.clone()).collect()
    }

    /// All stores there are at present.
    pub(crate) fn all(&self) -> Vec<Arc<dyn AnyStore>> {
        self.shared.read().values().cloned().collect()
    }

    fn lookup<K: Kind>(&self, place: &Place) -> Option<Arc<Store<K>>> {
        let store = self.shared.read().get(place)?.clone();
        store.as_any().downcast().ok()
    }
}
