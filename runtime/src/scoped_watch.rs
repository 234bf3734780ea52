//! Watches that single objects need for a while: for example of the Pods on a node while it drains, or of a Secret that they
//! name.
//!
//! Each plan names its scoped watches. Objects that name the same one share one watch. It ends when no object names it any
//! more. So memory is bounded by the scoped watches in use, not by the number of objects that exist.

use std::{
    any::TypeId,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{Store, Stores},
    object::{Cluster, Kind, ObjectRef, ResourceType},
    queue::{Queue, RequeueHandle},
    request::Connection,
    watch::{Projection, Watch, Watching},
};

/// How long a scoped watch relies on its list before it opens a watch. Often the list is enough: a node without Pods. Each
/// watch is a connection.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many objects are watched by name at most. Each watch is a connection. A scoped watch beyond the limit lists periodically
/// (`crate::watch`) until there is a place.
pub(crate) const NAMED_WATCHES: usize = 128;

/// A request to see the objects of a kind that match a field selector.
#[derive(Clone)]
pub struct ScopedWatch {
    cluster: Cluster,
    kind: TypeId,
    selector: Arc<str>,
    /// The object, if the scoped watch is about a single one.
    object: Option<ObjectRef>,
    open: fn(&Arc<ScopedWatches>, &ScopedWatch, CancellationToken),
    close: fn(&ScopedWatches, &Place),
}

impl fmt::Debug for ScopedWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedWatch")
            .field("cluster", &self.cluster)
            .field("selector", &self.selector)
            .finish_non_exhaustive()
    }
}

impl ScopedWatch {
    /// The objects of `K` in all namespaces of a cluster that match a field selector, such as `spec.nodeName=a`.
    pub fn at<K: Kind>(cluster: Cluster, selector: impl Into<Arc<str>>) -> Self {
        let (kind, selector) = (TypeId::of::<K>(), selector.into());
        Self { cluster, kind, selector, object: None, open: open::<K>, close: close::<K> }
    }

    /// The object of `K` with this namespace and name, if it matches a field selector, such as `type!=a`; an empty one matches
    /// all. [`Stores::named`] returns the result.
    ///
    /// It watches one name in one namespace, so RBAC rules for that name are sufficient.
    pub fn named<K: Kind>(key: &ObjectRef, fields: &str) -> Self {
        Self { object: Some(key.clone()), ..Self::at::<K>(key.cluster, named_selector(key, fields)) }
    }

    /// Whether it is about exactly this object.
    pub(crate) fn is_of(&self, key: &ObjectRef) -> bool {
        self.object.as_ref() == Some(key)
    }

    /// The field selector.
    pub fn selector(&self) -> &str {
        &self.selector
    }

    pub(crate) fn place(&self) -> Place {
        Place { cluster: self.cluster, kind: self.kind, selector: self.selector.clone() }
    }
}

/// The field selector of an object. It includes the namespace, because the selector identifies a scoped watch.
pub(crate) fn named_selector(key: &ObjectRef, fields: &str) -> String {
    let narrowed = if fields.is_empty() { String::new() } else { format!(",{fields}") };
    format!("metadata.name={},metadata.namespace={}{narrowed}", key.name, key.namespace)
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    pub(crate) kind: TypeId,
    pub(crate) selector: Arc<str>,
}

struct Active {
    users: BTreeSet<RequeueHandle>,
    stop: CancellationToken,
    close: fn(&ScopedWatches, &Place),
}

/// All scoped watches of a manager.
///
/// # Guarantees
/// * Objects that name the same scoped watch share one watch. It ends when the last of them stops naming it, or is gone.
/// * Each change wakes the objects that name it. So does the first complete list, also an empty one, or its failure.
/// * At most 128 objects are watched by name. Those beyond are listed each minute.
///
/// # Caveats
/// Initially, changes reach a scoped watch for several objects up to 200 ms late, while it relies on its list.
pub(crate) struct ScopedWatches {
    stores: Stores,
    connections: BTreeMap<Cluster, Connection>,
    watching: Watching,
    active: Mutex<BTreeMap<Place, Active>>,
    /// Places for watches by name.
    places: Arc<Semaphore>,
}

