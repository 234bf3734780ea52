//! One watch, against the in-process API server and against a server that falls silent.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderValue, Request, Response};
use http_body_util::{Either, Full, StreamBody};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio_util::sync::DropGuard;

use super::*;
use crate::{
    cache::Store,
    leadership::Leadership,
    object::{Kind, name},
    queue::Priority,
    request::Contact,
    testing::HOME,
};
use nodewright_testing::api_server::{ApiServer, Bookmarks, Fault, Match};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A running watch and the changes that it delivers.
struct Watching<K> {
    store: Arc<Store<K>>,
    record: Arc<Mutex<Vec<(String, Priority)>>>,
    metrics: Arc<Metrics>,
    contact: Arc<Contact>,
    _stop: DropGuard,
}

fn watch<K: Kind>(client: kube::Client) -> Watching<K> {
    watch_projected(client, false, |_| true)
}

fn watch_projected<K: Kind>(client: kube::Client, is_metadata: bool, keeps: fn(&K) -> bool) -> Watching<K> {
    let (metrics, stop) = (Arc::new(Metrics::new()), CancellationToken::new());
    let agent = HeaderValue::from_static("test/1");
    let connection = Connection::new(client, agent, Leadership::unlimited(), 8, metrics.clone());
    let contact = connection.contact.clone();
    let (store, record) = (Arc::new(Store::<K>::new(HOME, "default")), Arc::new(Mutex::new(vec![])));
    let heard = record.clone();
    let deliver = Box::new(move |notice: &Notice<'_, K>, priority| {
        let text = match notice {
            Notice::Change(change) => {
                let what = if change.new.is_some() { "" } else { " is gone" };
                format!("{}{what}", name(change.sides().next().unwrap().as_ref()))
            }
            Notice::Unreadable(object) => format!("{} unreadable", object.name()),
        };
        heard.lock().push((text, priority));
        true
    });
    let watching = super::Watching {
        metrics: metrics.clone(),
        undecodable: DecodeFailures::new(metrics.clone()),
        tasks: TaskTracker::new(),
        stop: stop.clone(),
    };
    let one = Watch {
        connection,
        resource: ResourceType::of::<K>(),
        selector: "".into(),
        is_metadata,
        sink: Box::new(TypedSink { store: store.clone(), keeps, deliver }),
        watching,
        delay: Duration::ZERO,
        permits: None,
    };
    tokio::spawn(one.run(stop.clone()));
    Watching { store, record, metrics, contact, _stop: stop.drop_guard() }
}

impl<K: Kind> Watching<K> {
    /// The changes since the last call, after a minute.
    async fn tells(&self) -> Vec<(String, Priority)> {
        sleep(Duration::from_mins(1)).await;
        std::mem::take(&mut *self.record.lock())
    }
}

fn seed(server: &ApiServer, name: &str, data: &Value) {
    server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}));
}

fn one(name: &str, class: Priority) -> (String, Priority) {
    (name.to_owned(), class)
}

#[tokio::test(start_paused = true)]
async fn only_what_was_there_when_the_watch_began_is_not_urgent() {
    let server = ApiServer::new();
    seed(&server, "a", &json!({}));
    seed(&server, "b", &json!({}));
    let watching = watch::<ConfigMap>(server.client());
    assert_eq!(watching.tells().await, [one("a", Priority::Initial), one("b", Priority::Initial)]);
    seed(&server, "c", &json!({}));
    assert_eq!(watching.tells().await, [one("c", Priority::Live)]);
    // During a gap, so that another list shows it.
    server.break_watches();
    seed(&server, "d", &json!({}));
    server.compact();
    assert_eq!(watching.tells().await, [one("d", Priority::Live)]);
}

