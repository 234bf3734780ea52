//! Compares this server with the answers of a real one (Kubernetes 1.36).

use futures::{AsyncBufReadExt, StreamExt};
use http::Method;
use serde_json::json;

use super::*;

const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";

struct Answer {
    code: u16,
    body: Value,
}

async fn send(server: &ApiServer, method: Method, path: &str, content: &str, body: &Value) -> Answer {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content);
    let request = request.header(header::USER_AGENT, "tester/1.0");
    let body = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
    let answer = server.client().send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    Answer { code, body: serde_json::from_slice(&body).unwrap() }
}

async fn get(server: &ApiServer, path: &str) -> Answer {
    send(server, Method::GET, path, "", &Value::Null).await
}

async fn post(server: &ApiServer, path: &str, body: Value) -> Answer {
    send(server, Method::POST, path, "application/json", &body).await
}

async fn put(server: &ApiServer, path: &str, body: &Value) -> Answer {
    send(server, Method::PUT, path, "application/json", body).await
}

async fn delete(server: &ApiServer, path: &str, body: Value) -> Answer {
    send(server, Method::DELETE, path, "application/json", &body).await
}

async fn apply(server: &ApiServer, manager: &str, path: &str, body: Value) -> Answer {
    let path = format!("{path}?fieldManager={manager}");
    send(server, Method::PATCH, &path, "application/apply-patch+yaml", &body).await
}

async fn merge(server: &ApiServer, path: &str, body: Value) -> Answer {
    send(server, Method::PATCH, path, "application/merge-patch+json", &body).await
}

async fn json_patch(server: &ApiServer, path: &str, body: Value) -> Answer {
    send(server, Method::PATCH, path, "application/json-patch+json", &body).await
}

fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": name },
        "spec": { "class": { "name": "small" } },
    })
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

#[tokio::test]
async fn a_created_object_gets_its_identity_and_no_status() {
    let server = ApiServer::new();
    let body = with(machine("a"), "/status", json!({ "currentStatus": { "phase": "Running" } }));
    let created = post(&server, MACHINES, body).await;
    assert_eq!(created.code, 201);
    let metadata = &created.body["metadata"];
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["namespace"], "default");
    assert!(metadata["uid"].is_string() && metadata["creationTimestamp"].is_string());
    assert!(created.body["status"].is_null());
    let again = post(&server, MACHINES, machine("a")).await;
    assert_eq!((again.code, &again.body["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(again.body["details"]["name"], "a");
    assert_eq!(get(&server, &format!("{MACHINES}/b")).await.body["reason"], "NotFound");
}

#[tokio::test]
async fn a_put_needs_the_version_and_the_uid() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    let first = post(&server, MACHINES, machine("a")).await.body;
    assert_eq!(put(&server, &path, &machine("a")).await.code, 422, "custom resources take no unconditional update");
    let second = put(&server, &path, &with(first.clone(), "/spec/x", json!(1))).await;
    assert_eq!((second.code, &second.body["metadata"]["generation"]), (200, &json!(2)));
    let stale = put(&server, &path, &first).await;
    assert_eq!((stale.code, &stale.body["reason"]), (409, &json!("Conflict")));
    let other = with(second.body.clone(), "/metadata/uid", json!("other"));
    assert_eq!(put(&server, &path, &other).await.code, 409);
    let same = put(&server, &path, &second.body).await;
    assert_eq!(version(&same.body), version(&second.body), "what changes nothing is not written");
}

#[tokio::test]
async fn status_and_the_rest_are_written_apart() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    post(&server, MACHINES, machine("a")).await;
    let both = json!({ "spec": { "x": 1 }, "status": { "y": 2 } });
    let main = merge(&server, &path, both.clone()).await.body;
    assert_eq!((&main["spec"]["x"], &main["status"]), (&json!(1), &Value::Null));
    let both = json!({ "spec": { "x": 5 }, "status": { "y": 2 } });
    let status = merge(&server, &format!("{path}/status"), both).await.body;
    assert_eq!((&status["spec"]["x"], &status["status"]["y"]), (&json!(1), &json!(2)));
    assert_eq!(status["metadata"]["generation"], 2, "a status is no new generation");
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "spec": { "x": 7 } });
    assert_eq!(merge(&server, &path, stale).await.code, 409);
}

