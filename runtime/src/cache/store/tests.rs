//! The contents of a store, and the waiters that it wakes.

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;

use super::*;
use crate::queue::Queue;
use crate::testing::HOME;
use nodewright_observability::metrics::Metrics;

/// A waiter; reports whether it was woken since the last question.
struct Asleep(Arc<Queue>, RequeueHandle);

impl Asleep {
    fn new() -> Self {
        let queue = Arc::new(Queue::new("test", 1, Arc::new(Metrics::new())));
        let sleeper = RequeueHandle::new(&queue, &ObjectRef::new(HOME, "default", "sleeper"));
        Self(queue, sleeper)
    }

    fn was_woken(&self) -> bool {
        let key = self.0.next().now_or_never();
        key.map(|key| self.0.done(&key, crate::queue::ReconcileResult::DONE)).is_some()
    }
}

fn map(name: &str, version: u64, owner: Option<&str>) -> ConfigMap {
    let owners = owner
        .map(|uid| serde_json::json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true}]));
    serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "default",
        "uid": format!("uid-{name}"), "resourceVersion": version.to_string(), "ownerReferences": owners}}))
    .unwrap()
}

fn names(objects: &[Arc<ConfigMap>]) -> Vec<&str> {
    let mut names: Vec<_> = objects.iter().map(|object| name(object.as_ref())).collect();
    names.sort_unstable();
    names
}

#[test]
fn owner_index_follows_adoption_and_release() {
    let store = Store::new(HOME, "default");
    store.apply(map("a", 1, Some("one")));
    store.apply(map("b", 2, Some("one")));
    assert_eq!(names(&store.owned_by("one")), ["a", "b"]);
    let change = store.apply(map("a", 3, Some("two"))).unwrap();
    assert_eq!(controller_uid(change.old.unwrap().as_ref()), Some("one"));
    assert_eq!((names(&store.owned_by("one")), names(&store.owned_by("two"))), (vec!["b"], vec!["a"]));
}

#[test]
fn what_an_owner_has_comes_in_the_order_of_names_and_is_found_by_what_it_is_now() {
    const BY_COLOUR: Index<ConfigMap> =
        Index { name: "colour", key_of: |map| crate::object::label(map, "colour").map(str::to_owned) };
    let store = Store::new(HOME, "default");
    store.add_index(BY_COLOUR);
    let coloured = |name: &str, version: u64, colour: &str| {
        let mut map = map(name, version, Some("one"));
        map.metadata.labels = Some([("colour".to_owned(), colour.to_owned())].into());
        map
    };
    for (version, name) in ["c", "a", "d", "b"].into_iter().enumerate() {
        store.apply(coloured(name, version as u64 + 1, "red"));
    }
    let in_order = |objects: &[Arc<ConfigMap>]| -> Vec<String> {
        objects.iter().map(|object| name(object.as_ref()).to_owned()).collect()
    };
    assert_eq!(in_order(&store.owned_by("one")), ["a", "b", "c", "d"]);
    store.apply(coloured("c", 9, "blue"));
    store.remove("default", "a", 10);
    assert_eq!(in_order(&store.owned_by("one")), ["b", "c", "d"]);
    assert_eq!((store.count(BY_COLOUR, "red"), store.count(BY_COLOUR, "blue")), (2, 1));
    assert_eq!(names(&store.by(BY_COLOUR, "blue")), ["c"]);
}

#[test]
fn never_back_in_time() {
    let store = Store::new(HOME, "");
    store.apply(map("a", 5, None));
    assert!(store.apply(map("a", 4, None)).is_none());
    assert_eq!(resource_version(store.by_name("default", "a").unwrap().as_ref()), 5);
}

