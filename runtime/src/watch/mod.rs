//! The watch loop: keeps one store in step with one collection of an API server.
//!
//! # Guarantees
//! * A failing watch slows no other. It respects `Retry-After`.
//! * It detects a black-holed connection within four minutes, because the server should have ended the watch by then.
//! * It probes an idle server (`crate::request::contact`) beside the open watch.
//! * After a gap, and after an interrupted list, it lists again from the quorum, and reports vanished objects as gone.
//! * It detects a server that was set back to an earlier version within five minutes, and replaces the store by its list. All
//!   other stores of the cluster are replaced by new lists as well, and nothing is planned from one of them before: two stores of
//!   different histories would show objects that never were at the same time.
//! * A log line, a metric and an event name each undecodable object. The other objects proceed.
//! * A panic in a change handler is caught and counted; the watch continues.
//!
//! # Assumptions
//! Versions of one resource type are comparable (KEP-5504, true for Kubernetes 1.33 and later).

mod decode;
mod reports;
mod sink;
mod undecodable;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::Response;
use http_body_util::BodyExt;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
    sync::CancellationToken,
    task::TaskTracker,
};

use self::{
    decode::{Line, Page},
    reports::Reports,
    sink::Sink,
};
pub(crate) use self::{
    sink::{Notice, TypedSink},
    undecodable::DecodeFailures,
};
use crate::{
    cache::AnyStore,
    object::ResourceType,
    offload::{LARGE, off_worker},
    request::{ANSWER_WITHIN, Call, Connection, RequestError},
};
use nodewright_observability::metrics::Metrics;

const PAGE: u32 = 500;
/// The server ends a watch after this time. It is less than the idle timeout of common load balancers.
const WATCH_SECONDS: u32 = 200;
/// A watch that the server has not ended by then is dead. Silence before that proves nothing: an idle kind is silent.
const LONGEST: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);
/// A watch that was silent for this long at its end may have been broken.
const QUIET: Duration = Duration::from_secs(90);
/// A watch that ends sooner counts as a failure.
const SHORT: Duration = Duration::from_secs(1);
/// The longest line of a watch: an object has at most about 3 MiB.
const LONGEST_LINE: usize = 16 << 20;
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MOST: Duration = Duration::from_secs(30);
/// The interval between two lists of a watch that has no permit.
const RELIST: Duration = Duration::from_mins(1);
/// After this many failures in a row, the waiters for the first list see the failure.
const REPORTED_FAILURES: u32 = 3;

const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[derive(Clone)]
pub(crate) struct Watching {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) undecodable: Arc<DecodeFailures>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// One for all kinds: only what decodes and stores their objects, the sink, is compiled for each.
pub(crate) struct Watch {
    pub(crate) connection: Connection,
    pub(crate) resource: ResourceType,
    /// Field selector; empty for everything.
    pub(crate) selector: Arc<str>,
    /// Whether to request only metadata from the API server.
    pub(crate) is_metadata: bool,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) watching: Watching,
    /// How long to wait between the first list and the watch, for an object that may need only the list.
    pub(crate) delay: Duration,
    /// For watches that need a permit. Such a watch lists each minute until it has one.
    pub(crate) permits: Option<Arc<Semaphore>>,
}

/// Why a watch must start again.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("the answer has no resourceVersion")]
    NoVersion,
    #[error("the answer is no list: {0}")]
    NoList(serde_json::Error),
    #[error("the watch ended with {code}: {message}")]
    Ended { code: u16, message: String },
    #[error("the connection broke: {0}")]
    Connection(String),
    #[error("it has not ended within {LONGEST:?}, as it was to")]
    Overdue,
    #[error("it ended at once")]
    Short,
}

impl Broken {
    /// Whether the server no longer has the version to continue from, so that only a list helps.
    fn needs_list(&self) -> bool {
        match self {
            Self::Request(error) => error.is_version_unavailable(),
            Self::Ended { code, .. } => *code == 410,
            Self::NoVersion | Self::NoList(_) => true,
            Self::Connection(_) | Self::Overdue | Self::Short => false,
        }
    }

    fn message(&self) -> String {
        match self {
            // A decoder's error may quote the text that it could not decode.
            Self::NoList(_) => "the answer is no list".to_owned(),
            other => other.to_string(),
        }
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Request(error) => error.retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// With a list: the state is unknown or incomplete.
    List,
    /// From the known version, once the server has shown that it has reached that version.
    Check,
    /// From the known version.
    Follow,
}

struct WatchState {
    next: Next,
    /// In a row, without receiving anything in between.
    failures: u32,
    permit: Option<OwnedSemaphorePermit>,
}

impl Watch {
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.watching.metrics.watch_starts(self.store().cluster(), &self.resource);
        stop.run_until_cancelled(self.run_forever()).await;
        self.sink.end(&self.reports());
    }

    fn store(&self) -> &dyn AnyStore {
        self.sink.store()
    }

