//! The contract of a controller, and what it watches.

use std::{
    any::{Any, TypeId, type_name},
    collections::BTreeMap,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    cache::{Change, Index, Store, Stores, Unreadable},
    counts,
    effect::Effect,
    object::{Cluster, Kind, ObjectRef, ResourceType},
    plan::{Context, Plan},
    queue::{Priority, Queue},
    request::Connection,
    watch::{Notice, TypedSink, Watch, Watching},
};

/// A pure function from a snapshot to a plan. The runtime takes the snapshot and executes the plan.
///
/// # Guarantees (the runtime's)
/// * At most one run per object at a time, and another one after each relevant change.
/// * A run sees at least every write of earlier runs for the object.
/// * The runtime calls `plan` only while this process may write.
///
/// # Assumptions (the controller's part)
/// * `snapshot` only reads the caches and the controller's settings. `plan` is total and depends on its arguments alone.
/// * After a plan has been executed, and with no effect in progress, the next plan is empty.
/// * After a crash between any two steps, the next plan continues from there.
pub trait Controller: Send + Sync + Sized + 'static {
    /// The name in field managers, metric labels and spans: lower case with dashes.
    const NAME: &'static str;
    /// The reason of waits for the answer of a call outside Kubernetes. The log has the call instead, if it lasts.
    const CALL_WAIT: &'static str = "";
    /// Whether a plan may compute for long: other tasks continue meanwhile on another thread.
    const COMPUTES: bool = false;
    /// The kind that the controller reconciles; one controller per kind.
    type Primary: Kind;
    /// What a plan may see: `Arc`s taken from the caches at one moment.
    type Snapshot: Send + Sync + 'static;
    /// Calls outside Kubernetes; [`crate::effect::Never`] for most.
    type Effect: Effect;
    /// What a plan notes for the next one, see [`Notes`](crate::plan::Notes); [`crate::effect::Never`] for most.
    type Note: Clone + Debug + Ord + Send + Sync + 'static;

    /// Declares the watched kinds, their indexes, and the objects that a change wakes.
    fn watch(&self, on: &mut Watches<'_>);
    /// Takes from the caches the state that concerns an object; `None` when the object is gone.
    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot>;
    /// Whether to plan an object although an earlier write to this cluster is unanswered or not yet in the cache: its plans do
    /// not depend on their writes there, and must not wait for an unreachable cluster.
    fn tolerates_unavailable(&self, _object: &Self::Primary, _cluster: Cluster, _now: Timestamp) -> bool {
        false
    }
    /// Whether to plan an object although caches of this cluster have not been listed yet: its snapshot asks
    /// [`Stores::is_listed`] which. It is planned again once they are.
    fn plans_unlisted(&self, _object: &Self::Primary, _cluster: Cluster) -> bool {
        false
    }
    /// Whether the caches show that the rest of a plan from this snapshot is no longer wanted. The runtime asks while it executes
    /// a stage of many steps, sends no further step if so, and plans again. Changes of what the plan itself writes do not count.
    fn is_outdated(&self, _stores: &Stores, _snapshot: &Self::Snapshot) -> bool {
        false
    }
    /// How many objects a plan iterates over. The runtime pauses after each plan in proportion to it, for at most a second.
    fn children(&self, _snapshot: &Self::Snapshot) -> usize {
        0
    }
    /// Decides what to do for the object. Without `self`: a plan cannot ask for what changes while it is made. Settings, and what
    /// else is live, are values in the snapshot.
    fn plan(
        context: &Context<'_, Self::Effect, Self::Note>,
        snapshot: &Self::Snapshot,
    ) -> Plan<Self::Effect, Self::Note>;
}

/// What one controller watches.
pub struct Watches<'a> {
    pub(crate) sources: &'a mut Sources,
    pub(crate) stores: &'a Stores,
    pub(crate) queue: &'a Arc<Queue>,
}