#[test]
fn what_a_list_does_not_show_is_gone_with_its_last_value() {
    let store = Store::new(HOME, "");
    store.apply(map("a", 1, None));
    store.apply(map("b", 2, None));
    let kept = store.by_name("default", "a").unwrap();
    store.begin_list();
    assert!(store.apply(map("a", 1, None)).is_none(), "unchanged: no change is reported");
    let gone = store.end_list(9, Instant::now());
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].old.as_ref().unwrap().meta().name.as_deref(), Some("b"));
    assert!(Arc::ptr_eq(&kept, &store.by_name("default", "a").unwrap()), "unchanged: no new allocation");
    assert_eq!((store.len(), store.version()), (1, 9));
}

#[test]
fn waiters_are_woken_once_their_version_is_reached() {
    let store = Store::<ConfigMap>::new(HOME, "");
    let asleep = Asleep::new();
    let written = Until::Version(7, Instant::now());
    assert!(!store.wait(&written, &asleep.1));
    store.advance(6);
    assert!(!asleep.was_woken());
    store.apply(map("a", 7, None));
    assert!(asleep.was_woken());
    assert!(store.wait(&written, &asleep.1), "already reached");
    let key = ObjectRef::new(HOME, "default", "a");
    assert!(!store.wait(&Until::Gone(key.clone(), "uid-a".into()), &asleep.1));
    store.remove("default", "a", 8);
    assert!(asleep.was_woken());
    assert!(store.wait(&Until::Gone(key, "uid-a".into()), &asleep.1));
}

#[test]
fn a_repeated_wait_counts_once() {
    let store = Store::<ConfigMap>::new(HOME, "");
    let (asleep, other, now) = (Asleep::new(), ObjectRef::new(HOME, "default", "a"), Instant::now());
    let another = RequeueHandle::new(&asleep.0, &other);
    store.apply(map("a", 1, None));
    let conditions = [Until::Version(7, now), Until::Gone(other.clone(), "uid-a".into()), Until::Listed(now)];
    for until in &conditions {
        for who in [&asleep.1, &another, &asleep.1, &asleep.1] {
            assert!(!store.wait(until, who));
        }
    }
    let mut waiters = store.waiters.lock();
    assert_eq!(waiters.release(7).len(), 2);
    assert_eq!(waiters.release_object(&other, |_| true).len(), 2);
    assert_eq!(waiters.release_listed(now).len(), 2);
    assert!(waiters.is_empty());
}

#[test]
fn a_list_under_way_releases_nobody_too_early() {
    let store = Store::<ConfigMap>::new(HOME, "");
    store.apply(map("b", 5, None));
    let asleep = Asleep::new();
    let written = Until::Version(7, Instant::now());
    assert!(!store.wait(&written, &asleep.1));
    store.begin_list();
    store.apply(map("a", 9, None));
    store.advance(9);
    assert!(!store.wait(&written, &asleep.1), "b still stands at 5");
    store.apply(map("b", 7, None));
    store.end_list(9, Instant::now());
    assert!(store.wait(&written, &asleep.1));
}

