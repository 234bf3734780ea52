//! Scoped watches: their objects are visible while a plan requests the watch, and no longer.

use k8s_openapi::api::core::v1::Pod;
use nodewright_testing::api_server::ApiServer;
use serde_json::json;

use crate::support::{HOME, Running, annotate, annotated, copies::pods_of, source};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(server: &ApiServer, name: &str, node: &str) {
    let spec = json!({"nodeName": node});
    server.seed(PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}));
}

async fn until_seen(running: &Running, name: &str, count: &str) {
    let seen = |it: &Running| annotated(&it.server, name, "seen").as_deref() == Some(count);
    running.until(&format!("{name} to see {count} pods"), seen).await;
}

#[tokio::test(start_paused = true)]
async fn that_there_is_nothing_is_an_answer_too_and_each_change_another_one() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    pod(&server, "elsewhere", "n2");
    let running = Running::start(server.clone(), vec![]);
    running.until_noted(0).await;
    running.passes(5).await;
    // Only the scoped watch leads to another plan: all else is as wanted.
    annotate(&server, "s", &json!({"look": "n1", "copies": "0"}));
    until_seen(&running, "s", "0").await;
    running.passes(5).await;
    pod(&server, "here", "n1");
    until_seen(&running, "s", "1").await;
    server.remove(&format!("{PODS}/here"));
    until_seen(&running, "s", "0").await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_scoped_watch_that_two_share_ends_with_the_last_of_them() {
    let server = ApiServer::new();
    for name in ["a", "b"] {
        source(&server, name, 0);
        annotate(&server, name, &json!({"look": "n1"}));
    }
    pod(&server, "here", "n1");
    let running = Running::start(server.clone(), vec![]);
    until_seen(&running, "a", "1").await;
    until_seen(&running, "b", "1").await;
    let asked = || server.take_requests().into_iter().filter(|request| request.path.ends_with("/pods")).count();
    running.passes(1).await;
    assert_eq!(asked(), 2, "one list and one watch for both");
    annotate(&server, "a", &json!({}));
    running.passes(1).await;
    pod(&server, "another", "n1");
    until_seen(&running, "b", "2").await;
    assert!(running.stores.seen::<Pod>(HOME, &pods_of("n1")).is_some());
    server.remove("/api/v1/namespaces/default/configmaps/b");
    running.passes(1).await;
    assert!(running.stores.seen::<Pod>(HOME, &pods_of("n1")).is_none(), "nothing of it is kept");
    asked();
    running.passes(600).await;
    assert_eq!(asked(), 0, "no request follows");
    running.end().await;
}