impl Watches<'_> {
    /// Watches the controller's own kind, as [`Watches::kind`] does. Each change wakes the object itself.
    pub fn primary<K: Kind>(&mut self, cluster: Cluster, namespace: &str) -> Watched<'_, K> {
        self.primary_that(cluster, namespace, |_| true)
    }

    /// The same for a controller that does not read the status of its kind: a change of the [status alone](Change::is_of_status) wakes
    /// nothing.
    pub fn primary_without_status<K: Kind>(&mut self, cluster: Cluster, namespace: &str) -> Watched<'_, K> {
        self.primary_that(cluster, namespace, |change| !change.is_of_status())
    }

    fn primary_that<K: Kind>(
        &mut self,
        cluster: Cluster,
        namespace: &str,
        wakes: fn(&Change<K>) -> bool,
    ) -> Watched<'_, K> {
        let queue = self.queue.clone();
        let watched = self.kind::<K>(cluster, namespace);
        watched.source.listeners.push(Box::new(move |notice, _, priority| {
            let Notice::Change(change) = notice else { return };
            let Some(object) = change.sides().last().filter(|_| wakes(change)) else { return };
            let key = ObjectRef::of(cluster, object.as_ref());
            if let (Some(old), Some(new)) = (&change.old, &change.new)
                && old.meta().generation != new.meta().generation
            {
                queue.reset(&key);
            }
            counts::woken(queue.name, "itself", 1);
            queue.add(key, priority);
        }));
        watched
    }

    /// Watches another kind in one namespace, or in all if `namespace` is empty.
    ///
    /// # Panics
    /// If a controller of the same manager watches the kind in another namespace of the cluster: all share one cache per kind.
    pub fn kind<K: Kind>(&mut self, cluster: Cluster, namespace: &str) -> Watched<'_, K> {
        let place = (cluster, type_name::<K>(), TypeId::of::<K>());
        let stores = self.stores;
        let source = self.sources.0.entry(place).or_insert_with(|| {
            let store = Arc::new(Store::<K>::new(cluster, namespace));
            stores.add(store.clone());
            Box::new(Source { store, fields: "", is_metadata: false, keeps: |_| true, listeners: vec![] })
        });
        let source: &mut dyn Any = source.as_mut();
        let source: &mut Source<K> =
            source.downcast_mut().expect("a source is kept under the type that it was made for");
        let known = source.store.namespace();
        assert!(
            known == namespace,
            "{} of the {cluster} cluster are watched in {} and in {}: a manager has one cache of a kind",
            ResourceType::of::<K>(),
            scope(known),
            scope(namespace)
        );
        Watched { source, queue: self.queue }
    }
}

fn scope(namespace: &str) -> String {
    if namespace.is_empty() { "all namespaces".to_owned() } else { format!("namespace {namespace:?}") }
}

/// A watched kind.
pub struct Watched<'a, K> {
    source: &'a mut Source<K>,
    queue: &'a Arc<Queue>,
}