#[test]
fn an_end_that_is_older_than_the_object_is_that_of_another() {
    let store = Store::new(HOME, "");
    store.apply(map("a", 5, None));
    assert!(store.remove("default", "a", 4).is_none());
    assert!(store.by_name("default", "a").is_some());
    assert!(store.remove("default", "a", 6).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_back_replaces_what_is_known_and_frees_who_waits_for_what_it_lost() {
    let store = Store::new(HOME, "");
    for (name, version) in [("changed", 8), ("kept", 3), ("lost", 9)] {
        store.apply(map(name, version, None));
    }
    let asleep = Asleep::new();
    let written = Until::Version(10, Instant::now());
    assert!(!store.wait(&written, &asleep.1));
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    store.begin_list();
    store.rewind();
    // The first list breaks off; the second one shows all.
    store.begin_list();
    assert!(store.apply(map("changed", 4, None)).is_some());
    assert!(store.apply(map("kept", 3, None)).is_some(), "another history may have the same versions");
    let gone = store.end_list(5, Instant::now());
    assert_eq!((gone.len(), store.len(), store.version()), (1, 2, 5));
    assert!(asleep.was_woken());
    assert!(store.wait(&written, &asleep.1), "a list that was begun after the write shows it, or that it is lost");
    assert!(!store.wait(&Until::Version(6, Instant::now()), &asleep.1), "a write from now on");
    assert!(store.apply(map("changed", 6, None)).is_some());
    assert!(store.apply(map("changed", 5, None)).is_none(), "not back in time again");
}

#[test]
fn slots_are_used_again() {
    let store = Store::new(HOME, "");
    for round in 0..10 {
        store.apply(map("a", 10 + 2 * round, None));
        store.remove("default", "a", 11 + 2 * round);
    }
    assert_eq!((store.len(), store.objects.read().slots.vacant_key()), (0, 0));
}

#[test]
fn siblings_share_what_they_have_in_common_and_a_change_keeps_what_it_leaves() {
    #[derive(Clone, Debug, kube::Resource, serde::Deserialize)]
    #[resource(inherit = ConfigMap)]
    struct Shared {
        metadata: kube::core::ObjectMeta,
        data: Arc<Vec<String>>,
    }
    let store = Store::new(HOME, "default");
    store.set_share(|new: &mut Shared, known| {
        if new.data == known.data {
            new.data = known.data.clone();
        }
    });
    let shared = |name: &str, version: u64, owner: &str, data: &str| {
        let metadata = map(name, version, Some(owner)).metadata;
        Shared { metadata, data: Arc::new(vec![data.to_owned()]) }
    };
    let put = |object: Shared| store.apply(object).unwrap().new.unwrap().data.clone();
    let a = put(shared("a", 1, "one", "x"));
    assert!(Arc::ptr_eq(&a, &put(shared("b", 2, "one", "x"))), "a sibling's");
    assert!(Arc::ptr_eq(&a, &put(shared("a", 3, "one", "x"))), "its own");
    assert!(!Arc::ptr_eq(&a, &put(shared("c", 4, "two", "x"))), "an object of another owner");
    let changed = put(shared("b", 5, "one", "y"));
    assert_eq!((*changed).as_slice(), ["y"]);
}

/// F. A look-up touches only what it returns, whatever the size of the store.
#[test]
fn a_look_up_reads_no_object_but_its_own() {
    thread_local!(static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Counted {
        metadata: kube::core::ObjectMeta,
    }
    impl Resource for Counted {
        type DynamicType = ();
        type Scope = kube::core::NamespaceResourceScope;
        fn kind((): &()) -> std::borrow::Cow<'_, str> {
            "Counted".into()
        }
        fn group((): &()) -> std::borrow::Cow<'_, str> {
            "test".into()
        }
        fn version((): &()) -> std::borrow::Cow<'_, str> {
            "v1".into()
        }
        fn plural((): &()) -> std::borrow::Cow<'_, str> {
            "counted".into()
        }
        fn meta(&self) -> &kube::core::ObjectMeta {
            READS.set(READS.get() + 1);
            &self.metadata
        }
        fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
            &mut self.metadata
        }
    }
    let reads = |objects: u64| {
        let store = Store::<Counted>::new(HOME, "default");
        for n in 0..objects {
            let owner = format!("owner-{}", n / 10);
            store.apply(Counted { metadata: map(&format!("a-{n}"), n + 2, Some(&owner)).metadata });
        }
        READS.set(0);
        assert_eq!(store.owned_by("owner-7").len(), 10);
        assert!(store.owned_by("none").is_empty());
        let owned = READS.replace(0);
        assert!(store.by_name("default", "a-70").is_some());
        (owned, READS.get())
    };
    let (few, many) = (reads(1_000), reads(10_000));
    assert_eq!((few, many), ((0, 2), (0, 2)), "name and namespace of the one that was looked for");
}