#[tokio::test]
async fn an_apply_with_version_1_creates_or_is_refused() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    let create = with(machine("a"), "/metadata/resourceVersion", json!("1"));
    assert_eq!(apply(&server, "set", &path, create.clone()).await.code, 201);
    assert_eq!(apply(&server, "set", &path, create.clone()).await.code, 409);
    assert_eq!(server.remove(&path).unwrap()["kind"], "Machine");
    assert_eq!(apply(&server, "set", &path, create).await.code, 201, "free again");
}

#[tokio::test]
async fn an_apply_checks_the_uid_and_a_status_apply_only_the_version() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    let with_uid = |uid: &str| with(machine("a"), "/metadata/uid", json!(uid));
    assert_eq!(apply(&server, "set", &path, with_uid("gone")).await.code, 409, "nothing is brought back to life");
    let live = apply(&server, "set", &path, machine("a")).await.body;
    let other = apply(&server, "set", &path, with_uid("other")).await;
    assert_eq!((other.code, &other.body["reason"]), (422, &json!("Invalid")), "to a patch the UID is immutable");
    assert_eq!(apply(&server, "set", &path, with_uid(live["metadata"]["uid"].as_str().unwrap())).await.code, 200);
    let status = |field: &str, value: &str| {
        let metadata = json!({ "name": "a", field: value });
        json!({ "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": metadata, "status": { "x": 1 } })
    };
    let status_path = format!("{path}/status");
    assert_eq!(apply(&server, "set", &status_path, status("uid", "other")).await.code, 200);
    assert_eq!(apply(&server, "set", &status_path, status("resourceVersion", "1")).await.code, 409);
    let missing = format!("{MACHINES}/missing/status");
    let body = with(status("uid", ""), "/metadata/name", json!("missing"));
    assert_eq!(apply(&server, "set", &missing, body).await.code, 404);
}

#[tokio::test]
async fn an_apply_owns_its_fields() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    let said = with(machine("a"), "/spec/x", json!(1));
    let first = apply(&server, "set", &path, said.clone()).await.body;
    let again = apply(&server, "set", &path, said).await;
    assert_eq!((again.code, version(&again.body)), (200, version(&first)));
    let conflict = apply(&server, "other", &path, with(machine("a"), "/spec/x", json!(2))).await;
    assert_eq!((conflict.code, &conflict.body["details"]["causes"][0]["field"]), (409, &json!(".spec.x")));
    let less = apply(&server, "set", &path, machine("a")).await.body;
    assert!(less["spec"].get("x").is_none());
    let nameless = send(&server, Method::PATCH, &path, "application/apply-patch+yaml", &machine("a")).await;
    assert_eq!(nameless.code, 422, "an apply needs a manager");
}

#[tokio::test]
async fn a_json_patch_tests_what_it_saw() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    post(&server, MACHINES, with(machine("a"), "/metadata/finalizers", json!(["one", "two"]))).await;
    let ops = |expected: &str| {
        json!([
            { "op": "test", "path": "/metadata/finalizers/0", "value": expected },
            { "op": "remove", "path": "/metadata/finalizers/0" },
        ])
    };
    let failed = json_patch(&server, &path, ops("two")).await;
    assert_eq!((failed.code, &failed.body["reason"]), (422, &json!("Invalid")));
    let done = json_patch(&server, &path, ops("one")).await;
    assert_eq!((done.code, &done.body["metadata"]["finalizers"]), (200, &json!(["two"])));
}

