//! A minimal API server under kube's client: paginated lists, generated on demand and not stored; watches that stay open;
//! events when the measure sends them.
//!
//! It is not the fake API server of `nodewright-testing`: that would keep 100,000 machines as JSON values in the heap that is
//! measured, several times what the caches need. It also encodes an event after a change, which would be part of each latency.
//! Here the line of an event is ready before the clock starts.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures::{
    StreamExt,
    channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded},
    future::{Ready, ready},
    stream::{BoxStream, once},
};
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::fixture::Fixture;

/// The beginning of the line of a change.
const EVENT: &str = r#"{"type":"MODIFIED","object":"#;
/// The resource version before all others.
const FIRST: u64 = 4_000_000;

type Answer = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// The server: a number of Machines, and no ConfigMap until [`Server::touch`] creates one.
#[derive(Clone)]
pub(crate) struct Server(Arc<Shared>);

struct Shared {
    fixture: Fixture,
    count: usize,
    /// How many times all machines have changed.
    revision: AtomicU64,
    /// The resource version of the last event.
    version: AtomicU64,
    machines: Watches,
    maps: Watches,
}

/// The open watches of a kind.
struct Watches {
    open: Mutex<Vec<UnboundedSender<Bytes>>>,
    opened: watch::Sender<usize>,
}

impl Watches {
    fn new() -> Self {
        Self { open: Mutex::default(), opened: watch::Sender::new(0) }
    }

    fn open(&self) -> UnboundedReceiver<Bytes> {
        let (sender, lines) = unbounded();
        self.open.lock().push(sender);
        self.opened.send_modify(|times| *times += 1);
        lines
    }

    fn send(&self, line: &Bytes) {
        self.open.lock().retain(|watcher| watcher.unbounded_send(line.clone()).is_ok());
    }
}

impl Server {
    pub(crate) fn new(count: usize) -> Self {
        Self::of(count, Fixture::without(&[]))
    }

    /// A server of `count` machines from this fixture.
    pub(crate) fn of(count: usize, fixture: Fixture) -> Self {
        Self(Arc::new(Shared {
            fixture,
            count,
            revision: AtomicU64::new(0),
            version: AtomicU64::new(0),
            machines: Watches::new(),
            maps: Watches::new(),
        }))
    }

    /// Needs a tokio runtime.
    pub(crate) fn client(&self) -> kube::Client {
        let this = self.clone();
        kube::Client::new(tower::service_fn(move |request| this.answer(&request)), "default")
    }

    /// Resolves once the `times`th watch of machines begins: then the client has read a complete list.
    pub(crate) async fn watched(&self, times: usize) {
        let mut opened = self.0.machines.opened.subscribe();
        opened.wait_for(|opened| *opened >= times).await.expect("the server lives");
    }

    /// Resolves once both kinds are watched.
    pub(crate) async fn watched_all(&self) {
        self.watched(1).await;
        let mut opened = self.0.maps.opened.subscribe();
        opened.wait_for(|opened| *opened >= 1).await.expect("the server lives");
    }

    /// Makes the event of a change of a machine, and its version. The machine's heartbeats advance.
    pub(crate) fn event(&self, number: usize) -> (Bytes, u64) {
        let version = self.next_version();
        let mut line = EVENT.to_owned();
        self.0.fixture.write(number, version, version, &mut line);
        line.push_str("}\n");
        (line.into(), version)
    }

    /// Sends a line to the watches of machines.
    pub(crate) fn send(&self, line: &Bytes) {
        self.0.machines.send(line);
    }

    /// Changes the ConfigMap that all machines depend on.
    pub(crate) fn touch(&self) {
        let version = self.next_version();
        let map = format!(
            r#"{EVENT}{{"metadata":{{"name":"all","namespace":"default","uid":"all","resourceVersion":"{version}"}}}}}}"#
        );
        self.0.maps.send(&(map + "\n").into());
    }

    /// Changes every machine without an event.
    pub(crate) fn change_all(&self) {
        self.0.revision.fetch_add(1, Relaxed);
    }

    /// Ends the watches of machines with 410 Gone, so that clients list again.
    pub(crate) fn expire(&self) {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
        self.send(&Bytes::from(format!("{gone}\n")));
        self.0.machines.open.lock().clear();
    }

    fn next_version(&self) -> u64 {
        self.listed(self.0.count) + self.0.version.fetch_add(1, Relaxed) + 1
    }

    /// The version of a machine since the last change of all machines.
    fn listed(&self, number: usize) -> u64 {
        FIRST + self.0.revision.load(Relaxed) * self.0.count as u64 + number as u64
    }

    fn answer(&self, request: &Request<Body>) -> Ready<Result<Response<Answer>, Infallible>> {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let machines = path.ends_with("/machines");
        let body = if query.contains("watch=true") {
            let watches = if machines { &self.0.machines } else { &self.0.maps };
            watches.open().map(|line| Ok(Frame::data(line))).boxed()
        } else {
            let page = if machines { self.page(query) } else { self.list("ConfigMapList", "v1", "", "") };
            once(ready(Ok(Frame::data(page)))).boxed()
        };
        let answer = Response::builder().header("content-type", "application/json").body(StreamBody::new(body));
        ready(Ok(answer.expect("a response")))
    }

    fn page(&self, query: &str) -> Bytes {
        let value = |name| query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name));
        let number = |name| value(name).and_then(|(_, text)| text.parse::<usize>().ok());
        let (from, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(self.0.count));
        let to = (from + limit).min(self.0.count);
        let next = if to < self.0.count { to.to_string() } else { String::new() };
        let mut items = String::with_capacity((to - from) * 8_000);
        for machine in from..to {
            if machine > from {
                items.push(',');
            }
            self.0.fixture.write(machine, self.listed(machine), self.0.revision.load(Relaxed), &mut items);
        }
        self.list("MachineList", "machine.sapcloud.io/v1alpha1", &next, &items)
    }

    fn list(&self, kind: &str, api_version: &str, next: &str, items: &str) -> Bytes {
        let version = self.listed(self.0.count);
        format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{items}]}}"#
        )
        .into()
    }
}
