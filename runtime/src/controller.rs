//! The contract of a controller, and what it watches.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    cache::{AnyStore, Change, Index, Store, Stores, Unreadable},
    effect::Effect,
    object::{Cluster, Kind, ObjectRef, ResourceType},
    plan::{Context, Plan},
    queue::{Priority, Queue},
    request::Connection,
    watch::{Projection, Watch, Watching},
};

/// A pure function from what was observed to a plan. The runtime observes and acts.
///
/// # Guarantees (the runtime's)
/// * At most one run per object at a time, and another one after any change that concerns it.
/// * A run sees at least everything that earlier runs for the object wrote.
/// * `plan` is called while this process may write.
///
/// # Assumptions (the controller's part)
/// * `observe` only looks up; `plan` is total and depends on its arguments alone.
/// * On the world that its execution leads to, with no effect outstanding, the plan is empty.
/// * From the world that a crash leaves between any two steps, planning goes on.
pub trait Controller: Send + Sync + Sized + 'static {
    /// Field manager, metric label, span: lower case with dashes.
    const NAME: &'static str;
    /// The kind that it is about; one controller per kind.
    type Primary: Kind;
    /// What a plan may see: `Arc`s taken from the caches at one moment.
    type Snapshot: Send;
    /// Calls outside Kubernetes; [`crate::effect::Never`] for most.
    type Effect: Effect;

    /// Names the kinds that are watched, their indexes, and whom a change wakes.
    fn watch(&self, on: &mut Watches<'_>);
    /// Takes from the caches what concerns an object; `None` when the object is gone.
    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot>;
    /// Whether an object is planned although a write that was made for it to this cluster has had no answer, or does not
    /// show yet. For one that must not wait for a cluster that is away, and whose plans rest on nothing that they wrote
    /// there.
    fn goes_on_without(&self, _object: &Self::Primary, _cluster: Cluster) -> bool {
        false
    }
    /// How many objects a plan goes through. One with very many is planned less often.
    fn children(&self, _world: &Self::Snapshot) -> usize {
        0
    }
    /// Decides.
    fn plan(&self, context: &Context<'_, Self::Effect>, snapshot: &Self::Snapshot) -> Plan<Self::Effect>;
}

/// What one controller watches.
#[derive(Debug)]
pub struct Watches<'a> {
    pub(crate) sources: &'a mut Sources,
    pub(crate) stores: &'a Stores,
    pub(crate) queue: &'a Arc<Queue>,
}

impl Watches<'_> {
    /// Watches the controller's own kind: each change wakes the object itself.
    ///
    /// # Panics
    /// As [`Watches::kind`] does.
    pub fn primary<K: Kind>(&mut self, cluster: Cluster, namespace: &str) -> Watched<'_, K> {
        let queue = self.queue.clone();
        let watched = self.kind::<K>(cluster, namespace);
        watched.source.listeners.push(Box::new(move |change, _, class| {
            let Some(object) = change.sides().last() else { return };
            let key = ObjectRef::of(cluster, object.as_ref());
            if let (Some(old), Some(new)) = (&change.old, &change.new)
                && old.meta().generation != new.meta().generation
            {
                queue.reset(&key);
            }
            queue.add(key, class);
        }));
        watched
    }

    /// Watches another kind, in a namespace or, where that is empty, in all of them.
    ///
    /// # Panics
    /// If a controller of the same manager watches the kind in another namespace of the cluster. There is one cache of it
    /// for all: let both watch all namespaces, or run one manager for each.
    pub fn kind<K: Kind>(&mut self, cluster: Cluster, namespace: &str) -> Watched<'_, K> {
        let place = (cluster, TypeId::of::<K>());
        let stores = self.stores;
        let source = self.sources.0.entry(place).or_insert_with(|| {
            let store = Arc::new(Store::<K>::new(cluster, namespace));
            stores.add(store.clone());
            Box::new(Source {
                store,
                fields: "",
                projection: Projection::default(),
                listeners: vec![],
                unreadable: vec![],
            })
        });
        let source: &mut Source<K> =
            source.as_any_mut().downcast_mut().expect("a source is kept under the type that it was made for");
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

/// A kind that is watched.
pub struct Watched<'a, K> {
    source: &'a mut Source<K>,
    queue: &'a Arc<Queue>,
}

impl<K: Kind> std::fmt::Debug for Watched<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("store", &self.source.store).finish_non_exhaustive()
    }
}

