use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet, machine_config::MachineConfig};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    leadership::Leadership,
    object::{Cluster, Kind},
    request::Connection,
};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::{Value, json};

use super::{
    call::Caller,
    mark::{Guarded, Mark, Outcome},
    memory::{CONFIRM, Memory, Note, RETRY},
    plan::plan,
    snapshot::{GuardedKind, Snapshot},
};
use crate::{
    shared::{CONTROL, TARGET, class_secrets::SecretMetadata, machine_config::CachedConfig},
    testing::machine,
};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";

fn listed<K: Kind>(stores: Stores, cluster: Cluster, objects: Vec<K>) -> Stores {
    let store = Arc::new(Store::<K>::new(cluster, "default"));
    store.begin_list();
    for object in objects {
        store.apply(object);
    }
    store.end_list(7, tokio::time::Instant::now());
    stores.add(store);
    stores
}

/// A process that watches machines and classes, and no objects of either.
fn empty() -> Stores {
    listed(listed(Stores::default(), CONTROL, Vec::<Machine>::new()), CONTROL, Vec::<MachineClass>::new())
}

fn snapshot(stores: &Stores) -> Snapshot {
    Snapshot::take(stores, "default")
}

/// The labels that are due, as text.
fn due(now: Duration, stores: &Stores, memory: &Memory) -> Vec<String> {
    plan(now, &snapshot(stores), memory).iter().map(text).collect()
}

fn text(mark: &Mark) -> String {
    let on = match &mark.on {
        Guarded::Namespace => "namespace",
        Guarded::Definition(kind) => kind.definition.split('.').next().unwrap(),
    };
    format!("{on}={}", mark.in_use)
}

#[test]
fn nothing_is_marked_by_caches_that_are_not_complete() {
    assert!(due(Duration::ZERO, &Stores::default(), &Memory::default()).is_empty());
}

#[test]
fn the_namespace_and_the_definition_are_in_use_with_the_first_machine() {
    let stores = listed(empty(), CONTROL, vec![machine("m1").build()]);
    assert_eq!(
        due(Duration::ZERO, &stores, &Memory::default()),
        ["namespace=true", "machines=true", "machineclasses=false"]
    );
}

#[test]
fn an_object_that_cannot_be_read_is_one() {
    let store = Arc::new(Store::<Machine>::new(CONTROL, "default"));
    store.begin_list();
    store.add_unreadable(Unreadable::named("default", "m1", "u1"));
    store.end_list(7, tokio::time::Instant::now());
    let stores = empty();
    stores.add(store);
    assert_eq!(due(Duration::ZERO, &stores, &Memory::default())[0], "namespace=true");
}

#[test]
fn each_kind_is_looked_for_under_the_type_that_its_cache_has() {
    let config: CachedConfig = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}})).unwrap();
    let stores = listed(Stores::default(), TARGET, vec![config]);
    assert_eq!(due(Duration::ZERO, &stores, &Memory::default()), ["machineconfigs=true"]);
}

#[test]
fn a_secret_with_the_finalizer_keeps_the_namespace_and_no_definition() {
    let secret: SecretMetadata =
        serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "default"}})).unwrap();
    let stores = listed(empty(), CONTROL, vec![secret]);
    assert_eq!(
        due(Duration::ZERO, &stores, &Memory::default()),
        ["namespace=true", "machines=false", "machineclasses=false"]
    );
}

#[test]
fn the_label_of_the_namespace_needs_the_lists_of_kinds_that_are_not_watched() {
    let (mut memory, stores) = (Memory::default(), empty());
    settle(&mut memory, &stores, Duration::ZERO, &Outcome::AsWanted);
    let marks = plan(Duration::ZERO, &snapshot(&stores), &memory);
    let wanted = [
        GuardedKind::of::<Machine>(CONTROL, "default"),
        GuardedKind::of::<MachineSet>(CONTROL, "default"),
        GuardedKind::of::<MachineDeployment>(CONTROL, "default"),
        GuardedKind::of::<MachineClass>(CONTROL, "default"),
    ];
    assert_eq!((marks[0].in_use, marks[0].kinds.as_slice()), (false, wanted.as_slice()));
}

#[test]
fn what_is_as_it_should_be_is_read_again_after_ten_minutes_and_at_once_after_a_change() {
    let (mut memory, stores) = (Memory::default(), empty());
    for _ in ["the definitions", "the namespace"] {
        assert_eq!(settle(&mut memory, &stores, Duration::ZERO, &Outcome::AsWanted), []);
    }
    assert!(due(CONFIRM.saturating_sub(RETRY), &stores, &memory).is_empty(), "nothing at rest");
    assert_eq!(due(CONFIRM, &stores, &memory).len(), 3);
    let stores = listed(stores, CONTROL, vec![machine("m1").build()]);
    assert_eq!(due(RETRY, &stores, &memory), ["namespace=true", "machines=true"]);
}

/// All that is due has this outcome. Returns what is to be logged.
fn settle(memory: &mut Memory, stores: &Stores, now: Duration, outcome: &Outcome) -> Vec<Note> {
    let marks = plan(now, &snapshot(stores), memory);
    marks.into_iter().filter_map(|mark| memory.keep(now, mark, outcome.clone())).collect()
}

