//! Watches: streams of changes, with bookmarks, and with "too old" where history ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::route::{Resource, Route};
use super::selector::Selector;
use super::store::{Change, at_version};
use super::{Shared, refusal};

/// How often a watch that asked for it is told the version that it has reached, as by a real server.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);

/// What ends or holds back watches from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signal {
    /// Raised by each write.
    pub(super) version: u64,
    /// Raised to break all watches that are open.
    pub(super) broken: u64,
    /// While set, watches stay open and deliver nothing.
    pub(super) held: bool,
}

/// One open watch.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    signal: watch::Receiver<Signal>,
    broken: u64,
    resource: Resource,
    selector: Selector,
    reached: u64,
    bookmarks: Option<Instant>,
    until: Instant,
    ready: VecDeque<Value>,
    over: bool,
}

impl Watcher {
    pub(super) fn open(shared: &Arc<Shared>, route: &Route, selector: Selector) -> Self {
        let signal = shared.signal.subscribe();
        let broken = signal.borrow().broken;
        let timeout = route.get("timeoutSeconds").parse().unwrap_or(1_800);
        let mut watcher = Self {
            shared: shared.clone(),
            signal,
            broken,
            resource: route.resource.clone(),
            selector,
            reached: 0,
            bookmarks: route.is_set("allowWatchBookmarks").then(|| Instant::now() + BOOKMARK_INTERVAL),
            until: Instant::now() + Duration::from_secs(timeout),
            ready: VecDeque::new(),
            over: false,
        };
        watcher.begin(route);
        watcher
    }

    /// Without a version, or with 0, a watch begins with all that is there.
    fn begin(&mut self, route: &Route) {
        let store = self.shared.store.lock();
        let initial = route.is_set("sendInitialEvents");
        match route.get("resourceVersion").parse().unwrap_or(0) {
            0 => {}
            _ if initial => {}
            version => {
                self.reached = version;
                return;
            }
        }
        self.reached = store.version();
        let objects = store.list(&self.resource, &self.selector);
        self.ready.extend(objects.iter().map(|object| event("ADDED", object)));
        drop(store);
        if initial {
            let mut bookmark = self.bookmark();
            bookmark["object"]["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
            self.ready.push_back(bookmark);
        }
    }

    fn bookmark(&self) -> Value {
        let kind = self.shared.store.lock().kind(&self.resource);
        let metadata = json!({ "resourceVersion": self.reached.to_string(), "creationTimestamp": null });
        let object = json!({ "apiVersion": self.resource.api_version(), "kind": kind, "metadata": metadata });
        event("BOOKMARK", &object)
    }

    /// The events as lines, as they stand in the answer's body.
    pub(super) fn into_lines(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, |mut watcher| async move {
            let event = watcher.next().await?;
            Some((Bytes::from(format!("{event}\n")), watcher))
        })
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            let signal = *self.signal.borrow_and_update();
            if signal.broken != self.broken {
                return None;
            }
            if !signal.held {
                self.catch_up();
                if let Some(event) = self.ready.pop_front() {
                    return Some(event);
                }
            }
            if self.over {
                return None;
            }
            tokio::select! {
                biased;
                changed = self.signal.changed() => changed.ok()?,
                () = sleep_until(self.until) => return None,
                () = sleep_until(self.bookmarks.unwrap_or(self.until)), if !signal.held => {
                    self.bookmarks = Some(Instant::now() + BOOKMARK_INTERVAL);
                    // Whoever asked for what is yet to come is told nothing before.
                    if self.reached <= self.shared.store.lock().version() {
                        return Some(self.bookmark());
                    }
                }
            }
        }
    }

    fn catch_up(&mut self) {
        if self.over || !self.ready.is_empty() {
            return;
        }
        let store = self.shared.store.lock();
        if let Some(changes) = store.changes_after(self.reached, &self.resource) {
            let selector = &self.selector;
            self.ready.extend(changes.iter().filter_map(|change| select(change, selector)));
            // A watch from the future waits until the server has got there.
            self.reached = self.reached.max(store.version());
            return;
        }
        let message = format!("too old resource version: {} ({})", self.reached, store.version());
        let status = serde_json::to_value(refusal::expired(&message)).unwrap_or_default();
        self.ready.push_back(event("ERROR", &super::answer::with_kind(status)));
        self.over = true;
    }
}

/// A change as those see it who selected some objects only.
fn select(change: &Change, selector: &Selector) -> Option<Value> {
    let selected = |object: &Option<Arc<Value>>| object.as_deref().is_some_and(|object| selector.matches(object));
    match (selected(&change.old), selected(&change.new)) {
        (false, true) => Some(event("ADDED", &change.last)),
        (true, true) => Some(event("MODIFIED", &change.last)),
        // Whoever did not select what it has become sees what it was.
        (true, false) => {
            let old = change.old.as_deref().cloned().unwrap_or_default();
            Some(event("DELETED", &at_version(old, change.version)))
        }
        (false, false) => None,
    }
}

fn event(kind: &str, object: &Value) -> Value {
    json!({ "type": kind, "object": object })
}
