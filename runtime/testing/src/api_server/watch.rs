//! Watches: streams of changes, with bookmarks, and with 410 Gone where the history ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream;
use http::header;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::handle::Incoming;
use super::pace::{Bookmarks, Pace};
use super::route::{Resource, Route};
use super::selector::Selector;
use super::store::{Change, Refused, at_version};
use super::{Shared, refusal};
use super::{answer, list};

const TOO_OLD: &str = "The resourceVersion for the provided watch is too old.";

pub(super) struct Watcher {
    shared: Arc<Shared>,
    wake: tokio::sync::watch::Receiver<u64>,
    number: u64,
    resource: Resource,
    selector: Selector,
    /// Whether it sends only the metadata of objects.
    is_metadata: bool,
    reached: u64,
    /// When the next delayed change arrives.
    due: Option<Instant>,
    bookmarks: Option<Bookmarks>,
    /// When the next bookmark is due.
    bookmark_at: Option<Instant>,
    until: Instant,
    /// Lines that have not been sent yet.
    ready: VecDeque<Bytes>,
    /// No more events follow. After an error the client has to close the watch; the server does so only at its timeout.
    over: bool,
}

impl Watcher {
    /// `as_of`: the version of the initial objects, if the watch begins with the existing ones.
    pub(super) fn open(
        shared: &Arc<Shared>,
        request: &Incoming,
        route: &Route,
        as_of: Option<u64>,
    ) -> Result<Self, Refused> {
        let selector = Selector::of(route)?;
        list::check_watch_options(route)?;
        let timeout = route.get("timeoutSeconds").parse().unwrap_or(1_800);
        let (now, bookmarks) = (Instant::now(), shared.watches.bookmarks());
        let until = now + Duration::from_secs(timeout);
        let bookmarks = route.is_set("allowWatchBookmarks").then_some(bookmarks);
        let mut watcher = Self {
            shared: shared.clone(),
            wake: shared.watches.subscribe(),
            number: shared.watches.open(request.uri.path(), request.header(header::USER_AGENT)),
            resource: route.resource.clone(),
            selector,
            is_metadata: request.wants_metadata(),
            reached: 0,
            due: None,
            bookmarks,
            bookmark_at: bookmarks.and_then(|bookmarks| bookmarks.next(now, until)),
            until,
            ready: VecDeque::new(),
            over: false,
        };
        watcher.begin(route, as_of)?;
        Ok(watcher)
    }

    /// Without a version, or with version 0, a watch begins with all existing objects.
    fn begin(&mut self, route: &Route, as_of: Option<u64>) -> Result<(), Refused> {
        let is_open = matches!(route.get("resourceVersion"), "" | "0") && !route.has("resourceVersionMatch");
        let initial = route.is_set("sendInitialEvents") || is_open && !route.has("sendInitialEvents");
        match route.get("resourceVersion").parse().unwrap_or(0) {
            0 => {}
            _ if initial => {}
            version => {
                self.reached = version;
                return Ok(());
            }
        }
        let store = self.shared.store.lock();
        self.reached = as_of.unwrap_or_else(|| store.version()).min(store.version());
        let objects = store.list_as_of(&self.resource, &self.selector, self.reached);
        let objects = objects.ok_or_else(|| refusal::expired(TOO_OLD))?;
        self.ready.extend(objects.iter().map(|object| event("ADDED", object, self.is_metadata)));
        drop(store);
        if initial && self.bookmarks.is_some() {
            let bookmark = self.bookmark(Some(json!({ "k8s.io/initial-events-end": "true" })));
            self.ready.push_back(bookmark);
        }
        Ok(())
    }

    fn bookmark(&self, annotations: Option<Value>) -> Bytes {
        let kind = self.shared.store.lock().kind(&self.resource).name.clone();
        let mut metadata = json!({ "resourceVersion": self.reached.to_string() });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let object = json!({ "apiVersion": self.resource.api_version(), "kind": kind, "metadata": metadata });
        event("BOOKMARK", &object, self.is_metadata)
    }

    /// The events as lines of the answer's body.
    pub(super) fn into_lines(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, |mut watcher| async move {
            let line = watcher.next().await?;
            Some((line, watcher))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.wake.borrow_and_update();
            if self.shared.watches.is_broken(self.number) {
                return None;
            }
            let pace = self.shared.watches.pace(self.number);
            let held = pace == Pace::Held;
            let speaks = !held && !self.over;
            if !held {
                self.catch_up(pace);
                if let Some(line) = self.ready.pop_front() {
                    return Some(line);
                }
            }
            tokio::select! {
                biased;
                changed = self.wake.changed() => changed.ok()?,
                () = sleep_until(self.due.unwrap_or(self.until)), if !held && self.due.is_some() => {}
                () = sleep_until(self.until), if !held => return None,
                () = sleep_until(self.bookmark_at.unwrap_or(self.until)), if speaks && self.bookmark_at.is_some() => {
                    self.bookmark_at = self.bookmarks.and_then(|bookmarks| bookmarks.next(Instant::now(), self.until));
                    // A watch from a version in the future gets no bookmark before that version.
                    if self.reached <= self.shared.store.lock().version() {
                        return Some(self.bookmark(None));
                    }
                }
            }
        }
    }

    fn catch_up(&mut self, pace: Pace) {
        if self.over || !self.ready.is_empty() {
            return;
        }
        self.due = None;
        let lag = if let Pace::Late(lag) = pace { lag } else { Duration::ZERO };
        let store = self.shared.store.lock();
        let Some(changes) = store.changes_after(self.reached) else {
            let message = format!("too old resource version: {} ({})", self.reached, store.version());
            self.ready.push_back(event("ERROR", &answer::status(&refusal::expired(&message).status), false));
            self.over = true;
            return;
        };
        for change in changes {
            if change.at + lag > Instant::now() {
                self.due = Some(change.at + lag);
                break;
            }
            self.reached = change.version;
            if change.id.resource == self.resource {
                self.ready.extend(select(change, &self.selector, self.is_metadata));
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.watches.close(self.number);
    }
}

/// A change as a watch with a selector sees it.
fn select(change: &Change, selector: &Selector, is_metadata: bool) -> Option<Bytes> {
    let selected = |object: &Option<Arc<Value>>| object.as_deref().is_some_and(|object| selector.matches(object));
    match (selected(&change.old), selected(&change.new)) {
        (false, true) => Some(event("ADDED", &change.last, is_metadata)),
        (true, true) => Some(event("MODIFIED", &change.last, is_metadata)),
        // The new form is not selected: the watch sees a deletion with the old form.
        (true, false) => {
            let old = change.old.as_deref().cloned().unwrap_or_default();
            Some(event("DELETED", &at_version(old, change.version), is_metadata))
        }
        (false, false) => None,
    }
}

/// The line of an event, with the metadata alone if the client asked for that.
fn event(kind: &'static str, object: &Value, is_metadata: bool) -> Bytes {
    #[derive(Serialize)]
    struct Event<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        object: &'a Value,
    }
    let partial = is_metadata.then(|| list::partial(object));
    // Serializing a `Value` cannot fail.
    let mut line = serde_json::to_vec(&Event { kind, object: partial.as_ref().unwrap_or(object) }).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