#[tokio::test]
async fn a_deletion_waits_for_finalizers_and_honours_preconditions() {
    let server = ApiServer::new();
    let path = format!("{MACHINES}/a");
    let live = post(&server, MACHINES, with(machine("a"), "/metadata/finalizers", json!(["f"]))).await.body;
    let precondition = |field: &str, value: &str| json!({ "preconditions": { field: value } });
    assert_eq!(delete(&server, &path, precondition("uid", "other")).await.code, 409);
    assert_eq!(delete(&server, &path, precondition("resourceVersion", "999")).await.code, 409);
    let uid = live["metadata"]["uid"].as_str().unwrap();
    let deleting = delete(&server, &path, precondition("uid", uid)).await;
    assert_eq!(deleting.code, 200);
    assert!(deleting.body["metadata"]["deletionTimestamp"].is_string());
    let more = merge(&server, &path, json!({ "metadata": { "finalizers": ["f", "g"] } })).await;
    assert_eq!(more.code, 422, "no new finalizer on what is being deleted");
    let last = merge(&server, &path, json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(last.code, 200);
    assert!(server.object(&path).is_none());

    post(&server, MACHINES, machine("b")).await;
    let gone = delete(&server, &format!("{MACHINES}/b"), Value::Null).await;
    assert_eq!((gone.code, &gone.body["kind"], &gone.body["status"]), (200, &json!("Status"), &json!("Success")));
    assert!(gone.body["metadata"]["resourceVersion"].is_null());
}

#[tokio::test]
async fn an_evicted_pod_on_a_node_stays_until_its_kubelet_lets_go() {
    let server = ApiServer::new();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": { "nodeName": "n" } });
    server.seed(pods, pod);
    let path = format!("{pods}/p");
    server.fail_next(Match::verb("create").path("/eviction"), Fault::too_many_requests("budget", 10));
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" } });
    let refused = post(&server, &format!("{path}/eviction"), eviction.clone()).await;
    assert_eq!((refused.code, &refused.body["details"]["retryAfterSeconds"]), (429, &json!(10)));
    assert_eq!(post(&server, &format!("{path}/eviction"), eviction.clone()).await.code, 201);
    assert_eq!(post(&server, &format!("{path}/eviction"), eviction.clone()).await.code, 201, "twice is fine");
    assert!(server.object(&path).unwrap()["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(delete(&server, &path, json!({ "gracePeriodSeconds": 0 })).await.code, 200);
    assert_eq!(post(&server, &format!("{path}/eviction"), eviction).await.code, 404);
}

#[tokio::test]
async fn lists_are_selected_and_paged_under_one_version() {
    let server = ApiServer::new();
    for name in ["a", "b", "c"] {
        let labels = json!({ "pool": if name == "b" { "red" } else { "blue" } });
        post(&server, MACHINES, with(machine(name), "/metadata/labels", labels)).await;
    }
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let list = get(&server, &format!("{MACHINES}?labelSelector=pool%3Dblue")).await.body;
    assert_eq!((list["kind"].as_str(), names(&list)), (Some("MachineList"), vec!["a".to_owned(), "c".to_owned()]));
    let first = get(&server, &format!("{MACHINES}?limit=2")).await.body;
    post(&server, MACHINES, machine("bb")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = get(&server, &format!("{MACHINES}?limit=2&continue={token}")).await.body;
    assert_eq!((names(&first), names(&second)), (vec!["a".into(), "b".into()], vec!["c".into()]));
    assert_eq!(version(&first), version(&second));
    server.compact();
    let late = get(&server, &format!("{MACHINES}?continue={token}")).await;
    assert_eq!((late.code, late.body["metadata"]["continue"].is_string()), (410, true));
    let all = get(&server, "/apis/machine.sapcloud.io/v1alpha1/machines?fieldSelector=metadata.name%3Dbb").await.body;
    assert_eq!(names(&all), ["bb"]);
}

#[tokio::test]
async fn a_list_from_the_future_is_refused() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("a")).await;
    let query = "resourceVersion=9999&resourceVersionMatch=NotOlderThan";
    let refused = get(&server, &format!("{MACHINES}?{query}")).await;
    assert_eq!(refused.code, 504);
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(
        get(&server, &format!("{MACHINES}?resourceVersion=1&resourceVersionMatch=NotOlderThan")).await.code,
        200
    );
}

type Events = std::pin::Pin<Box<dyn futures::Stream<Item = Value>>>;

async fn watch(server: &ApiServer, query: &str) -> Events {
    let request = Request::get(format!("{MACHINES}?watch=true&{query}")).body(vec![]).unwrap();
    let lines = server.client().request_stream(request).await.unwrap().lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).boxed_local()
}

async fn next(events: &mut Events) -> (String, String) {
    let event = events.next().await.unwrap();
    let name = event["object"]["metadata"]["name"].as_str().unwrap_or("").to_owned();
    (event["type"].as_str().unwrap().to_owned(), name)
}

fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_every_change_once() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("a")).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", server.version());
    let mut events = watch(&server, &query).await;
    post(&server, MACHINES, with(machine("b"), "/metadata/finalizers", json!(["f"]))).await;
    assert_eq!(next(&mut events).await, pair("ADDED", "b"));
    delete(&server, &format!("{MACHINES}/b"), Value::Null).await;
    assert_eq!(next(&mut events).await, pair("MODIFIED", "b"));
    let before = server.version();
    let last = merge(&server, &format!("{MACHINES}/b"), json!({ "metadata": { "finalizers": null } })).await.body;
    assert_eq!(version(&last), before.to_string(), "the answer does not know the version of the deletion");
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["finalizers"]), (&json!("DELETED"), &json!(["f"])));
    assert_eq!(version(&event["object"]), server.version().to_string());
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(version(&bookmark["object"]), server.version().to_string());
    server.break_watches();
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("a")).await;
    let mut events = watch(&server, "timeoutSeconds=5").await;
    assert_eq!(next(&mut events).await, pair("ADDED", "a"));
    assert!(events.next().await.is_none(), "the time that it asked for is over");
    let mut events =
        watch(&server, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true").await;
    assert_eq!(next(&mut events).await, pair("ADDED", "a"));
    let end = events.next().await.unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn a_selected_watch_sees_objects_come_and_go() {
    let server = ApiServer::new();
    let mut events = watch(&server, "resourceVersion=0&labelSelector=pool%3Dblue").await;
    post(&server, MACHINES, machine("a")).await;
    merge(&server, &format!("{MACHINES}/a"), json!({ "metadata": { "labels": { "pool": "blue" } } })).await;
    assert_eq!(next(&mut events).await, pair("ADDED", "a"));
    merge(&server, &format!("{MACHINES}/a"), json!({ "metadata": { "labels": { "pool": "red" } } })).await;
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["labels"]["pool"]), (&json!("DELETED"), &json!("blue")));
    assert_eq!(version(&event["object"]), server.version().to_string());
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_the_history_expires() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("a")).await;
    post(&server, MACHINES, machine("b")).await;
    server.compact();
    let mut events = watch(&server, "resourceVersion=1&timeoutSeconds=5").await;
    let error = events.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(error["object"]["reason"], "Expired");
    let reported = tokio::time::Instant::now();
    assert!(events.next().await.is_none());
    assert_eq!(reported.elapsed().as_secs(), 5, "it ends when its time is over");
}

