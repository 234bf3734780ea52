//! The driver against a docker daemon with canned answers: what it asks for, and how.

mod contract;

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use nodewright_driver::SecretText;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::*;

/// A daemon that gives prepared answers in order, and records the requests.
struct Daemon {
    driver: LocalDriver,
    asked: Arc<Mutex<Vec<(String, Bytes)>>>,
    _directory: TempDir,
}

impl Daemon {
    fn new<const N: usize>(answers: [(u16, Value); N]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(vec![]));
        let (answers, kept) = (Arc::new(Mutex::new(VecDeque::from(answers))), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, kept) = (Arc::clone(&answers), Arc::clone(&kept));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (answers, kept) = (Arc::clone(&answers), Arc::clone(&kept));
                    async move {
                        let what = format!("{} {}", request.method(), request.uri());
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        kept.lock().push((what, body));
                        let (status, body) = answers.lock().pop_front().unwrap();
                        let response = Response::builder().status(status);
                        Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body.to_string()))).unwrap())
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { driver: LocalDriver::new(&socket, &Leadership::default()), asked, _directory: directory }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().map(|(what, _)| what.clone()).collect()
    }
}

fn machine(name: &str) -> MachineRequest {
    let class = nodewright_driver_contract::class(&json!({"cluster": "ours", "image": "node:1"}));
    let user_data = SecretText("#!/bin/sh\nhunter2\n".into());
    MachineRequest { user_data, ..nodewright_driver_contract::machine(name, class) }
}

fn container(cluster: &str, machine: &str, status: &str) -> (u16, Value) {
    let labels = json!({LABEL_CLUSTER: cluster, LABEL_MACHINE: machine, LABEL_UID: format!("uid-of-{machine}")});
    (200, json!({"Id": "c0ffee", "State": {"Status": status}, "Config": {"Labels": labels}}))
}

fn refused(status: u16) -> (u16, Value) {
    (status, json!({"message": "the reason"}))
}

fn done(status: u16) -> (u16, Value) {
    (status, json!({}))
}

const CREATE: &str = "POST /containers/create?name=m";
const INSPECT: &str = "GET /containers/m/json";
const UPLOAD: &str = "PUT /containers/c0ffee/archive?path=/";
const START: &str = "POST /containers/c0ffee/start";
const REMOVE: &str = "DELETE /containers/c0ffee?force=true&v=true";

fn asked_path(daemon: &Daemon) -> Vec<String> {
    daemon.asked().into_iter().map(|what| what.replace("http://docker", "")).collect()
}

#[tokio::test]
async fn a_container_starts_after_its_user_data_are_in_it() {
    let daemon = Daemon::new([done(201), container("ours", "m", "created"), done(200), done(204)]);
    let made = daemon.driver.create(machine("m")).await.unwrap();
    assert_eq!((made.provider_id.as_str(), made.node_name.as_str()), ("local:///m", "m"));
    assert_eq!(asked_path(&daemon), [CREATE, INSPECT, UPLOAD, START]);
    let bodies = daemon.asked.lock();
    let created: Value = serde_json::from_slice(&bodies[0].1).unwrap();
    assert_eq!((&created["Hostname"], &created["Image"]), (&json!("m"), &json!("node:1")));
    assert_eq!(created["Labels"], json!({LABEL_CLUSTER: "ours", LABEL_MACHINE: "m", LABEL_UID: "uid-of-m"}));
    assert_eq!(created["HostConfig"]["NetworkMode"], "kind");
    let is_in = |body: &Bytes| String::from_utf8_lossy(body).contains("hunter2");
    assert!(
        is_in(&bodies[2].1) && !is_in(&bodies[0].1),
        "user data are in the container alone, not in its configuration"
    );
}

#[tokio::test]
async fn a_second_call_completes_the_first() {
    let halfway = Daemon::new([refused(409), container("ours", "m", "created"), done(200), done(304)]);
    halfway.driver.create(machine("m")).await.unwrap();
    assert_eq!(asked_path(&halfway), [CREATE, INSPECT, UPLOAD, START]);
    let done = Daemon::new([refused(409), container("ours", "m", "running")]);
    done.driver.create(machine("m")).await.unwrap();
    assert_eq!(asked_path(&done), [CREATE, INSPECT]);
}

#[tokio::test]
async fn a_creation_that_cannot_succeed_says_why() {
    for (answers, code, text) in [
        ([refused(404), done(200)], Code::FailedPrecondition, "the image and the network of MachineClass \"class\""),
        ([refused(409), container("theirs", "m", "running")], Code::AlreadyExists, "its labels say cluster \"theirs\""),
        ([refused(409), container("ours", "m", "removing")], Code::FailedPrecondition, "is being deleted"),
        ([refused(500), done(200)], Code::Unavailable, "docker answers 500: the reason"),
    ] {
        let daemon = Daemon::new(answers);
        let error = daemon.driver.create(machine("m")).await.unwrap_err();
        assert_eq!((error.code, error.mismatch), (code, None), "{error}");
        assert!(error.message.contains(text), "{error}");
    }
}

#[tokio::test]
async fn a_container_that_never_started_is_not_found_and_is_deleted() {
    let daemon = Daemon::new([container("ours", "m", "created"), container("ours", "m", "created"), done(204)]);
    assert_eq!(daemon.driver.status(machine("m")).await.unwrap_err().code, Code::NotFound);
    daemon.driver.delete(machine("m")).await.unwrap();
    assert_eq!(asked_path(&daemon), [INSPECT, INSPECT, REMOVE]);
}

#[tokio::test]
async fn a_deletion_succeeds_if_there_is_nothing_or_it_is_under_way() {
    let daemon = Daemon::new([refused(404), container("ours", "m", "removing"), refused(409)]);
    daemon.driver.delete(machine("m")).await.unwrap();
    daemon.driver.delete(machine("m")).await.unwrap();
    assert_eq!(asked_path(&daemon), [INSPECT, INSPECT, REMOVE]);
}

#[tokio::test]
async fn a_daemon_that_is_away_is_unavailable() {
    let driver = LocalDriver::new(Path::new("/nonexistent/docker.sock"), &Leadership::default());
    let error = driver.create(machine("m")).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    assert!(error.message.contains("docker cannot be reached at /nonexistent/docker.sock"), "{error}");
}