#[test]
fn a_namespace_loses_its_label_after_the_definitions() {
    let (mut memory, stores) = (Memory::default(), empty());
    assert_eq!(due(Duration::ZERO, &stores, &memory), ["machines=false", "machineclasses=false"]);
    settle(&mut memory, &stores, Duration::ZERO, &Outcome::AsWanted);
    assert_eq!(due(Duration::ZERO, &stores, &memory), ["namespace=false"]);
}

#[test]
fn a_definition_that_keeps_its_label_does_not_keep_that_of_the_namespace() {
    let (mut memory, stores) = (Memory::default(), empty());
    let mut now = Duration::ZERO;
    while due(now, &stores, &memory) != ["namespace=false"] {
        assert!(now < Duration::from_mins(1), "the namespace waits for ever");
        settle(&mut memory, &stores, now, &Outcome::Failed("forbidden".to_owned()));
        now += RETRY;
    }
    assert!(now > RETRY * 6, "the definitions were tried for {now:?}");
}

#[test]
fn failures_back_off() {
    let (mut memory, stores) = (Memory::default(), empty());
    let (mut now, mut calls, mut logged) = (Duration::ZERO, 0, 0);
    while now < Duration::from_hours(1) {
        for mark in plan(now, &snapshot(&stores), &memory) {
            calls += 1;
            let note = memory.keep(now, mark, Outcome::Failed("forbidden".to_owned()));
            logged += u32::from(note.is_some());
        }
        now += Duration::from_secs(1);
    }
    assert!((3 * 8..=3 * 13).contains(&calls), "{calls}");
    assert_eq!(logged, 3, "once for each label");
}

fn caller(server: &ApiServer) -> Caller {
    let agent = HeaderValue::from_static("test");
    let connection =
        || Connection::new(server.client(), agent.clone(), Leadership::unlimited(), 1, Arc::new(Metrics::new()));
    Caller { namespace: "default".to_owned(), control: connection(), target: Some(connection()) }
}

fn labels(server: &ApiServer, path: &str) -> Value {
    server.object(path).unwrap()["metadata"]["labels"].clone()
}

fn namespace_mark(in_use: bool) -> Mark {
    Mark { on: Guarded::Namespace, in_use, kinds: vec![GuardedKind::of::<Machine>(CONTROL, "default")] }
}

fn server() -> ApiServer {
    let server = ApiServer::new();
    server.seed(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"a": "b"}}}),
    );
    server
}

#[tokio::test]
async fn a_label_is_written_once() {
    let (server, mark) = (server(), namespace_mark(true));
    let caller = caller(&server);
    assert!(matches!(caller.perform(&mark).await, Outcome::Changed(_)));
    assert_eq!(
        (&labels(&server, NAMESPACE)["nodewright.dev/in-use"], &labels(&server, NAMESPACE)["a"]),
        (&json!("true"), &json!("b"))
    );
    assert_eq!(caller.perform(&mark).await, Outcome::AsWanted);
    let writes = server.requests().iter().filter(|request| request.verb != "get").count();
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn a_stale_cache_takes_no_label_off() {
    let server = server();
    let caller = caller(&server);
    caller.perform(&namespace_mark(true)).await;
    server.seed(MACHINES, serde_json::to_value(machine("m1").build()).unwrap());
    assert_eq!(caller.perform(&namespace_mark(false)).await, Outcome::StillInUse);
    assert_eq!(labels(&server, NAMESPACE)["nodewright.dev/in-use"], "true");
    server.remove(&format!("{MACHINES}/m1"));
    assert!(matches!(caller.perform(&namespace_mark(false)).await, Outcome::Changed(_)));
    let left = labels(&server, NAMESPACE);
    assert_eq!((&left["nodewright.dev/in-use"], &left["a"]), (&Value::Null, &json!("b")));
}

#[tokio::test]
async fn a_definition_of_openshift_is_left_alone() {
    let (server, kind) = (server(), GuardedKind::of::<MachineConfig>(TARGET, ""));
    let path = format!("{DEFINITIONS}/machineconfigs.machineconfiguration.openshift.io");
    let definition = |labels: Value| {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "machineconfigs.machineconfiguration.openshift.io", "labels": labels}})
    };
    server.seed(DEFINITIONS, definition(json!({"openshift.io/operator-managed": ""})));
    let mark = Mark { on: Guarded::Definition(kind.clone()), in_use: true, kinds: vec![kind] };
    assert_eq!(caller(&server).perform(&mark).await, Outcome::NotOurs);
    server.remove(&path);
    server.seed(DEFINITIONS, definition(json!({"app.kubernetes.io/part-of": "nodewright"})));
    assert!(matches!(caller(&server).perform(&mark).await, Outcome::Changed(_)));
    assert_eq!(labels(&server, &path)["in-use.nodewright.dev/default"], "true");
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let server = server();
    server.fail_always(Match::verb("patch").path(NAMESPACE), Fault::Status(403));
    let Outcome::Failed(text) = caller(&server).perform(&namespace_mark(true)).await else { panic!("it succeeded") };
    assert!(text.contains("namespace default") && text.contains("apply config/rbac"), "{text}");
}