#[tokio::test(start_paused = true)]
async fn a_held_watch_falls_behind_and_catches_up() {
    let server = ApiServer::new();
    let mut events = watch(&server, "resourceVersion=0").await;
    server.hold_watches(true);
    post(&server, MACHINES, machine("a")).await;
    assert!(tokio::time::timeout(Duration::from_secs(9), events.next()).await.is_err());
    server.hold_watches(false);
    assert_eq!(next(&mut events).await, pair("ADDED", "a"));
}

#[tokio::test(start_paused = true)]
async fn faults_come_by_command_and_requests_are_kept() {
    let (start, since) = ("2026-11-20T10:00:00Z".parse::<Timestamp>().unwrap(), tokio::time::Instant::now());
    let server = ApiServer::with_time(move || start + since.elapsed());
    let raw = |body: &Value| {
        let request = Request::post(MACHINES).header("traceparent", "00-1-2-01").header(header::USER_AGENT, "n/1 (x)");
        request.body(body.to_string().into_bytes()).unwrap()
    };
    server.fail_next(Match::verb("create").path("/machines"), Fault::Status(503));
    assert_eq!(post(&server, MACHINES, machine("a")).await.code, 503);
    server.fail_next(Match::any(), Fault::LoseAnswer);
    assert!(server.client().request_text(raw(&machine("a"))).await.is_err());
    assert!(server.object(&format!("{MACHINES}/a")).is_some(), "lost was only the answer");
    server.fail_next(Match::any(), Fault::CommitLate(Duration::from_secs(3)));
    assert!(server.client().request_text(raw(&machine("late"))).await.is_err());
    assert!(server.object(&format!("{MACHINES}/late")).is_none());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let late = server.object(&format!("{MACHINES}/late")).unwrap();
    assert_eq!(late["metadata"]["creationTimestamp"], "2026-11-20T10:00:03Z");
    server.fail_next(Match::any().user_agent("n/1"), Fault::Unreachable);
    assert!(server.client().request_text(raw(&machine("never"))).await.is_err());
    assert!(server.object(&format!("{MACHINES}/never")).is_none());
    server.fail_next(Match::any(), Fault::Hang);
    let client = server.client();
    let hung = client.request_text(raw(&machine("never")));
    assert!(tokio::time::timeout(Duration::from_hours(1), hung).await.is_err());

    let requests = server.take_requests();
    assert_eq!(requests.iter().map(|request| request.status).collect::<Vec<_>>(), [503, 0, 0, 0, 0]);
    assert_eq!((requests[1].verb, requests[1].user_agent.as_str()), ("create", "n/1 (x)"));
    assert_eq!(requests[1].traceparent.as_deref(), Some("00-1-2-01"));
    assert_eq!(requests[1].body.as_ref().unwrap()["metadata"]["name"], "a");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_an_unserved_kind_is_not_found() {
    let server = ApiServer::new();
    assert_eq!(post(&server, &format!("{MACHINES}?dryRun=All"), machine("a")).await.code, 201);
    assert!(server.object(&format!("{MACHINES}/a")).is_none());
    server.unserve("machine.sapcloud.io", "machines");
    let missing = get(&server, MACHINES).await;
    assert_eq!(missing.code, 404);
    assert_eq!(missing.body["message"], "the server could not find the requested resource");
}

#[tokio::test(start_paused = true)]
async fn each_request_may_be_decided_about_in_its_order() {
    let server = ApiServer::new();
    let (inner, mut seen) = (server.clone(), 0);
    server.decide(move |request| {
        seen += 1;
        match (seen, request.verb) {
            (1, "create") => Some(Fault::StatusAfter(504)),
            (2, "patch") => {
                inner.change(&request.path, |object| object["metadata"]["labels"] = json!({ "faster": "1" }));
                None
            }
            _ => None,
        }
    });
    let path = format!("{MACHINES}/a");
    let late = post(&server, MACHINES, machine("a")).await;
    assert_eq!((late.code, server.object(&path).is_some()), (504, true), "it took effect");
    let wanted = json!({ "metadata": { "resourceVersion": version(&server.object(&path).unwrap()) } });
    assert_eq!(merge(&server, &path, wanted).await.code, 409, "somebody was faster");
    server.decide_no_more();
}

#[tokio::test]
async fn a_request_is_done_though_its_sender_is_gone() {
    let server = ApiServer::new();
    let mut service = server.clone();
    let body = Body::from(machine("a").to_string().into_bytes());
    drop(tower::Service::call(&mut service, Request::post(MACHINES).body(body).unwrap()));
    get(&server, MACHINES).await;
    assert!(server.object(&format!("{MACHINES}/a")).is_some());
}

#[tokio::test(start_paused = true)]
async fn watches_are_late_and_broken_one_by_one() {
    let server = ApiServer::new();
    let mut late = watch(&server, "resourceVersion=1000").await;
    let mut other = watch(&server, "resourceVersion=1000").await;
    server.pace_watches(Match::any().path("/machines"), Pace::Late(Duration::from_secs(5)));
    post(&server, MACHINES, machine("a")).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(next(&mut late).await, pair("ADDED", "a"));
    assert_eq!(begun.elapsed().as_secs(), 5);
    let open = server.open_watches();
    assert_eq!(open.iter().map(|watch| watch.number).collect::<Vec<_>>(), [1, 2]);
    server.break_watch(2);
    assert!(other.next().await.is_none(), "it hears no more");
    server.pace_watches(Match::any().path("/machines"), Pace::Live);
    post(&server, MACHINES, machine("b")).await;
    assert_eq!(next(&mut late).await, pair("ADDED", "b"));
    server.break_watches_of(&Match::any().path("/machines"));
    assert!(late.next().await.is_none());
}

#[tokio::test]
async fn a_server_that_lags_answers_from_what_it_has_seen() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("a")).await;
    let then = server.version();
    server.remove(&format!("{MACHINES}/a"));
    post(&server, MACHINES, machine("b")).await;
    server.fail_always(Match::any(), Fault::AsOf(then));
    let names = |list: &Value| list["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    let old = get(&server, &format!("{MACHINES}?resourceVersion=0")).await.body;
    assert_eq!((names(&old), version(&old)), ("a".to_owned(), then.to_string().as_str()));
    assert_eq!(get(&server, &format!("{MACHINES}/a?resourceVersion=0")).await.code, 200);
    assert_eq!(get(&server, &format!("{MACHINES}/b?resourceVersion=0")).await.code, 404);
    assert_eq!(names(&get(&server, MACHINES).await.body), "b", "who wants the newest gets it");
    let mut events = watch(&server, "resourceVersion=0").await;
    assert_eq!(next(&mut events).await, pair("ADDED", "a"));
    assert_eq!(next(&mut events).await, pair("DELETED", "a"));
    assert_eq!(next(&mut events).await, pair("ADDED", "b"));
}