#[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
impl<K: Kind> Watched<'_, K> {
    /// Adds an index.
    pub fn index(self, index: Index<K>) -> Self {
        self.source.store.add_index(index);
        self
    }

    /// Limits the watch of the kind, for all controllers, with a field selector.
    pub fn selecting(self, fields: &'static str) -> Self {
        self.source.fields = fields;
        self
    }

    /// Watches only metadata: the API server sends nothing else. `K` must be a type that decodes from it.
    pub fn metadata_only(self) -> Self {
        self.source.is_metadata = true;
        self
    }

    /// Filters the objects in the cache. For all controllers, an object that no longer passes is gone.
    pub fn keeping(self, keeps: fn(&K) -> bool) -> Self {
        self.source.keeps = keeps;
        self
    }

    /// Lets objects share equal parts in memory. `share` compares, and reuses the known object's part where it is equal.
    pub fn sharing(self, share: fn(new: &mut K, known: &K)) -> Self {
        self.source.store.set_share(share);
        self
    }

    /// Maps a change to the keys of the controller's objects to wake.
    pub fn wakes(self, keys: impl Fn(&Change<K>, &Stores, &mut dyn FnMut(ObjectRef)) + Send + Sync + 'static) {
        let queue = self.queue.clone();
        self.source.listeners.push(Box::new(move |notice, stores, priority| {
            if let Notice::Change(change) = notice {
                keys(change, stores, &mut |key| {
                    counts::woken(queue.name, counts::kind::<K>(), 1);
                    queue.add(key, priority);
                });
            }
        }));
    }

    /// Maps an unreadable object to the keys to wake: when it becomes unreadable, becomes readable again, or is gone.
    pub fn wakes_unreadable(
        self,
        keys: impl Fn(&Unreadable, &Stores, &mut dyn FnMut(ObjectRef)) + Send + Sync + 'static,
    ) -> Self {
        let queue = self.queue.clone();
        self.source.listeners.push(Box::new(move |notice, stores, priority| {
            if let Notice::Unreadable(object) = notice {
                keys(object, stores, &mut |key| {
                    counts::woken(queue.name, "unreadable", 1);
                    queue.add(key, priority);
                });
            }
        }));
        self
    }
}

