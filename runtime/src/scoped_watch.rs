//! Watches that single objects need for a while: for example of the Pods on a node while it drains. Memory is bounded by those in
//! use, not by the number of objects that exist.

use std::{
    any::TypeId,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{Store, StoreKey, Stores},
    object::{Cluster, Kind, ObjectRef, ResourceType},
    queue::{Queue, RequeueHandle},
    request::Connection,
    watch::{Notice, TypedSink, Watch, Watching},
};

/// How long a scoped watch for several objects relies on its list before it opens a connection. Often the list is enough.
const WATCH_DELAY: Duration = Duration::from_millis(200);

/// How many objects are watched by name at most, because each watch is a connection. Others are listed each minute.
pub(crate) const NAMED_WATCHES: usize = 128;

/// A request to see the objects of a kind that match a field selector.
#[derive(Clone, Debug)]
pub struct ScopedWatch {
    cluster: Cluster,
    kind: TypeId,
    selector: Arc<str>,
    /// The object, if it is a single one.
    object: Option<ObjectRef>,
    open: fn(&Arc<ScopedWatches>, &ScopedWatch, CancellationToken),
}

impl ScopedWatch {
    /// The objects of `K` in all namespaces of a cluster that match a field selector, such as `spec.nodeName=a`.
    pub fn at<K: Kind>(cluster: Cluster, selector: impl Into<Arc<str>>) -> Self {
        let (kind, selector) = (TypeId::of::<K>(), selector.into());
        Self { cluster, kind, selector, object: None, open: open::<K> }
    }

    /// The object of `K` with this namespace and name, if it matches a field selector, such as `type!=a`; an empty one matches
    /// all. RBAC rules for that name are sufficient. [`Stores::named`] returns the result.
    pub fn named<K: Kind>(key: &ObjectRef, fields: &str) -> Self {
        Self { object: Some(key.clone()), ..Self::at::<K>(key.cluster, named_selector(key, fields)) }
    }

    pub(crate) fn is_of(&self, key: &ObjectRef) -> bool {
        self.object() == Some(key)
    }

    /// The object, if it is a single one.
    pub fn object(&self) -> Option<&ObjectRef> {
        self.object.as_ref()
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.cluster, self.kind) == (other.cluster, other.kind)
            && (Arc::ptr_eq(&self.selector, &other.selector) || self.selector == other.selector)
    }

    /// The field selector.
    pub fn selector(&self) -> &str {
        &self.selector
    }

    pub(crate) fn key(&self) -> StoreKey {
        (self.cluster, self.kind, Some(self.selector.clone()))
    }
}

/// The field selector of an object. It includes the namespace, because the selector identifies a scoped watch. Kinds of cluster
/// scope have none, and an API server knows no such field of theirs.
pub(crate) fn named_selector(key: &ObjectRef, fields: &str) -> String {
    let (name, namespace) = ("metadata.name=", ",metadata.namespace=");
    let longest = name.len() + key.name.len() + namespace.len() + key.namespace.len() + 1 + fields.len();
    let mut selector = String::with_capacity(longest);
    selector.extend([name, &*key.name]);
    if !key.namespace.is_empty() {
        selector.extend([namespace, &*key.namespace]);
    }
    if !fields.is_empty() {
        selector.extend([",", fields]);
    }
    selector
}

struct Active {
    users: BTreeSet<RequeueHandle>,
    stop: CancellationToken,
}

/// All scoped watches of a manager.
///
/// # Guarantees
/// * Objects that name the same scoped watch share it. It ends when the last of them stops naming it, or is gone.
/// * Each change wakes the objects that name it. So does the first complete list, also an empty one, or its failure.
pub(crate) struct ScopedWatches {
    stores: Stores,
    connections: BTreeMap<Cluster, Connection>,
    watching: Watching,
    active: Mutex<BTreeMap<StoreKey, Active>>,
    permits: Arc<Semaphore>,
}

