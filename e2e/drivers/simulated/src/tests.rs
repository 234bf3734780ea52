//! The driver against a server with canned answers. The contract suite runs with the fake cloud, in `e2e/lab`.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, MachineRequest, Mismatch, SecretText};
use nodewright_driver_contract as contract;
use nodewright_runtime::leadership::Leadership;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{Options, SimulatedDriver};

/// How the server handles one request.
enum Answer {
    Json(u16, Value),
    Raw(&'static str),
    Hang,
    Cut,
}

/// A server that gives prepared answers in order, one connection each, and records the requests.
struct Canned {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Canned {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Canned {
    async fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, kept): (VecDeque<Answer>, _) = (answers.into_iter().collect(), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read_request(&mut stream).await;
                kept.lock().push(request);
                let text = match answer {
                    Answer::Json(status, body) => {
                        let body = body.to_string();
                        let length = body.len();
                        format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
                    }
                    Answer::Raw(text) => text.to_owned(),
                    Answer::Cut => continue,
                    Answer::Hang => {
                        open.push(stream);
                        continue;
                    }
                };
                stream.write_all(text.as_bytes()).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        Self { address, asked, task }
    }

    fn driver(&self) -> SimulatedDriver {
        let url = format!("http://{}/", self.address);
        let options = Options { call_timeout: Duration::from_millis(500), ..Options::new(url) };
        SimulatedDriver::new(&options, &Leadership::default()).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        let first_line = |request: &String| request.lines().next().unwrap_or_default().replace(" HTTP/1.1", "");
        self.asked.lock().iter().map(first_line).collect()
    }
}

/// Reads a request. Its body, if any, has the length of the `Content-Length` header.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0) {
                return text;
            }
        }
        let mut buffer = [0; 4_096];
        let read = stream.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..read]);
    }
}

fn class() -> Class {
    contract::class(&json!({"cluster": "c", "size": "large", "labels": {"a": "b"}}))
}

fn request(provider_id: Option<&str>) -> MachineRequest {
    let user_data = SecretText("secret words".into());
    MachineRequest { provider_id: provider_id.map(str::to_owned), user_data, ..contract::machine("m", class()) }
}

fn vm(id: &str, state: &str, cluster: &str) -> Value {
    json!({
        "id": id, "name": "m", "state": state, "tags": {"cluster": cluster, "machine": "m", "uid": "uid-of-m"},
        "providerID": format!("simulated:///{id}"), "nodeName": "node-m", "address": "10.0.0.1", "more": {},
    })
}

fn page(items: &[Value]) -> Answer {
    Answer::Json(200, json!({"items": items, "next": null}))
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    Answer::Json(status, json!({"code": code, "message": message}))
}

