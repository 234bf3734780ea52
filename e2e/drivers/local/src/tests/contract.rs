//! The contract suite with a docker daemon in memory, on paused time. `make e2e-kind` runs it with a real daemon.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::{pending, ready},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage, missing};
use percent_encoding::percent_decode_str;
use tokio::{
    io::DuplexStream,
    time::{Instant, sleep},
};

use super::*;

/// How long a request is under way, an answer too, and how long a container takes to end.
const LATENCY: Duration = Duration::from_millis(20);
const REMOVAL: Duration = Duration::from_millis(200);

#[tokio::test(start_paused = true)]
async fn the_driver_keeps_the_contract() {
    let report = contract::run(&Computer::default()).await;
    report.assert_kept();
    // Docker has no credentials, hides nothing, makes one container of a name, attaches no volumes, and knows no zones.
    let skipped = [
        "rejected_credentials",
        "several_vms",
        "delete_hidden",
        "hidden_vm",
        "no_capacity",
        "volume_ids",
        "described",
        "power",
        "unowned",
    ];
    assert_eq!(report.skipped(), skipped);
}

/// A computer with a docker daemon.
#[derive(Clone, Default)]
struct Computer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    containers: BTreeMap<String, FakeContainer>,
    created: usize,
    outage: Option<Outage>,
}

struct FakeContainer {
    id: String,
    hostname: String,
    labels: Value,
    status: &'static str,
    gone_at: Option<Instant>,
}

impl FakeContainer {
    fn inspect(&self) -> Value {
        json!({"Id": self.id, "State": {"Status": self.status}, "Config": {"Labels": self.labels}})
    }
}

impl State {
    fn existing(&mut self) -> &mut BTreeMap<String, FakeContainer> {
        self.containers.retain(|_, container| container.gone_at.is_none_or(|at| at > Instant::now()));
        &mut self.containers
    }

    /// The container of a name or an id.
    fn container(&mut self, name: &str) -> Option<&mut FakeContainer> {
        self.existing().iter_mut().find(|(own, container)| *own == name || container.id == name).map(|(_, found)| found)
    }

    fn create(&mut self, name: &str, order: &Value) -> (u16, Value) {
        if self.container(name).is_some() {
            return refused(409);
        }
        self.created += 1;
        let id = format!("{:064x}", self.created);
        let hostname = order["Hostname"].as_str().unwrap_or_default().to_owned();
        let labels = order["Labels"].clone();
        let container = FakeContainer { id, hostname, labels, status: "created", gone_at: None };
        self.containers.insert(name.to_owned(), container);
        done(201)
    }

    fn list(&mut self, label: &str) -> (u16, Value) {
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        let labelled = self.existing().values().filter(|container| container.labels[key] == *value);
        (200, labelled.map(|container| json!({"Id": container.id, "Labels": container.labels})).collect())
    }

    fn start(&mut self, id: &str) -> (u16, Value) {
        match self.container(id) {
            None => refused(404),
            Some(container) if container.status == "running" => done(304),
            // The kernel refuses it: sethostname fails.
            Some(container) if container.hostname.len() > 64 => refused(500),
            Some(container) => {
                container.status = "running";
                done(204)
            }
        }
    }

    fn remove(&mut self, id: &str) -> (u16, Value) {
        match self.container(id) {
            None => refused(404),
            Some(container) if container.gone_at.is_some() => refused(409),
            Some(container) => {
                container.status = "removing";
                container.gone_at = Some(Instant::now() + REMOVAL);
                done(204)
            }
        }
    }

    fn act(&mut self, method: &Method, uri: &Uri, body: &Bytes) -> (u16, Value) {
        let query = percent_decode_str(uri.query().unwrap_or_default()).decode_utf8_lossy().into_owned();
        let path: Vec<&str> = uri.path().split('/').skip(2).collect();
        match (method.as_str(), path.as_slice()) {
            ("POST", ["create"]) => {
                let name = query.trim_start_matches("name=");
                self.create(name, &serde_json::from_slice(body).unwrap())
            }
            ("GET", ["json"]) => {
                let filters: Value = serde_json::from_str(query.split_once("filters=").unwrap().1).unwrap();
                self.list(filters["label"][0].as_str().unwrap())
            }
            ("GET", [name, "json"]) => {
                self.container(&decoded(name)).map_or_else(|| refused(404), |found| (200, found.inspect()))
            }
            ("PUT", [id, "archive"]) => self.container(id).map_or_else(|| refused(404), |_| done(200)),
            ("POST", [id, "start"]) => self.start(id),
            ("DELETE", [id]) => self.remove(id),
            _ => refused(400),
        }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl Computer {
    async fn serve(self, stream: DuplexStream) {
        let answer = service_fn(move |request: Request<Incoming>| {
            // What the daemon has begun it ends, also when its client has gone.
            let answer = tokio::spawn(self.clone().answer(request));
            async move { Ok::<_, Infallible>(answer.await.unwrap()) }
        });
        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        sleep(LATENCY).await;
        let outage = self.0.lock().outage;
        let (status, answer) = match outage {
            Some(Outage::Silent) => pending().await,
            Some(Outage::Failing) => refused(500),
            Some(Outage::Full) | None => self.0.lock().act(&head.method, &head.uri, &body),
        };
        sleep(LATENCY).await;
        Response::builder().status(status).body(Full::new(Bytes::from(answer.to_string()))).unwrap()
    }

    fn done<T: Send + 'static>(&self, act: impl FnOnce(&mut State) -> T) -> Hook<'static, T> {
        ready(Ok(Some(act(&mut self.0.lock())))).boxed()
    }
}

impl Fixture for Computer {
    fn driver(&self) -> Arc<dyn Driver> {
        let computer = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (client, daemon) = tokio::io::duplex(1 << 16);
            tokio::spawn(computer.clone().serve(daemon));
            ready(Ok::<_, io::Error>(Wire(TokioIo::new(client))))
        });
        let docker = Docker::connected_by(connector, Path::new("docker.sock"), &Leadership::default());
        Arc::new(LocalDriver { docker })
    }

    fn class(&self, cluster: &str) -> Class {
        contract::class(&json!({"cluster": cluster, "image": "node:1"}))
    }

    fn provider_id_prefix(&self) -> &'static str {
        PROVIDER_ID_PREFIX
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let specs = [
            ("image", json!({"cluster": cluster, "image": [contract::SECRET]})),
            ("network", json!({"cluster": cluster, "image": "node:1", "network": ""})),
            ("password", json!({"cluster": cluster, "image": "node:1", "password": contract::SECRET})),
            ("cluster", json!({"image": "node:1"})),
        ];
        specs.map(|(path, spec)| InvalidSpec { path, spec: RawJson::from(&spec) }).into()
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        self.done(|state| state.existing().keys().map(|name| provider_id(name)).collect())
    }

    fn stop_vm(&self, provider_id: &str) -> Hook<'_, ()> {
        let name = provider_id.trim_start_matches(PROVIDER_ID_PREFIX);
        self.done(|state| state.container(name).unwrap().status = "exited")
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        self.done(|state| {
            state.create("bystander", &json!({"Labels": null}));
            state.container("bystander").unwrap().status = "running";
            provider_id("bystander")
        })
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        if outage == Outage::Full {
            return missing();
        }
        self.done(|state| state.outage = Some(outage))
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        self.done(|state| state.outage = None)
    }
}

/// A connection without a socket: paused time goes on only when nobody is busy, and it knows nothing of sockets.
struct Wire(TokioIo<DuplexStream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
