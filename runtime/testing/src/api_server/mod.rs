//! An API server in process, for tests: no schemas, no network, and controllers only on request
//! ([`ApiServer::run_controllers`]).
//!
//! It is a [`tower::Service`] under kube's client. It follows a real server in versions, UIDs, generations, finalizers, the
//! status endpoint, preconditions, server-side apply with field ownership, JSON and merge patches, paginated lists, and
//! watches with bookmarks and expired history. Its error messages are the same. It serves every group, version and kind that
//! a client writes.
//!
//! It does not validate, default, convert or check permissions. Its controllers collect garbage, empty terminating
//! namespaces, and maintain the status of disruption budgets.
//! Tests inject faults ([`ApiServer::fail_next`]) and read the requests that were made ([`ApiServer::requests`]).
//!
//! # Guarantees
//!
//! - The same requests in the same order get the same answers, names and UIDs included.
//! - It waits with tokio's timers and reads the time of day only as [`ApiServer::with_time`] says: with both simulated,
//!   it uses no real time.

mod answer;
mod budgets;
mod checks;
mod controllers;
mod delete;
mod evict;
mod fault;
mod fields;
mod form;
mod garbage;
mod handle;
mod kinds;
mod limits;
mod list;
mod namespaces;
mod pace;
mod refusal;
mod route;
mod scale;
mod selector;
mod store;
mod strategic;
mod validations;
mod watch;
mod write;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use http::{Request, Response, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tower::BoxError;

pub use self::answer::AnswerBody;
pub use self::controllers::Controllers;
use self::delete::DeleteOptions;
pub use self::fault::{Fault, Match};
use self::handle::Incoming;
use self::pace::Watches;
pub use self::pace::{Bookmarks, OpenWatch, Pace};
use self::route::{Id, Resource, Route};
use self::selector::Selector;
use self::store::{Change, Store, Writer};
use crate::stand_in;

/// A request that a client made.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    /// The verb of Kubernetes' authorization: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// The path without the query.
    pub path: String,
    /// The query.
    pub query: String,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// The `Content-Type` header.
    pub content_type: String,
    /// The `Accept` header.
    pub accept: String,
    /// The `traceparent` header, if present.
    pub traceparent: Option<String>,
    /// The body, if it was JSON.
    pub body: Option<Value>,
    /// The status code of the answer; 0 while there is no answer, and if the answer was lost.
    pub status: u16,
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeRecord {
    /// The resource version after the change.
    pub version: u64,
    /// The path of the object.
    pub path: String,
    /// The object before the change; `None` if it was created.
    pub old: Option<Arc<Value>>,
    /// The object after the change; `None` if it was deleted.
    pub new: Option<Arc<Value>>,
}

/// The server. Cheap to clone; all clones are the same server.
#[derive(Clone, Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    watches: Watches,
    observer: Mutex<Observer>,
    time: Box<dyn Fn() -> Timestamp + Send + Sync>,
    faults: fault::Faults,
    requests: Mutex<Log>,
    unserved: Mutex<BTreeSet<(String, String)>>,
}

/// The objects of a server at one point in time.
#[derive(Clone, Debug)]
pub struct Backup(Store);

type Tell = Box<dyn FnMut(&ChangeRecord) + Send>;

/// A callback for every change, and the version up to which it has been called.
#[derive(Default)]
struct Observer {
    reached: u64,
    tell: Option<Tell>,
}

