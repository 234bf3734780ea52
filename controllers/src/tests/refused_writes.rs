//! Writes that the API server refuses again and again, in the real runtime, against the API server in process.

use std::time::Duration;

use nodewright_testing::api_server::{ApiServer, Fault, RequestRecord};
use serde_json::json;
use tokio::time::sleep;

use super::class_secrets::{Plane, class, machine, secret, server};

const MACHINE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines/m";

/// A Machine, and a server that refuses all writes to it with this status code.
fn refusing(code: u16) -> ApiServer {
    let server = server();
    class(&server, "class", "cloud");
    secret(&server, "cloud", &[]);
    machine(&server, "m");
    server.decide(move |request| is_write(request).then_some(Fault::Status(code)));
    server
}

fn is_write(request: &RequestRecord) -> bool {
    request.verb == "patch" && request.path.starts_with(MACHINE)
}

fn refused(server: &ApiServer) -> usize {
    server.requests().iter().filter(|request| is_write(request)).count()
}

fn has_finalizer(server: &ApiServer) -> bool {
    let live = server.object(MACHINE).unwrap_or_default();
    live["metadata"]["finalizers"] == json!(["machine.sapcloud.io/machine-controller-manager"])
}

/// machine-controller-manager forgets a Machine after fifteen attempts, until a pass of its class brings it back.
#[tokio::test(start_paused = true)]
async fn mcm_defect_26_a_finalizer_that_is_refused_for_hours_is_added_in_the_end() {
    let server = refusing(500);
    let plane = Plane::start(server.clone());
    sleep(Duration::from_hours(3)).await;
    assert!(refused(&server) > 15 && !has_finalizer(&server), "{} attempts", refused(&server));
    server.decide_no_more();
    plane.until("the finalizer", |_| has_finalizer(&server)).await;
    plane.until("a VM", |_| server.object(MACHINE).unwrap()["spec"]["providerID"].is_string()).await;
}

/// machine-controller-manager makes some updates again at once, and calls itself to do so.
#[tokio::test(start_paused = true)]
async fn mcm_defect_27_a_write_that_is_refused_is_made_again_after_growing_pauses() {
    for code in [409, 500] {
        let server = refusing(code);
        let _plane = Plane::start(server.clone());
        sleep(Duration::from_mins(1)).await;
        let first = refused(&server);
        sleep(Duration::from_hours(1)).await;
        let then = refused(&server) - first;
        assert!((3..=12).contains(&first), "{first} attempts in a minute ({code})");
        assert!((40..=90).contains(&then), "{then} attempts in an hour ({code})");
    }
}