impl ScopedWatches {
    pub(crate) fn new(stores: Stores, connections: BTreeMap<Cluster, Connection>, watching: Watching) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(NAMED_WATCHES));
        Arc::new(Self { stores, connections, watching, active: Mutex::default(), places })
    }

    /// Replaces the `former` scoped watches of `key` by `wanted`. Returns the current ones.
    pub(crate) fn set(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        key: &ObjectRef,
        former: &[ScopedWatch],
        wanted: &[ScopedWatch],
    ) -> Vec<ScopedWatch> {
        let user = RequeueHandle::new(queue, key);
        for look in wanted.iter().filter(|look| self.connections.contains_key(&look.cluster)) {
            self.begin(look, user.clone());
        }
        for look in former.iter().filter(|old| wanted.iter().all(|new| new.place() != old.place())) {
            self.end(look, &user);
        }
        wanted.to_vec()
    }

    fn begin(self: &Arc<Self>, look: &ScopedWatch, user: RequeueHandle) {
        let place = look.place();
        let mut active = self.active.lock();
        let fresh = !active.contains_key(&place);
        let entry = active.entry(place.clone()).or_insert_with(|| Active {
            users: BTreeSet::new(),
            stop: CancellationToken::new(),
            close: look.close,
        });
        entry.users.insert(user);
        let stop = entry.stop.clone();
        drop(active);
        if fresh {
            (look.open)(self, look, stop);
        }
    }

    fn end(&self, look: &ScopedWatch, user: &RequeueHandle) {
        let place = look.place();
        let mut active = self.active.lock();
        let Some(entry) = active.get_mut(&place) else { return };
        entry.users.remove(user);
        if entry.users.is_empty()
            && let Some(ended) = active.remove(&place)
        {
            ended.stop.cancel();
            (ended.close)(self, &place);
        }
    }

    fn wake(&self, place: &Place) {
        if let Some(entry) = self.active.lock().get(place) {
            entry.users.iter().for_each(RequeueHandle::wake);
        }
    }

    pub(crate) fn stop(&self) {
        self.active.lock().values().for_each(|entry| entry.stop.cancel());
    }
}

fn open<K: Kind>(looks: &Arc<ScopedWatches>, look: &ScopedWatch, stop: CancellationToken) {
    let Some(connection) = looks.connections.get(&look.cluster) else { return };
    let place = look.place();
    let store = Arc::new(Store::<K>::new(look.cluster, look.object.as_ref().map_or("", |key| &key.namespace)));
    looks.stores.add_look(look, store.clone());
    if stop.is_cancelled() {
        // No object names it any more. A concurrent close may have removed it already.
        close::<K>(looks, &place);
        return;
    }
    let (patience, places) = match look.object {
        Some(_) => (Duration::ZERO, Some(looks.places.clone())),
        None => (PATIENCE, None),
    };
    let weak: Weak<ScopedWatches> = Arc::downgrade(looks);
    let (here, weak_too, here_too) = (place.clone(), weak.clone(), place.clone());
    let watch = Watch {
        connection: connection.clone(),
        store: store.clone(),
        selector: place.selector.clone(),
        deliver: Box::new(move |_, _| {
            if let Some(looks) = weak.upgrade() {
                looks.wake(&here);
            }
            true
        }),
        deliver_unreadable: Box::new(move |_, _| {
            if let Some(looks) = weak_too.upgrade() {
                looks.wake(&here_too);
            }
            true
        }),
        metrics: looks.watching.metrics.clone(),
        poison: looks.watching.poison.clone(),
        patience,
        places,
        projection: Projection::default(),
    };
    looks.watching.tasks.spawn(watch.run(stop.clone()));
    looks.watching.tasks.spawn(wake_when_answered(Arc::downgrade(looks), place, store, stop));
}

/// Wakes the objects even if the first list is empty or fails: both are answers, although nothing changes.
async fn wake_when_answered<K: Kind>(
    looks: Weak<ScopedWatches>,
    place: Place,
    store: Arc<Store<K>>,
    stop: CancellationToken,
) {
    let answered = async {
        for answer in [store.answered().boxed(), store.synced().boxed()] {
            answer.await;
            if let Some(looks) = looks.upgrade() {
                looks.wake(&place);
            }
            if store.is_synced() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = answered => {}
    }
}

fn close<K: Kind>(looks: &ScopedWatches, place: &Place) {
    looks.stores.remove_look(place.cluster, TypeId::of::<K>(), &place.selector);
    looks.watching.poison.retain(place.cluster, &ResourceType::of::<K>(), &place.selector, &BTreeSet::new());
}