type Listener<K> = Box<dyn Fn(&Notice<'_, K>, &Stores, Priority) + Send + Sync>;

struct Source<K> {
    store: Arc<Store<K>>,
    /// Field selector; empty for everything.
    fields: &'static str,
    /// Whether to request only metadata from the API server.
    is_metadata: bool,
    keeps: fn(&K) -> bool,
    listeners: Vec<Listener<K>>,
}

/// All watched kinds, once each, in the order of their names: that of `TypeId` is another one in each build.
#[derive(Default)]
pub(crate) struct Sources(BTreeMap<(Cluster, &'static str, TypeId), Box<dyn AnySource>>);

impl Sources {
    pub(crate) fn start(self, connections: &BTreeMap<Cluster, Connection>, stores: &Stores, watching: &Watching) {
        for ((cluster, ..), source) in self.0 {
            match connections.get(&cluster) {
                Some(connection) => source.start(connection.clone(), stores.clone(), watching),
                None => {
                    tracing::error!(%cluster, "a kind is watched in a cluster that the manager has no connection to");
                }
            }
        }
    }
}

pub(crate) trait AnySource: Any + Send {
    fn start(self: Box<Self>, connection: Connection, stores: Stores, watching: &Watching);
}

impl<K: Kind> AnySource for Source<K> {
    fn start(self: Box<Self>, connection: Connection, stores: Stores, watching: &Watching) {
        let Self { store, fields, is_metadata, keeps, listeners } = *self;
        let resource = ResourceType::of::<K>();
        tracing::debug!(%resource, cluster = %store.cluster(), "watching");
        // Call each mapper separately: a panic in one must not hide the change from the others.
        let deliver = Box::new(move |notice: &Notice<'_, K>, priority| {
            let panics = |listener: &&Listener<K>| {
                catch_unwind(AssertUnwindSafe(|| listener(notice, &stores, priority))).is_err()
            };
            listeners.iter().filter(panics).count() == 0
        });
        let watch = Watch {
            connection,
            resource,
            selector: fields.into(),
            is_metadata,
            sink: Box::new(TypedSink { store, keeps, deliver }),
            watching: watching.clone(),
            delay: Duration::ZERO,
            permits: None,
        };
        watching.tasks.spawn(watch.run(watching.stop.clone()));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use nodewright_observability::metrics::Metrics;

    use super::*;
    use crate::queue::ReconcileResult;
    use crate::testing::{AWAY, HOME};
    use nodewright_testing::object;

    /// What a controller adds to nothing.
    fn watches(add: impl FnOnce(&mut Watches<'_>)) -> (Sources, Arc<Queue>) {
        let (mut sources, stores) = (Sources::default(), Stores::default());
        let queue = Arc::new(Queue::new("test", 1, Arc::new(Metrics::new())));
        add(&mut Watches { sources: &mut sources, stores: &stores, queue: &queue });
        (sources, queue)
    }

    #[test]
    fn two_controllers_share_a_cache_of_the_same_namespace() {
        let (sources, _) = watches(|on| {
            on.primary::<ConfigMap>(HOME, "a");
            on.kind::<ConfigMap>(HOME, "a");
            on.kind::<ConfigMap>(AWAY, "b");
        });
        assert_eq!(sources.0.len(), 2);
    }

    #[test]
    #[should_panic(expected = "configmaps of the home cluster are watched in namespace \"a\" and in all namespaces")]
    fn two_namespaces_of_one_kind_fail_at_once() {
        watches(|on| {
            on.primary::<ConfigMap>(HOME, "a");
            on.kind::<ConfigMap>(HOME, "");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_status_alone_wakes_nobody_who_does_not_read_it() {
        let (mut sources, queue) = watches(|on| {
            on.primary_without_status::<ConfigMap>(HOME, "");
        });
        let source: &mut dyn Any = sources.0.values_mut().next().unwrap().as_mut();
        let source: &mut Source<ConfigMap> = source.downcast_mut().unwrap();
        let key = ObjectRef::new(HOME, "default", "a");
        let known =
            || object("a").with("/metadata/generation", 1).label("x", "1").with("/metadata/resourceVersion", "1");
        let later = || known().with("/metadata/resourceVersion", "2").with("/metadata/managedFields", json!([{}]));
        let since = "2026-01-01T00:00:00Z";
        let table = [
            ("the status", later(), false),
            ("the spec", later().with("/metadata/generation", 2), true),
            ("a label", later().label("x", "2"), true),
            ("an annotation", later().with("/metadata/annotations", json!({"a": "b"})), true),
            ("a finalizer", later().with("/metadata/finalizers", json!(["a/b"])), true),
            ("its deletion", later().with("/metadata/deletionTimestamp", since), true),
            ("another object of its name", later().with("/metadata/uid", "another"), true),
        ];
        for (what, new, wakes) in table {
            let change = Change { old: Some(Arc::new(known().build())), new: Some(Arc::new(new.build())) };
            (source.listeners[0])(&Notice::Change(&change), &Stores::default(), Priority::Live);
            let woken = tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_ok();
            assert_eq!(woken, wakes, "{what}");
            if woken {
                queue.done(&key, ReconcileResult::DONE);
            }
        }
        for (old, new) in [(None, Some(Arc::new(known().build()))), (Some(Arc::new(known().build())), None)] {
            (source.listeners[0])(&Notice::Change(&Change { old, new }), &Stores::default(), Priority::Live);
            assert!(tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_ok());
            queue.done(&key, ReconcileResult::DONE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_generation_ends_the_back_off_and_another_change_does_not() {
        let (mut sources, queue) = watches(|on| {
            on.primary::<ConfigMap>(HOME, "");
        });
        let key = ObjectRef::new(HOME, "default", "a");
        let source: &mut dyn Any = sources.0.values_mut().next().unwrap().as_mut();
        let source: &mut Source<ConfigMap> = source.downcast_mut().unwrap();
        let map = |generation: i64, label: &str| {
            let map = object("a").label("x", label).with("/metadata/generation", generation);
            Some(Arc::new(map.build()))
        };
        let notify = |old, new| {
            (source.listeners[0])(&Notice::Change(&Change { old, new }), &Stores::default(), Priority::Live);
        };
        notify(None, map(1, "1"));
        for _ in 0..5 {
            queue.next().await;
            queue.done(&key, ReconcileResult::FAILED);
        }
        notify(map(1, "1"), map(1, "2"));
        assert_eq!(queue.failures(&key), 5);
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(), "it backs off");
        notify(map(1, "2"), map(2, "2"));
        assert_eq!(queue.failures(&key), 0);
        assert!(tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_ok());
    }
}
