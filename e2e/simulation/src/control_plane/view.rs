//! The control plane's view from its watches: all Nodes, their Leases, all pods.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::Shared;
use nodewright_e2e_cloud::{
    kubelet::LEASE_NAMESPACE,
    mirror::{Seen, Select, mirror},
};

/// The buffer for watch events.
const BACKLOG: usize = 1_024;

/// Namespace and name; the namespace of a Node is empty.
type ObjectRef = (String, String);

/// The objects of one kind, as a watch reports them.
#[derive(Debug)]
pub(super) struct Mirrored<K> {
    objects: Mutex<Objects<K>>,
    /// The number of changes; 0 until the first list is complete.
    changes: watch::Sender<u64>,
}

type Objects<K> = BTreeMap<ObjectRef, Arc<K>>;

impl<K> Default for Mirrored<K> {
    fn default() -> Self {
        Self { objects: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

/// All mirrored objects.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) nodes: Mirrored<Node>,
    pub(super) leases: Mirrored<Lease>,
    pub(super) pods: Mirrored<Pod>,
}

impl View {
    /// Waits until every kind has been listed: no controller starts earlier.
    pub(super) async fn is_listed(&self) {
        self.nodes.is_listed().await;
        self.leases.is_listed().await;
        self.pods.is_listed().await;
    }
}

impl<K: Resource> Mirrored<K> {
    /// All objects, sorted by namespace and name.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.objects.lock().values().cloned().collect()
    }

    /// The object with this name; for Nodes the namespace is empty.
    pub(super) fn named(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.lock().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// A receiver that is notified of changes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn is_listed(&self) {
        // The sender is part of `self`, so this does not fail while it is borrowed.
        drop(self.changes.subscribe().wait_for(|changes| *changes > 0).await);
    }

    fn take(&self, seen: Seen<K>) {
        let keyed = |object: K| (key(&object), Arc::new(object));
        let mut objects = self.objects.lock();
        match seen {
            Seen::Reset(all) => *objects = all.into_iter().map(keyed).collect(),
            Seen::Applied(object) => objects.extend([keyed(object)]),
            Seen::Deleted(object) => drop(objects.remove(&key(&object))),
        }
        drop(objects);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

fn key<K: Resource>(object: &K) -> ObjectRef {
    let metadata = object.meta();
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Starts the watches.
pub(super) fn start(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    let client = || shared.client.clone();
    follow(shared, tasks, Api::all(client()), |view| &view.nodes);
    follow(shared, tasks, Api::namespaced(client(), LEASE_NAMESPACE), |view| &view.leases);
    follow(shared, tasks, Api::all(client()), |view| &view.pods);
}

fn follow<K>(shared: &Arc<Shared>, tasks: &mut JoinSet<()>, api: Api<K>, part: fn(&View) -> &Mirrored<K>)
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (to, mut from) = mpsc::channel(BACKLOG);
    tasks.spawn(mirror(api, Select::default(), to));
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        while let Some(seen) = from.recv().await {
            part(&shared.view).take(seen);
        }
    });
}