impl ScopedWatches {
    pub(crate) fn new(stores: Stores, connections: BTreeMap<Cluster, Connection>, watching: Watching) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(NAMED_WATCHES));
        Arc::new(Self { stores, connections, watching, active: Mutex::default(), permits })
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
        let mut current = Vec::with_capacity(wanted.len());
        for watch in wanted {
            // Most plans name what the plan before them did, whose selectors these then share.
            let known = former.iter().find(|old| old.is_same(watch));
            if known.is_none() && self.connections.contains_key(&watch.cluster) {
                self.begin(watch, user.clone());
            }
            current.push(known.unwrap_or(watch).clone());
        }
        for watch in former.iter().filter(|old| wanted.iter().all(|new| !new.is_same(old))) {
            self.end(&watch.key(), &user);
        }
        current
    }

    fn begin(self: &Arc<Self>, watch: &ScopedWatch, user: RequeueHandle) {
        let key = watch.key();
        let mut active = self.active.lock();
        let is_new = !active.contains_key(&key);
        let stop = || self.watching.stop.child_token();
        let entry = active.entry(key).or_insert_with(|| Active { users: BTreeSet::new(), stop: stop() });
        entry.users.insert(user);
        let stop = entry.stop.clone();
        drop(active);
        if is_new {
            (watch.open)(self, watch, stop);
        }
    }

    fn end(&self, key: &StoreKey, user: &RequeueHandle) {
        let mut active = self.active.lock();
        let Some(entry) = active.get_mut(key) else { return };
        entry.users.remove(user);
        if entry.users.is_empty() {
            entry.stop.cancel();
            active.remove(key);
            self.stores.remove(key);
        }
    }

    fn wake(&self, key: &StoreKey) {
        if let Some(entry) = self.active.lock().get(key) {
            entry.users.iter().for_each(RequeueHandle::wake);
        }
    }
}

fn open<K: Kind>(all: &Arc<ScopedWatches>, wanted: &ScopedWatch, stop: CancellationToken) {
    let Some(connection) = all.connections.get(&wanted.cluster) else { return };
    let key = wanted.key();
    let namespace = wanted.object.as_ref().map_or("", |object| &object.namespace);
    let store = Arc::new(Store::<K>::new(wanted.cluster, namespace));
    all.stores.add_scoped(wanted, store.clone());
    if stop.is_cancelled() {
        // It may have ended before its store was added.
        all.stores.remove(&key);
        return;
    }
    let (delay, permits) = match wanted.object {
        Some(_) => (Duration::ZERO, Some(all.permits.clone())),
        None => (WATCH_DELAY, None),
    };
    let weak = Arc::downgrade(all);
    let wake = move || {
        if let Some(all) = weak.upgrade() {
            all.wake(&key);
        }
    };
    let wake_on_change = wake.clone();
    let deliver = Box::new(move |_: &Notice<'_, K>, _| {
        wake_on_change();
        true
    });
    let watch = Watch {
        connection: connection.clone(),
        resource: ResourceType::of::<K>(),
        selector: wanted.selector.clone(),
        is_metadata: false,
        sink: Box::new(TypedSink { store: store.clone(), keeps: |_| true, deliver }),
        watching: all.watching.clone(),
        delay,
        permits,
    };
    all.watching.tasks.spawn(watch.run(stop.clone()));
    // Wake the objects even if the first list is empty or fails: both are answers, although nothing changes.
    let answered = async move {
        store.answered().await;
        wake();
        if !store.is_synced() {
            store.synced().await;
            wake();
        }
    };
    all.watching.tasks.spawn(stop.run_until_cancelled_owned(answered));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::HOME;

    #[test]
    fn an_object_of_cluster_scope_is_selected_by_its_name_alone() {
        let selector = |namespace: &str, fields: &str| named_selector(&ObjectRef::new(HOME, namespace, "a"), fields);
        assert_eq!(selector("", ""), "metadata.name=a");
        assert_eq!(selector("", "type!=b"), "metadata.name=a,type!=b");
        assert_eq!(selector("default", "type!=b"), "metadata.name=a,metadata.namespace=default,type!=b");
    }
}