impl<K: Kind> Watched<'_, K> {
    /// Finds objects by a key of their own.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn index(self, index: Index<K>) -> Self {
        self.source.store.add_index(index);
        self
    }

    /// Sees only the objects that a field selector picks: of the others, nothing is ever sent by the API server. Whoever
    /// watches the kind sees these alone.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn selecting(self, fields: &'static str) -> Self {
        self.source.fields = fields;
        self
    }

    /// Sees only the metadata: that is all the API server is asked for. `K` has to be a type that can be decoded from it.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn metadata_only(self) -> Self {
        self.source.projection.is_metadata = true;
        self
    }

    /// Keeps only some of the objects that are seen. To everybody, one that is not kept any more is gone.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn keeping(self, keeps: fn(&K) -> bool) -> Self {
        self.source.projection.keeps = keeps;
        self
    }

    /// Lets objects share equal parts in memory. `share` compares, and takes the known object's part where it is equal.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn sharing(self, share: fn(new: &mut K, known: &K)) -> Self {
        self.source.store.set_share(share);
        self
    }

    /// Says which objects of the controller a change concerns.
    pub fn wakes(self, whom: impl Fn(&Change<K>, &Stores, &mut dyn FnMut(ObjectRef)) + Send + Sync + 'static) {
        let queue = self.queue.clone();
        self.source.listeners.push(Box::new(move |change, stores, class| {
            whom(change, stores, &mut |key| queue.add(key, class));
        }));
    }

    /// Says which objects of the controller it concerns that an object cannot be decoded, or can be again, or is gone.
    #[allow(clippy::return_self_not_must_use)] // the calls can be chained, and need not be
    pub fn wakes_unreadable(
        self,
        whom: impl Fn(&Unreadable, &Stores, &mut dyn FnMut(ObjectRef)) + Send + Sync + 'static,
    ) -> Self {
        let queue = self.queue.clone();
        self.source.unreadable.push(Box::new(move |object, stores, class| {
            whom(object, stores, &mut |key| queue.add(key, class));
        }));
        self
    }
}

type Listener<K> = Box<dyn Fn(&Change<K>, &Stores, Priority) + Send + Sync>;
type UnreadableListener = Box<dyn Fn(&Unreadable, &Stores, Priority) + Send + Sync>;

struct Source<K> {
    store: Arc<Store<K>>,
    /// Field selector; empty for everything.
    fields: &'static str,
    projection: Projection<K>,
    listeners: Vec<Listener<K>>,
    unreadable: Vec<UnreadableListener>,
}

/// All kinds that are watched, once each, whoever asked for them; in an order that does not change from run to run.
#[derive(Default)]
pub(crate) struct Sources(BTreeMap<(Cluster, TypeId), Box<dyn AnySource>>);

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("count", &self.0.len()).finish()
    }
}

impl Sources {
    pub(crate) fn start(self, connections: &BTreeMap<Cluster, Connection>, stores: &Stores, watching: &Watching) {
        for ((cluster, _), source) in self.0 {
            match connections.get(&cluster) {
                Some(connection) => {
                    source.start(connection.clone(), stores.clone(), watching);
                }
                None => {
                    tracing::error!(%cluster, "a kind is watched in a cluster that the manager has no connection to");
                }
            }
        }
    }
}

pub(crate) trait AnySource: Send {
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn start(self: Box<Self>, connection: Connection, stores: Stores, watching: &Watching);
}

impl<K: Kind> AnySource for Source<K> {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn start(self: Box<Self>, connection: Connection, stores: Stores, watching: &Watching) {
        let Self { store, fields, projection, listeners, unreadable } = *self;
        tracing::debug!(resource = %store.resource(), cluster = %store.cluster(), "watching");
        // Each for itself: a mistake of one must not keep the change from the others.
        let seen = stores.clone();
        let deliver = move |change: &Change<K>, class| {
            let told = |tell: &Listener<K>| catch_unwind(AssertUnwindSafe(|| tell(change, &seen, class))).is_ok();
            listeners.iter().filter(|tell| !told(tell)).count() == 0
        };
        let deliver_unreadable = Box::new(move |object: &Unreadable, class| {
            let told =
                |tell: &UnreadableListener| catch_unwind(AssertUnwindSafe(|| tell(object, &stores, class))).is_ok();
            unreadable.iter().filter(|tell| !told(tell)).count() == 0
        });
        let (metrics, poison) = (watching.metrics.clone(), watching.poison.clone());
        let (selector, deliver, patience) = (fields.into(), Box::new(deliver), Duration::ZERO);
        let watch = Watch {
            connection,
            store,
            selector,
            deliver,
            deliver_unreadable,
            metrics,
            poison,
            patience,
            places: None,
            projection,
        };
        watching.tasks.spawn(watch.run(watching.stop.clone()));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

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
    fn two_namespaces_of_one_kind_are_a_mistake_that_shows_at_once() {
        watches(|on| {
            on.primary::<ConfigMap>(HOME, "a");
            on.kind::<ConfigMap>(HOME, "");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_generation_ends_the_back_off_and_another_change_does_not() {
        let (mut sources, queue) = watches(|on| {
            on.primary::<ConfigMap>(HOME, "");
        });
        let key = ObjectRef::new(HOME, "default", "a");
        let source = sources.0.values_mut().next().unwrap().as_any_mut().downcast_mut::<Source<ConfigMap>>().unwrap();
        let map = |generation: i64, label: &str| {
            let map = object("a").label("x", label).with("/metadata/generation", generation);
            Some(Arc::new(map.build()))
        };
        let tell = |old, new| (source.listeners[0])(&Change { old, new }, &Stores::default(), Priority::Live);
        tell(None, map(1, "1"));
        for _ in 0..5 {
            queue.next().await;
            queue.done(&key, ReconcileResult::Failed(None));
        }
        tell(map(1, "1"), map(1, "2"));
        assert_eq!(queue.failures(&key), 5);
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(), "it backs off");
        tell(map(1, "2"), map(2, "2"));
        assert_eq!(queue.failures(&key), 0);
        assert!(tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_ok());
    }
}