/// The recorded requests that [`ApiServer::take_requests`] has not yet returned.
#[derive(Default)]
struct Log {
    records: Vec<RequestRecord>,
    taken: usize,
    is_closed: bool,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiServer {
    /// An empty server that uses the system clock.
    pub fn new() -> Self {
        Self::with_time(Timestamp::now)
    }

    /// An empty server that uses `time` as its clock.
    pub fn with_time(time: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let shared = Shared {
            store: Mutex::default(),
            watches: Watches::default(),
            observer: Mutex::default(),
            time: Box::new(time),
            faults: fault::Faults::default(),
            requests: Mutex::default(),
            unserved: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A client of this server. Needs a tokio runtime.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// Stores an object, status included, under the path of its collection, such as
    /// `/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines`. Replaces an existing object.
    ///
    /// Returns the stored object; `null` if the path is not a collection or the object has no name.
    pub fn seed(&self, collection: &str, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let Some(id) = parse_id(&format!("{collection}/{name}")) else { return Value::Null };
        let mut store = self.shared.store.lock();
        let writer = Writer::direct("seed", (self.shared.time)());
        let stored = store.seed(&id, object, &writer);
        drop(store);
        self.shared.announce();
        (*stored).clone()
    }

    /// Changes an object by its path, status included, as another client would. Returns the stored object, if it exists.
    pub fn change(&self, path: &str, edit: impl FnOnce(&mut Value)) -> Option<Value> {
        let id = parse_id(path)?;
        let mut store = self.shared.store.lock();
        let mut object = (*store.get(&id).ok()?).clone();
        edit(&mut object);
        let writer = Writer::direct("somebody", (self.shared.time)());
        let stored = store.seed(&id, object, &writer);
        drop(store);
        self.shared.announce();
        Some((*stored).clone())
    }

    /// Deletes an object by its path, as kubectl does. Returns whether it existed.
    pub fn delete(&self, path: &str) -> bool {
        let Some(id) = parse_id(path) else { return false };
        let writer = Writer::direct("somebody", (self.shared.time)());
        let deleted = self.shared.store.lock().delete(&id, &DeleteOptions::default(), &writer).is_ok();
        self.shared.announce();
        deleted
    }

    /// Removes an object by its path at once and ignores its finalizers. Returns its last form, if it existed.
    pub fn remove(&self, path: &str) -> Option<Value> {
        let id = parse_id(path)?;
        let mut store = self.shared.store.lock();
        let last = store.evaporate(&id).ok()?;
        drop(store);
        self.shared.announce();
        Some((*last).clone())
    }

    /// The object at a path.
    pub fn object(&self, path: &str) -> Option<Arc<Value>> {
        self.shared.store.lock().get(&parse_id(path)?).ok()
    }

    /// The objects of a collection, ordered by name.
    pub fn objects(&self, collection: &str) -> Vec<Arc<Value>> {
        let Some((route, selector)) = parse_collection(collection) else { return vec![] };
        self.shared.store.lock().list(&route.resource, &selector)
    }

    /// The resource version of the newest write.
    pub fn version(&self) -> u64 {
        self.shared.store.lock().version()
    }

    /// Calls `decide` for each request when it arrives, before all other faults. If it returns `None`, the other faults apply.
    /// It may change the server, to simulate a client that was faster; it must not send requests. Replaces an earlier callback.
    ///
    /// The callback must not hold a strong [`ApiServer`] of this server forever: remove it with [`ApiServer::decide_no_more`].
    pub fn decide(&self, decide: impl FnMut(&RequestRecord) -> Option<Fault> + Send + 'static) {
        self.shared.faults.set_decide(Some(Box::new(decide)));
    }

    /// Removes the callback of [`ApiServer::decide`].
    pub fn decide_no_more(&self) {
        self.shared.faults.set_decide(None);
    }

    /// Calls `tell` for each change from now on, in order, before any watch sees the change and before its request is answered.
    /// The callback must not write. Replaces an earlier callback. [`ApiServer::restore`] does not call it.
    pub fn observe(&self, tell: impl FnMut(&ChangeRecord) + Send + 'static) {
        *self.shared.observer.lock() = Observer { reached: self.version(), tell: Some(Box::new(tell)) };
    }

    /// Makes the next matching request fail with this fault.
    pub fn fail_next(&self, requests: Match, fault: Fault) {
        self.shared.faults.add(requests, fault, Some(1));
    }

    /// Makes the next `times` matching requests fail with this fault.
    pub fn fail_times(&self, times: usize, requests: Match, fault: Fault) {
        if times > 0 {
            self.shared.faults.add(requests, fault, Some(times));
        }
    }

    /// Makes all matching requests fail with this fault, until [`ApiServer::heal`].
    pub fn fail_always(&self, requests: Match, fault: Fault) {
        self.shared.faults.add(requests, fault, None);
    }

    /// Removes all faults. The callback of [`ApiServer::decide`] stays.
    pub fn heal(&self) {
        self.shared.faults.clear();
    }

    /// All requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.shared.requests.lock().records.clone()
    }

    /// The requests since the last call, in the order of arrival.
    pub fn take_requests(&self) -> Vec<RequestRecord> {
        let mut log = self.shared.requests.lock();
        log.taken += log.records.len();
        std::mem::take(&mut log.records)
    }

    /// Stops recording requests: [`ApiServer::requests`] stays empty. It bounds memory for tests that make very many requests.
    pub fn keep_no_requests(&self) {
        self.shared.requests.lock().is_closed = true;
    }

    /// The open watches, in the order of opening.
    pub fn open_watches(&self) -> Vec<OpenWatch> {
        self.shared.watches.list()
    }

    /// Breaks the connection of every open watch.
    pub fn break_watches(&self) {
        self.shared.watches.break_those(|_| true);
    }

    /// Breaks the connections of the matching open watches.
    pub fn break_watches_of(&self, watches: &Match) {
        self.shared.watches.break_those(|watch| watches.fits("watch", &watch.path, &watch.user_agent));
    }

    /// Breaks the connection of one open watch.
    pub fn break_watch(&self, number: u64) {
        self.shared.watches.break_those(|watch| watch.number == number);
    }

    /// Keeps all watches open and silent, or resumes them. Caches fall behind meanwhile.
    pub fn hold_watches(&self, held: bool) {
        self.pace_watches(Match::any(), if held { Pace::Held } else { Pace::Live });
    }

    /// Sets how fast events arrive on the matching watches, both open and future ones. If several calls match a watch, the
    /// latest one counts.
    pub fn pace_watches(&self, watches: Match, pace: Pace) {
        self.shared.watches.set_pace(watches, pace);
    }

    /// Sets when watches that are opened from now on get bookmarks while nothing changes.
    pub fn send_bookmarks(&self, bookmarks: Bookmarks) {
        self.shared.watches.set_bookmarks(bookmarks);
    }

    /// Forgets the history: a watch from an earlier version fails with 410 Gone.
    pub fn compact(&self) {
        self.shared.store.lock().compact();
        // Wake the watches, so that those that lag behind fail at once.
        self.shared.watches.wake();
    }

    /// A copy of all objects, for [`ApiServer::restore`].
    pub fn back_up(&self) -> Backup {
        Backup(self.shared.store.lock().clone())
    }

    /// Restores the objects of a backup: later writes are lost, and their resource versions are assigned a second time; their UIDs
    /// are not. As with a real server, a watch from a version in the future sees no events. The observer is not called.
    pub fn restore(&self, backup: &Backup) {
        self.shared.store.lock().set_back(&backup.0);
        self.shared.announce();
    }

    /// Declares a kind by its `CustomResourceDefinition`: unknown fields are dropped, and lists are merged as the schema says.
    /// Nothing else is validated, and nothing is defaulted.
    pub fn declare(&self, definition: &Value) {
        self.shared.store.lock().declare(definition);
    }

    /// From now on, objects can be created only in namespaces that exist and are not terminating.
    pub fn enforce_namespaces(&self) {
        self.shared.store.lock().enforces_namespaces = true;
    }

    /// Runs controllers from now on, until the last clone of the server is dropped. Needs a tokio runtime.
    pub fn run_controllers(&self, controllers: Controllers) {
        tokio::spawn(stand_in::polled(controllers::run(Arc::downgrade(&self.shared), controllers)));
    }

    /// Stops serving a kind, as if its CRD were deleted: 404 for all its paths.
    pub fn unserve(&self, group: &str, plural: &str) {
        self.shared.unserved.lock().insert((group.to_owned(), plural.to_owned()));
    }
}

fn parse_id(path: &str) -> Option<Id> {
    Route::parse(&path.parse().ok()?).ok()?.id().ok()
}

fn parse_collection(path: &str) -> Option<(Route, Selector)> {
    let route = Route::parse(&path.parse().ok()?).ok()?;
    let selector = Selector::of(&route).ok()?;
    Some((route, selector))
}

impl Shared {
    fn is_unserved(&self, resource: &Resource) -> bool {
        self.unserved.lock().contains(&(resource.group.clone(), resource.plural.clone()))
    }

    /// Notifies the observer and the watches of new changes.
    fn announce(&self) {
        let mut observer = self.observer.lock();
        let Observer { reached, tell } = &mut *observer;
        if let Some(tell) = tell {
            let store = self.store.lock();
            let news: Vec<_> = store.changes_after(*reached).into_iter().flatten().map(ChangeRecord::of).collect();
            *reached = store.version();
            drop(store);
            news.iter().for_each(tell);
        }
        drop(observer);
        self.watches.wake();
    }

    /// Records a request, and returns the fault that applies to it.
    fn record(&self, request: &Incoming) -> (usize, Option<Fault>) {
        let traceparent = request.headers.get("traceparent").and_then(|value| value.to_str().ok());
        let record = RequestRecord {
            verb: Route::parse(&request.uri).map_or("get", |route| route.verb(&request.method)),
            path: request.uri.path().to_owned(),
            query: request.uri.query().unwrap_or("").to_owned(),
            user_agent: request.header(header::USER_AGENT).to_owned(),
            content_type: request.header(header::CONTENT_TYPE).to_owned(),
            accept: request.header(header::ACCEPT).to_owned(),
            traceparent: traceparent.map(str::to_owned),
            body: serde_json::from_slice(&request.body).ok(),
            status: 0,
        };
        let fault = self.faults.hit(&record);
        let mut log = self.requests.lock();
        if log.is_closed {
            log.taken += 1;
            return (log.taken - 1, fault);
        }
        log.records.push(record);
        (log.taken + log.records.len() - 1, fault)
    }

    fn record_answer(&self, index: usize, status: u16) {
        let mut log = self.requests.lock();
        let index = index.checked_sub(log.taken);
        if let Some(record) = index.and_then(|index| log.records.get_mut(index)) {
            record.status = status;
        }
    }
}

impl ChangeRecord {
    fn of(change: &Change) -> Self {
        Self { version: change.version, path: change.id.path(), old: change.old.clone(), new: change.new.clone() }
    }
}

impl tower::Service<Request<Body>> for ApiServer {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = self.shared.clone();
        stand_in::within(|| {
            // A separate task: a request that was sent takes effect even if the client drops it.
            let exchange = tokio::spawn(stand_in::polled(async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let request = Incoming { method: parts.method, uri: parts.uri, headers: parts.headers, body };
                exchange(&shared, request).await
            }));
            async move { exchange.await? }.boxed()
        })
    }
}