    fn reports(&self) -> Reports<'_> {
        let Self { resource, selector, watching, .. } = self;
        Reports { cluster: self.store().cluster(), resource, selector, watching }
    }

    async fn run_forever(&self) {
        let mut at = WatchState { next: Next::List, failures: 0, permit: None };
        loop {
            if let Err(error) = self.go_on(&mut at).await {
                self.watching.metrics.watch_restarted(self.store().cluster(), &self.resource);
                self.watching.metrics.watch_healthy(self.store().cluster(), &self.resource, false);
                tracing::warn!(resource = %self.resource, cluster = %self.store().cluster(), %error, "watch failed, relisting");
                if error.needs_list() {
                    at.next = Next::List;
                }
                at.failures = at.failures.saturating_add(1);
                if at.failures >= REPORTED_FAILURES && !self.store().is_synced() {
                    self.store().fail(&error.message());
                }
                sleep(backoff(at.failures).max(error.retry_after())).await;
            }
        }
    }

    async fn go_on(&self, at: &mut WatchState) -> Result<(), Broken> {
        if self.is_of_former_history() {
            at.next = Next::List;
        }
        match at.next {
            // Restart an interrupted list from the beginning: its first pages are of another time than the rest would be.
            Next::List => {
                let is_first = !self.store().is_synced();
                // Boxed, as the future below: a waiting watch then holds no memory for its other states.
                Box::pin(self.list()).await?;
                at.failures = 0;
                if is_first {
                    sleep(self.delay).await;
                }
                if !self.has_permit(at) {
                    let _ = timeout(RELIST, self.store().relist_wanted().notified()).await;
                    return Ok(());
                }
            }
            Next::Check if self.is_ahead().await? => {
                at.next = Next::List;
                return Ok(());
            }
            Next::Check | Next::Follow => {}
        }
        at.next = Next::Check;
        at.next = Box::pin(self.follow(at)).await?;
        Ok(())
    }

    fn has_permit(&self, at: &mut WatchState) -> bool {
        let Some(permits) = &self.permits else { return true };
        at.permit = at.permit.take().or_else(|| permits.clone().try_acquire_owned().ok());
        at.permit.is_some()
    }

    /// Lists from the quorum: any other list may be older than a write whose answer is known. A first list is delivered once it
    /// is complete, because no controller can use it before.
    async fn list(&self) -> Result<(), Broken> {
        let started = Instant::now();
        let is_first = !self.store().is_synced();
        let mut token: Option<String> = None;
        let is_of_former_history = self.is_of_former_history();
        self.store().begin_list();
        if is_of_former_history {
            self.store().rewind();
        }
        loop {
            let answer = self.connection.send(self.page_call(PAGE, token.as_deref())).await?;
            let body = answer.body();
            let (version, next) = decoded(body.len(), || self.take_page(body, token.is_none(), is_first, started))?;
            if next.is_none() {
                self.sink.end_list(version, started, is_first, &self.reports());
                return Ok(());
            }
            token = next;
        }
    }

    /// Returns the version of the list, and the token of the next page.
    fn take_page(
        &self,
        body: &[u8],
        begins: bool,
        is_first: bool,
        started: Instant,
    ) -> Result<(u64, Option<String>), Broken> {
        let Page { version, next, items } = decode::page(body).map_err(Broken::NoList)?;
        let version = version.ok_or(Broken::NoVersion)?;
        if begins && version < self.store().version() {
            self.rewind(version, started);
        }
        let reports = self.reports();
        for item in items {
            self.sink.take(item, !is_first, &reports);
        }
        Ok((version, next))
    }

    fn page_call(&self, limit: u32, token: Option<&str>) -> Call {
        let from =
            token.map(|token| format!("&continue={}", utf8_percent_encode(token, QUERY_VALUE))).unwrap_or_default();
        let collection = self.resource.collection(self.store().namespace());
        let [accept, _] = self.accepts();
        Call { accept, ..Call::get(format!("{collection}?limit={limit}{}{from}", self.selector())) }
    }

    fn version(answer: &Response<Bytes>) -> Result<u64, Broken> {
        decode::page(answer.body()).map_err(Broken::NoList)?.version.ok_or(Broken::NoVersion)
    }

    /// Whether the server was set back since the last list. Its versions do not have to show it: they may have caught up.
    fn is_of_former_history(&self) -> bool {
        let listed = self.store().listed();
        listed.is_some_and(|listed| self.connection.contact.set_back().is_some_and(|at| at > listed))
    }

    /// Resolves once [`Watch::is_of_former_history`].
    async fn set_back(&self) {
        match self.store().listed() {
            Some(listed) => self.connection.contact.set_back_after(listed).await,
            None => std::future::pending().await,
        }
    }

    /// The quorum never goes back by itself: the known state was undone, and its versions will be assigned again. A list that
    /// began at `started` has shown that.
    fn rewind(&self, version: u64, started: Instant) {
        tracing::error!(resource = %self.resource, cluster = %self.store().cluster(), %version, known = %self.store().version(),
            "the API server lists an older version than was seen; it must have been restored from a backup, so all that is known is replaced");
        self.watching.metrics.watch_rewound(self.store().cluster(), &self.resource);
        self.store().rewind();
        // Another watch may have noticed the same. Lists since then count.
        if !self.is_of_former_history() {
            self.connection.contact.was_set_back(started);
        }
    }

    /// Whether the server was restored from a backup: it would send nothing to a watch from the version of the store.
    async fn is_ahead(&self) -> Result<bool, Broken> {
        let answer = self.connection.send(self.page_call(1, None)).await?;
        Ok(Self::version(&answer)? < self.store().version())
    }

    /// Probes the server whenever it is silent, past the limit of concurrent requests. Ends when the server was set back.
    async fn ask_when_silent(&self) {
        loop {
            self.connection.contact.silence().await;
            let known = self.store().version();
            let asked = async { Self::version(&self.connection.ask(self.page_call(1, None)).await?) };
            match timeout(ANSWER_WITHIN, asked).await {
                Ok(Ok(version)) if version < known => return,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(resource = %self.resource, cluster = %self.store().cluster(), %error,
                        "failed to probe a silent API server");
                }
                Err(_) => {
                    tracing::warn!(resource = %self.resource, cluster = %self.store().cluster(),
                        "a silent API server did not answer a probe within {ANSWER_WITHIN:?}");
                }
            }
        }
    }

    async fn follow(&self, at: &mut WatchState) -> Result<Next, Broken> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}{}",
            self.resource.collection(self.store().namespace()),
            self.store().version(),
            self.selector()
        );
        let (begun, mut heard) = (Instant::now(), None);
        let [_, accept] = self.accepts();
        let response = self.connection.open(Call { accept, ..Call::get(path) }).await?;
        self.watching.metrics.watch_healthy(self.store().cluster(), &self.resource, true);
        let mut lines = lines(response.into_body());
        let mut asking = Box::pin(self.ask_when_silent());
        let mut set_back = Box::pin(self.set_back());
        loop {
            let next = tokio::select! {
                biased;
                () = self.store().relist_wanted().notified() => return Ok(Next::List),
                () = &mut set_back => return Ok(Next::List),
                next = timeout_at(begun + LONGEST, lines.next()) => next,
                () = &mut asking => return Ok(Next::List),
            };
            match next {
                Err(_) => return Err(Broken::Overdue),
                Ok(None) if begun.elapsed() < SHORT => return Err(Broken::Short),
                Ok(None) if heard.is_some_and(|last: Instant| last.elapsed() < QUIET) => return Ok(Next::Follow),
                // An idle kind may be as silent as a server that was set back.
                Ok(None) => {
                    at.failures = 0;
                    return Ok(Next::Check);
                }
                Ok(Some(Err(error))) => return Err(Broken::Connection(error.to_string())),
                Ok(Some(Ok(text))) => decoded(text.len(), || self.hear(&text))?,
            }
            // Reset the failures only here. Opening alone proves little: the watch may break at once each time.
            (heard, at.failures) = (Some(Instant::now()), 0);
        }
    }

    fn hear(&self, text: &str) -> Result<(), Broken> {
        if self.sink.take_line(text, &self.reports()) {
            self.connection.contact.heard();
            return Ok(());
        }
        let line = decode::line(text).map_err(|error| Broken::Connection(format!("no watch event: {error}")))?;
        if matches!(line, Line::Present(_) | Line::Gone { .. }) {
            // A bookmark does not count: a server continues to send them while its etcd is away.
            self.connection.contact.heard();
        }
        match line {
            Line::Present(object) => self.sink.take(object, true, &self.reports()),
            Line::Gone { namespace, name, version } => {
                self.sink.remove(&namespace, &name, version.ok_or(Broken::NoVersion)?, &self.reports());
            }
            Line::Bookmark(version) => version.into_iter().for_each(|version| self.store().advance(version)),
            Line::Error { code, message } => return Err(Broken::Ended { code, message }),
        }
        Ok(())
    }

    /// For a list and for a watch.
    fn accepts(&self) -> [&'static str; 2] {
        if self.is_metadata {
            [
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ]
        } else {
            ["application/json"; 2]
        }
    }

    fn selector(&self) -> String {
        if self.selector.is_empty() {
            String::new()
        } else {
            format!("&fieldSelector={}", utf8_percent_encode(&self.selector, QUERY_VALUE))
        }
    }
}

/// Decodes. What is large would keep a worker from other tasks, such as those of the connections.
fn decoded<T>(size: usize, decode: impl FnOnce() -> T) -> T {
    if size < LARGE { decode() } else { off_worker(decode) }
}

fn lines(body: Body) -> impl Stream<Item = Result<String, tokio_util::codec::LinesCodecError>> + Unpin {
    let bytes = body.into_data_stream().map_err(std::io::Error::other);
    FramedRead::new(StreamReader::new(Box::pin(bytes)), LinesCodec::new_with_max_length(LONGEST_LINE))
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MOST)
}

#[cfg(test)]
mod tests;