#[tokio::test]
async fn create_carries_the_token_and_tells_of_the_vm() {
    let cloud = Canned::new([Answer::Json(201, vm("vm-1", "pending", "c"))]).await;
    let instance = cloud.driver().create(request(None)).await.unwrap();
    assert_eq!((instance.provider_id.as_str(), instance.node_name.as_str()), ("simulated:///vm-1", "node-m"));
    let asked = cloud.asked.lock()[0].clone();
    let body: Value = serde_json::from_str(asked.split_once("\r\n\r\n").unwrap().1).unwrap();
    let expected = json!({
        "name": "m", "token": "uid-of-m", "tags": {"cluster": "c", "machine": "m", "uid": "uid-of-m"},
        "node": {"labels": {"a": "b"}, "taints": []}, "size": "large", "userData": "secret words",
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn create_finds_what_an_earlier_call_made_of_another_class() {
    let mismatch = || refusal(409, "AlreadyExists", "IdempotentParameterMismatch");
    let cloud = Canned::new([mismatch(), page(&[vm("vm-1", "running", "c")]), mismatch(), page(&[])]).await;
    assert_eq!(cloud.driver().create(request(None)).await.unwrap().provider_id, "simulated:///vm-1");
    assert_eq!(cloud.asked()[1], "GET /vms?limit=500&tag.cluster=c&tag.uid=uid-of-m");
    let error = cloud.driver().create(request(None)).await.unwrap_err();
    assert!(error.is_passing(), "not visible yet: {error}");
}

#[tokio::test]
async fn a_vm_in_deletion_is_none_to_begin_with() {
    let cloud = Canned::new([Answer::Json(200, vm("vm-1", "deleting", "c"))]).await;
    assert_eq!(cloud.driver().create(request(None)).await.unwrap_err().code, Code::FailedPrecondition);
}

#[tokio::test]
async fn every_kind_of_failure_has_its_code() {
    let cloud = Canned::new([
        Answer::Json(
            429,
            json!({"code": "ResourceExhausted", "message": "the quota of 3 vms is exhausted", "quota": true}),
        ),
        refusal(429, "ResourceExhausted", "no capacity"),
        refusal(400, "OK", "a lie"),
        Answer::Raw("HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 6\r\n\r\n<html>"),
        Answer::Raw("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\n<html>"),
        Answer::Raw("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 600\r\n\r\n{\"id\":"),
        Answer::Cut,
        Answer::Hang,
    ])
    .await;
    let driver = cloud.driver();
    for code in [
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        Code::Internal,
        Code::Unavailable,
        Code::Unknown,
        Code::Unknown,
        Code::Unknown,
        Code::DeadlineExceeded,
    ] {
        let error = driver.create(request(None)).await.unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(!error.message.contains("secret words"), "{error}");
    }
    let unreachable = SimulatedDriver::new(&Options::new("http://127.0.0.1:1"), &Leadership::default()).unwrap();
    let error = unreachable.create(request(None)).await.unwrap_err();
    assert!(error.code == Code::Unavailable && error.message.contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn status_finds_by_provider_id_or_by_name() {
    let cloud = Canned::new([
        Answer::Json(200, vm("vm-1", "running", "c")),
        refusal(404, "NotFound", "none"),
        page(&[]),
        page(&[]),
        page(&[vm("vm-1", "running", "c"), vm("vm-2", "pending", "c")]),
        page(&[vm("vm-1", "deleting", "c"), vm("vm-2", "pending", "c")]),
        page(&[vm("vm-1", "deleting", "c")]),
    ])
    .await;
    let driver = cloud.driver();
    let code = |result: super::Result<_>| result.map_err(|error| error.code);
    let by_id = || request(Some("simulated:///vm-1"));
    assert!(driver.status(by_id()).await.is_ok());
    assert_eq!(code(driver.status(by_id()).await), Err(Code::NotFound));
    assert_eq!(code(driver.status(request(None)).await), Err(Code::NotFound));
    assert_eq!(code(driver.status(request(None)).await), Err(Code::OutOfRange));
    assert_eq!(driver.status(request(None)).await.unwrap().provider_id, "simulated:///vm-2");
    assert_eq!(driver.status(request(None)).await.unwrap().provider_id, "simulated:///vm-1");
}

/// Tags of an existing VM `vm-9` that do not match Machine `m` of cluster `c`, and the expected mismatch.
fn foreign() -> [(Value, Mismatch, &'static str); 4] {
    [
        (json!({"cluster": "another", "machine": "m"}), Mismatch::Cluster, "cluster \"another\", machine \"m\""),
        (json!({"cluster": "c", "machine": "other"}), Mismatch::Machine, "cluster \"c\", machine \"other\""),
        (json!({"cluster": "another", "machine": "other"}), Mismatch::Machine, "machine \"other\""),
        (json!({}), Mismatch::Machine, "cluster (none), machine (none)"),
    ]
}

#[tokio::test]
async fn a_mismatch_says_whose_the_vm_is() {
    for (tags, mismatch, found) in foreign() {
        let mut named = vm("vm-9", "running", "c");
        named["tags"] = tags;
        let cloud = Canned::new([Answer::Json(200, named), page(&[])]).await;
        let error = cloud.driver().status(request(Some("simulated:///vm-9"))).await.unwrap_err();
        assert_eq!((error.code, error.mismatch), (Code::FailedPrecondition, Some(mismatch)), "{error}");
        for part in ["simulated:///vm-9", found, "cluster \"c\", machine \"m\""] {
            assert!(error.message.contains(part), "{part}: {error}");
        }
    }
}

#[tokio::test]
async fn delete_removes_all_that_is_the_machines() {
    let cloud = Canned::new([
        page(&[vm("vm-1", "running", "c"), vm("vm-2", "deleting", "c"), vm("vm-3", "stopped", "c")]),
        Answer::Json(202, vm("vm-1", "deleting", "c")),
        refusal(404, "NotFound", "gone meanwhile"),
    ])
    .await;
    cloud.driver().delete(request(Some("simulated:///vm-1"))).await.unwrap();
    let listed = "GET /vms?limit=500&tag.cluster=c&tag.machine=m";
    assert_eq!(cloud.asked(), [listed, "DELETE /vms/vm-1", "DELETE /vms/vm-3"]);
}

#[tokio::test]
async fn a_list_has_all_pages_or_fails() {
    let part =
        |id: &str, next: Option<&str>| Answer::Json(200, json!({"items": [vm(id, "running", "c")], "next": next}));
    let cloud = Canned::new([
        part("vm-1", Some("x y")),
        part("vm-2", None),
        part("vm-1", Some("again")),
        part("vm-1", Some("again")),
        part("vm-1", Some("more")),
        refusal(500, "Internal", "no second page"),
    ])
    .await;
    let driver = cloud.driver();
    let all = driver.list(class()).await.unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["simulated:///vm-1", "simulated:///vm-2"]);
    assert_eq!(cloud.asked()[1], "GET /vms?limit=500&tag.cluster=c&after=x%20y");
    assert!(driver.list(class()).await.unwrap_err().message.contains("cursor"));
    assert_eq!(driver.list(class()).await.unwrap_err().message, "no second page");
}

#[tokio::test]
async fn over_another_transport_the_same_is_asked_and_understood() {
    type Answer = std::io::Result<Response<Full<Bytes>>>;
    let ask = |answer: fn() -> Answer| async move {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
            kept.lock().push(format!("{} {}", request.method(), request.uri()));
            std::future::ready(answer())
        });
        let driver = SimulatedDriver::with_service(service, &Options::new("http://cloud/as/me")).unwrap();
        let answer = driver.status(request(Some("simulated:///vm-1"))).await;
        assert_eq!(*asked.lock(), ["GET http://cloud/as/me/vms/vm-1"]);
        answer.map(|instance| instance.provider_id).map_err(|error| error.code)
    };
    let answer = || Ok(Response::new(Full::from(vm("vm-1", "running", "c").to_string())));
    assert_eq!(ask(answer).await, Ok("simulated:///vm-1".to_owned()));
    let refused = || Err(std::io::ErrorKind::ConnectionRefused.into());
    assert_eq!(ask(refused).await, Err(Code::Unavailable), "it never arrived");
    let reset = || Err(std::io::ErrorKind::ConnectionReset.into());
    assert_eq!(ask(reset).await, Err(Code::Unknown), "it may have had an effect");
}

#[test]
fn a_url_that_leads_nowhere_is_refused() {
    for url in ["", "127.0.0.1:80", "https://127.0.0.1", "http://", "http://a?b=c", "http://a b"] {
        assert!(SimulatedDriver::new(&Options::new(url), &Leadership::default()).is_err(), "{url:?}");
    }
}

#[tokio::test]
async fn a_malformed_class_fails_before_anything_is_sent() {
    let cloud = Canned::new([]).await;
    let mut bad = request(None);
    bad.class.provider_spec = RawJson::from(&json!({"cluster": "c", "size": "huge"}));
    let error = cloud.driver().create(bad).await.unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("size"), "{error}");
    assert!(cloud.asked().is_empty());
}
