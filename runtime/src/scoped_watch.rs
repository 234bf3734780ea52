//! What single objects have to see for a while: such as the Pods of a node, while the node drains, or a Secret that they
//! name.
//!
//! A plan names its looks each time. A look that several objects name is one watch; one that nobody names any more
//! ends. So memory is bounded by what is being looked at, not by what exists.

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

/// How long a look is content with its list. Often that says all: a node without Pods. A watch is a connection of its own.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many objects are watched by their names at most. Each watch is a connection of its own. What is beyond is listed once
/// in a while instead (`crate::watch`), until there is a place.
pub(crate) const NAMED_WATCHES: usize = 128;

/// A wish to see the objects of a kind that a field selector picks.
#[derive(Clone)]
pub struct ScopedWatch {
    cluster: Cluster,
    kind: TypeId,
    selector: Arc<str>,
    /// The one object that it is about, if it is about one.
    object: Option<ObjectRef>,
    open: fn(&Arc<ScopedWatches>, &ScopedWatch, CancellationToken),
    close: fn(&ScopedWatches, &Place),
}

impl fmt::Debug for ScopedWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look").field("cluster", &self.cluster).field("selector", &self.selector).finish_non_exhaustive()
    }
}

impl ScopedWatch {
    /// The objects of `K` in all namespaces of a cluster that match a field selector, such as `spec.nodeName=a`.
    pub fn at<K: Kind>(cluster: Cluster, selector: impl Into<Arc<str>>) -> Self {
        let (kind, selector) = (TypeId::of::<K>(), selector.into());
        Self { cluster, kind, selector, object: None, open: open::<K>, close: close::<K> }
    }

    /// The object of `K` with this namespace and name, if it matches a field selector, such as `type!=a`; an empty one
    /// matches all. What is found, [`Stores::named`] tells.
    ///
    /// It is a watch of one name in one namespace: rights on that name are enough for it.
    pub fn named<K: Kind>(key: &ObjectRef, fields: &str) -> Self {
        Self { object: Some(key.clone()), ..Self::at::<K>(key.cluster, named_selector(key, fields)) }
    }

    /// Whether it is about this object alone.
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

/// The field selector of an object. It has the namespace, too: a look is known by its selector.
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

/// All looks of a manager.
///
/// # Guarantees
/// * A look that several objects name is one watch; it ends when the last of them names it no more, or is gone.
/// * Whoever looks is woken by each change, and once when the first list is complete, also an empty one, or when it
///   cannot be had.
/// * At most 128 objects are watched by their names; those beyond are listed each minute.
///
/// # Caveats
/// Changes reach a look at several objects up to 200 ms late at its beginning, while it is content with its list.
pub(crate) struct ScopedWatches {
    stores: Stores,
    connections: BTreeMap<Cluster, Connection>,
    watching: Watching,
    active: Mutex<BTreeMap<Place, Active>>,
    /// Places for watches of single objects.
    places: Arc<Semaphore>,
}

impl ScopedWatches {
    pub(crate) fn new(stores: Stores, connections: BTreeMap<Cluster, Connection>, watching: Watching) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(NAMED_WATCHES));
        Arc::new(Self { stores, connections, watching, active: Mutex::default(), places })
    }

    /// From now on `key` looks at `wanted`, in place of the `former` looks. Returns those that it looks at now.
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
        // Nobody looks any more, and whoever closed it may have been faster than this.
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

/// An empty first list changes nothing, and yet it is an answer; so is that it cannot be had.
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