#[tokio::test]
async fn every_change_is_observed_in_order() {
    let server = ApiServer::new();
    post(&server, MACHINES, machine("before")).await;
    let seen = Arc::new(Mutex::new(vec![]));
    let reported = seen.clone();
    server.observe(move |change| {
        reported.lock().push((change.path.clone(), change.old.is_some(), change.new.is_some()));
    });
    let path = format!("{MACHINES}/a");
    post(&server, MACHINES, machine("a")).await;
    merge(&server, &path, json!({ "spec": { "x": 1 } })).await;
    merge(&server, &path, json!({ "spec": { "x": 1 } })).await;
    server.remove(&path);
    let expected = [(false, true), (true, true), (true, false)].map(|(old, new)| (path.clone(), old, new));
    assert_eq!(*seen.lock(), expected);
}

/// As with etcd that was set back to a snapshot.
#[tokio::test]
async fn a_restored_server_assigns_versions_again_but_no_uid() {
    let server = ApiServer::new();
    let backup = server.back_up();
    let make = async |name: &str| {
        let machine =
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": name}});
        let metadata = post(&server, MACHINES, machine).await.body["metadata"].clone();
        (metadata["resourceVersion"].clone(), metadata["uid"].clone())
    };
    let (version, uid) = make("lost").await;
    server.restore(&backup);
    let (again, other) = make("new").await;
    assert_eq!((again, other == uid), (version, false));
    assert_eq!(get(&server, &format!("{MACHINES}/lost")).await.code, 404);
}