#[tokio::test(start_paused = true)]
async fn what_can_no_longer_be_decoded_is_kept_as_it_was_over_another_list() {
    let server = ApiServer::new();
    seed(&server, "a", &json!({"key": "good"}));
    let watching = watch::<ConfigMap>(server.client());
    watching.tells().await;
    server.break_watches();
    seed(&server, "a", &json!({"key": [["bad"]]}));
    seed(&server, "b", &json!({}));
    server.compact();
    let record = watching.tells().await;
    assert_eq!(record, [one("a unreadable", Priority::Live), one("b", Priority::Live)], "no deletion is reported");
    let kept = watching.store.by_name("default", "a").unwrap();
    assert_eq!(kept.data.as_ref().unwrap()["key"], "good");
    assert!(watching.store.is_unreadable("default", "a"));
    server.remove(&format!("{MAPS}/a"));
    assert_eq!(watching.tells().await, [one("a is gone", Priority::Live), one("a unreadable", Priority::Live)]);
    assert!(!watching.store.is_unreadable("default", "a"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_is_known_to_exist_until_it_is_gone_or_readable() {
    let server = ApiServer::new();
    let (good, bad) = (json!({"key": "good"}), json!({"key": [["bad"]]}));
    for name in ["a", "b", "c"] {
        seed(&server, name, &bad);
    }
    let watching = watch::<ConfigMap>(server.client());
    let unreadable = || watching.store.unreadable().iter().map(|object| object.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(watching.tells().await, [], "all is planned for after the first list");
    assert!(watching.store.is_synced() && watching.store.is_empty());
    assert_eq!(unreadable(), ["a", "b", "c"]);
    seed(&server, "a", &good);
    assert_eq!(watching.tells().await, [one("a unreadable", Priority::Live), one("a", Priority::Live)]);
    assert_eq!(unreadable(), ["b", "c"]);
    server.remove(&format!("{MAPS}/b"));
    assert_eq!(watching.tells().await, [one("b unreadable", Priority::Live)], "the end of one that was never read");
    assert_eq!(unreadable(), ["c"]);
    // During a gap, so that another list shows it.
    server.break_watches();
    server.remove(&format!("{MAPS}/c"));
    seed(&server, "d", &bad);
    server.compact();
    assert_eq!(watching.tells().await, [one("d unreadable", Priority::Live), one("c unreadable", Priority::Live)]);
    assert_eq!(unreadable(), ["d"]);
}

/// A kind whose own decoder panics.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = ConfigMap)]
struct Fragile {
    metadata: ObjectMeta,
    #[serde(rename = "data", deserialize_with = "fragile")]
    _data: Value,
}

fn fragile<'de, D: Deserializer<'de>>(data: D) -> Result<Value, D::Error> {
    let data = Value::deserialize(data)?;
    assert!(data["key"] != "panics", "as record");
    Ok(data)
}

#[tokio::test(start_paused = true)]
async fn a_decoder_that_panics_is_an_object_that_cannot_be_decoded() {
    let server = ApiServer::new();
    for name in ["listed", "well"] {
        seed(&server, name, &json!({"key": if name == "well" { "fine" } else { "panics" }}));
    }
    let watching = watch::<Fragile>(server.client());
    assert_eq!(watching.tells().await, [one("well", Priority::Initial)]);
    seed(&server, "seen", &json!({"key": "panics"}));
    seed(&server, "other", &json!({"key": "fine"}));
    assert_eq!(watching.tells().await, [one("seen unreadable", Priority::Live), one("other", Priority::Live)]);
    let text = watching.metrics.encode().unwrap();
    assert!(text.contains(r#"watch_undecodable_objects{api_server="home",resource="configmaps"} 2"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let server = ApiServer::new();
    let busy = || Fault::too_many_requests("busy", 45);
    server.fail_times(2, Match::verb("list"), busy());
    server.fail_next(Match::verb("watch"), busy());
    let begun = Instant::now();
    let watching = watch::<ConfigMap>(server.client());
    watching.store.synced().await;
    assert!(begun.elapsed() >= Duration::from_secs(90), "{:?}", begun.elapsed());
    sleep(Duration::from_secs(44)).await;
    assert_eq!(server.requests().len(), 4, "three lists and a watch");
    sleep(Duration::from_secs(2)).await;
    assert!(server.requests().len() > 4);
}

/// How long the silence of these tests lasts: four watches, one after the other.
const QUIET_FOR: Duration = Duration::from_mins(13);

/// A real API server sends the bookmarks of an idle kind after 60 or 120 s, or never.
#[tokio::test(start_paused = true)]
async fn an_idle_watch_is_in_contact_however_seldom_the_server_speaks() {
    for bookmarks in
        [Bookmarks::Every(Duration::from_mins(1)), Bookmarks::Every(Duration::from_mins(2)), Bookmarks::Never]
    {
        let server = ApiServer::new();
        server.send_bookmarks(bookmarks);
        let watching = watch::<ConfigMap>(server.client());
        watching.store.synced().await;
        let begun = watching.contact.since();
        server.take_requests();
        for _ in 0..QUIET_FOR.as_secs() / 5 {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(watching.contact.since(), begun, "{bookmarks:?}");
        }
        let lists = server.take_requests().iter().filter(|request| request.verb == "list").count();
        assert!(lists <= 13 * 2 + 4, "{bookmarks:?}: {lists} questions");
    }
}

#[tokio::test(start_paused = true)]
async fn events_spare_the_question() {
    let server = ApiServer::new();
    let watching = watch::<ConfigMap>(server.client());
    watching.store.synced().await;
    sleep(Duration::from_secs(1)).await;
    server.take_requests();
    for n in 0..8 {
        seed(&server, &format!("map-{n}"), &json!({}));
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(server.take_requests(), []);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_noticed_and_one_that_flaps_begins_once() {
    let server = ApiServer::new();
    server.send_bookmarks(Bookmarks::Never);
    let watching = watch::<ConfigMap>(server.client());
    watching.store.synced().await;
    sleep(Duration::from_secs(100)).await;
    // The server answers nothing any more, and the open watch is silent.
    server.fail_always(Match::any(), Fault::Hang);
    server.hold_watches(true);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(watching.contact.since(), Instant::now());
    sleep(Duration::from_secs(29)).await;
    server.heal();
    server.hold_watches(false);
    sleep(Duration::from_secs(11)).await;
    let regained = watching.contact.since();
    assert!(regained.elapsed() <= Duration::from_secs(11), "{:?}", regained.elapsed());
    // Later short errors do not extend the earlier outage.
    for _ in 0..5 {
        server.fail_always(Match::any(), Fault::Status(500));
        server.break_watches();
        sleep(Duration::from_secs(10)).await;
        server.heal();
        sleep(Duration::from_secs(50)).await;
        assert_eq!(watching.contact.since(), regained);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_back_is_noticed_by_the_question() {
    let server = ApiServer::new();
    server.send_bookmarks(Bookmarks::Never);
    seed(&server, "kept", &json!({}));
    let backup = server.back_up();
    seed(&server, "lost", &json!({}));
    let watching = watch::<ConfigMap>(server.client());
    watching.store.synced().await;
    server.restore(&backup);
    sleep(Duration::from_secs(35)).await;
    assert_eq!(watching.store.len(), 1);
}

/// New writes have been given the versions of the lost ones, and more. Another watch has noticed.
#[tokio::test(start_paused = true)]
async fn what_was_listed_before_the_server_was_set_back_is_listed_again_whatever_its_version_is() {
    let server = ApiServer::new();
    server.send_bookmarks(Bookmarks::Never);
    seed(&server, "kept", &json!({}));
    let backup = server.back_up();
    seed(&server, "lost", &json!({}));
    let watching = watch::<ConfigMap>(server.client());
    watching.store.synced().await;
    server.restore(&backup);
    (0..3).for_each(|number| seed(&server, &format!("new-{number}"), &json!({})));
    sleep(Duration::from_secs(35)).await;
    assert!(watching.store.by_name("default", "lost").is_some(), "no version has fallen");
    let set_back = Instant::now();
    watching.contact.was_set_back(set_back);
    sleep(Duration::from_secs(1)).await;
    assert!(watching.store.by_name("default", "lost").is_none());
    assert_eq!(watching.store.len(), 4);
    assert!(watching.store.listed() >= Some(set_back));
    assert_eq!(watching.contact.set_back(), Some(set_back), "the new list is not another reason to list");
}

/// A connection that delivers nothing any more, not even its end: the server or a middlebox is gone.
#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_silent_fails_within_four_minutes() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let list = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": []});
        let silence = futures::stream::pending::<Result<hyper::body::Frame<bytes::Bytes>, std::io::Error>>();
        let body = if is_watch {
            count.fetch_add(1, Ordering::Relaxed);
            Either::Right(StreamBody::new(silence))
        } else {
            Either::Left(Full::<bytes::Bytes>::from(list.to_string()))
        };
        std::future::ready(Ok::<_, std::io::Error>(Response::new(body)))
    });
    let watching = watch::<ConfigMap>(kube::Client::new(server, "default"));
    watching.store.synced().await;
    sleep(Duration::from_mins(4)).await;
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}

/// A ConfigMap without its data.
#[derive(kube::Resource, Clone, Debug, Deserialize)]
#[resource(inherit = "ConfigMap")]
struct MapMetadata {
    metadata: ObjectMeta,
    data: Option<Value>,
}

#[tokio::test(start_paused = true)]
async fn of_metadata_alone_only_what_is_to_be_kept_is_kept() {
    let server = ApiServer::new();
    let hold = |name: &str, label: Option<&str>| {
        let metadata = json!({"name": name, "labels": label.map(|held| json!({"held": held}))});
        server.seed(
            MAPS,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "hush"}}),
        );
    };
    hold("a", Some("yes"));
    hold("b", None);
    let keeps = |map: &MapMetadata| map.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("held"));
    let watching = watch_projected(server.client(), true, keeps);
    assert_eq!(watching.tells().await, [one("a", Priority::Initial)]);
    assert_eq!(watching.store.by_name("default", "a").unwrap().data, None, "values are not even sent");
    hold("b", Some("yes"));
    hold("a", None);
    assert_eq!(watching.tells().await, [one("b", Priority::Live), one("a is gone", Priority::Live)]);
    assert_eq!((watching.store.len(), watching.store.version()), (1, server.version()), "its version is reached");
    // During a gap, so that another list shows it.
    server.break_watches();
    hold("b", None);
    hold("a", Some("yes"));
    server.compact();
    assert_eq!(watching.tells().await, [one("a", Priority::Live), one("b is gone", Priority::Live)]);
}