/// Answers a request, or applies its fault.
async fn exchange(shared: &Arc<Shared>, request: Incoming) -> Result<Response<AnswerBody>, BoxError> {
    let (index, fault) = shared.record(&request);
    // As on a network, the answer never arrives within the call itself.
    tokio::task::yield_now().await;
    let dated = |answer| answer::dated(answer, (shared.time)());
    let handle = |as_of| dated(handle::handle(shared, &request, as_of));
    let answer = match fault {
        None => {
            list::wait(shared, &request).await;
            handle(None)
        }
        Some(Fault::AsOf(version)) => handle(Some(version)),
        Some(Fault::Status(code)) => dated(answer::refusal(&refusal::of_code(code))),
        Some(Fault::Refuse(status)) => dated(answer::refusal(&(*status).into())),
        Some(Fault::Unreachable) => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
        Some(Fault::LoseAnswer) => {
            handle(None);
            return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
        }
        Some(Fault::CommitLate(after)) => {
            tokio::spawn(stand_in::polled(commit_late(shared.clone(), request, after)));
            return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
        }
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            handle(None)
        }
        Some(Fault::AnswerLate(time)) => {
            let answer = handle(None);
            tokio::time::sleep(time).await;
            answer
        }
        Some(Fault::StatusAfter(code)) => {
            handle(None);
            dated(answer::refusal(&refusal::of_code(code)))
        }
        Some(Fault::Hang) => future::pending().await,
        Some(Fault::HangAfter) => {
            handle(None);
            future::pending().await
        }
    };
    shared.record_answer(index, answer.status().as_u16());
    Ok(answer)
}

async fn commit_late(shared: Arc<Shared>, request: Incoming, after: Duration) {
    tokio::time::sleep(after).await;
    handle::handle(&shared, &request, None);
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ApiServer").field("version", &self.store.lock().version()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
