//! The watch loop: keeps one store in step with one collection of an API server.
//!
//! # Guarantees
//! * Its own back-off and health: a failing watch slows nobody else.
//! * An idle or black-holed connection is noticed within five minutes.
//! * After a gap it lists again, at a version not older than the highest it has seen; what vanished is reported as gone.
//! * An object that cannot be decoded is named in a log line and counted; the others go on.
//!
//! # Assumptions
//! Versions of one resource type may be compared (KEP-5504, true for Kubernetes 1.33 and later).

mod decode;

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
    sync::CancellationToken,
};

use self::decode::{Item, Line, Undecodable};
use crate::{
    cache::{Change, Store},
    metrics::Metrics,
    object::{Kind, ResourceType, Version},
    queue::Class,
    request::{Call, Connection, RequestError},
};

/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// The server ends a watch after this; less than the idle limit of common load balancers.
const WATCH_SECONDS: u32 = 200;
/// No line for so long means that the connection is dead: bookmarks come about once a minute.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);
/// Longest line of a watch: an object has at most about 3 MiB.
const LONGEST_LINE: usize = 16 << 20;
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MOST: Duration = Duration::from_secs(30);

/// Where changes go.
pub(crate) type Deliver<K> = Box<dyn Fn(&Change<K>, Class) + Send + Sync>;

/// Keeps one store up to date.
pub(crate) struct Watch<K> {
    pub(crate) connection: Connection,
    pub(crate) store: Arc<Store<K>>,
    /// Field selector; empty for everything.
    pub(crate) selector: Arc<str>,
    pub(crate) deliver: Deliver<K>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Why a watch has to begin again.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("the list has no resourceVersion")]
    NoVersion,
    #[error("the answer is no list: {0}")]
    NoList(serde_json::Error),
    #[error("the watch ended with {code}: {message}")]
    Ended { code: u16, message: String },
    #[error("the connection broke: {0}")]
    Connection(String),
    #[error("nothing was heard for {SILENCE:?}")]
    Silent,
}

impl Broken {
    /// Whether the version to go on from is gone, so that only a list helps.
    fn needs_list(&self) -> bool {
        match self {
            Self::Request(error) => error.is_version_unavailable(),
            Self::Ended { code, .. } => *code == 410,
            Self::NoVersion | Self::NoList(_) => true,
            Self::Connection(_) | Self::Silent => false,
        }
    }
}

/// How a list has to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// From the quorum.
    Consistent,
    /// Not older than what is known.
    NotOlderThan(Version),
}

impl<K: Kind> Watch<K> {
    /// Runs until cancelled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.run_forever() => {}
        }
    }

    async fn run_forever(&self) {
        let resource = ResourceType::of::<K>();
        let mut failures = 0_u32;
        let mut freshness = Freshness::Consistent;
        let mut from = None;
        loop {
            let version = match from.take() {
                Some(version) => Ok(version),
                None => self.list(&resource, freshness).await,
            };
            let result = match version {
                Ok(version) => {
                    failures = 0;
                    self.metrics.watch_healthy(self.store.cluster(), &resource, true);
                    self.follow(&resource, version).await
                }
                Err(error) => Err(error),
            };
            freshness = Freshness::NotOlderThan(self.store.version());
            match result {
                Ok(End::Resume) => from = Some(self.store.version()),
                Ok(End::Relist) => freshness = Freshness::Consistent,
                Err(error) => {
                    self.metrics.watch_restarted(self.store.cluster(), &resource);
                    self.metrics.watch_healthy(self.store.cluster(), &resource, false);
                    tracing::warn!(resource = %resource, cluster = %self.store.cluster(), %error, "the watch broke; it begins again");
                    if error.needs_list() {
                        // A server that does not know a version that was seen may be a restored one: ask the quorum.
                        freshness = Freshness::Consistent;
                    } else if self.store.is_synced() {
                        from = Some(self.store.version());
                    }
                    failures += 1;
                    sleep(backoff(failures)).await;
                }
            }
        }
    }

    async fn list(&self, resource: &ResourceType, freshness: Freshness) -> Result<Version, Broken> {
        let started = Instant::now();
        let class = if self.store.is_synced() { Class::Live } else { Class::Initial };
        let mut token: Option<String> = None;
        self.store.begin_list();
        loop {
            let from = match (&token, freshness) {
                (Some(token), _) => format!("&continue={}", encode(token)),
                (None, Freshness::NotOlderThan(version)) if version > Version::default() => {
                    format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan")
                }
                _ => String::new(),
            };
            let collection = resource.collection(self.store.namespace());
            let path = format!("{collection}?limit={PAGE}{}{from}", self.selector());
            let answer = self.connection.send(Call::get(path)).await?;
            let page = decode::page::<K>(&answer.body).map_err(Broken::NoList)?;
            let version = page.version.ok_or(Broken::NoVersion)?;
            for item in page.items {
                self.take(resource, item, class);
            }
            token = page.next;
            if token.is_none() {
                if version < self.store.version() && freshness == Freshness::Consistent {
                    tracing::error!(resource = %resource, %version, known = %self.store.version(),
                        "the API server lists an older version than was seen: was it restored from a backup?");
                }
                for change in self.store.end_list(version, started) {
                    (self.deliver)(&change, Class::Live);
                }
                return Ok(version);
            }
        }
    }

    async fn follow(&self, resource: &ResourceType, from: Version) -> Result<End, Broken> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}{}",
            resource.collection(self.store.namespace()),
            self.selector()
        );
        let response = self.connection.open(Call::get(path)).await?;
        let mut lines = lines(response.into_body());
        loop {
            let next = tokio::select! {
                biased;
                () = self.store.relist_wanted() => return Ok(End::Relist),
                next = timeout(SILENCE, lines.next()) => next,
            };
            match next {
                Err(_) => return Err(Broken::Silent),
                Ok(None) => return Ok(End::Resume),
                Ok(Some(Err(error))) => return Err(Broken::Connection(error.to_string())),
                Ok(Some(Ok(text))) => self.hear(resource, &text)?,
            }
        }
    }

    fn hear(&self, resource: &ResourceType, text: &str) -> Result<(), Broken> {
        match decode::line::<K>(text).map_err(|error| Broken::Connection(format!("no watch event: {error}")))? {
            Line::Present(item) => self.take(resource, item, Class::Live),
            Line::Gone { namespace, name, version } => {
                if let Some(change) = self.store.remove(&namespace, &name, version.unwrap_or_default()) {
                    (self.deliver)(&change, Class::Live);
                }
            }
            Line::Bookmark(version) => version.into_iter().for_each(|version| self.store.advance(version)),
            Line::Error { code, message } => return Err(Broken::Ended { code, message }),
        }
        Ok(())
    }

    fn take(&self, resource: &ResourceType, item: Item<K>, class: Class) {
        match item {
            Item::Good(object) => {
                if let Some(change) = self.store.apply(*object) {
                    (self.deliver)(&change, class);
                }
            }
            Item::Bad(Undecodable { namespace, name, version, why }) => {
                self.metrics.undecodable_objects(self.store.cluster(), resource, 1);
                tracing::error!(resource = %resource, %namespace, %name, %why,
                    "an object cannot be decoded and is left out until it is changed");
                self.store.keep(&namespace, &name);
                if let Some(version) = version {
                    self.store.advance(version);
                }
            }
        }
    }

    fn selector(&self) -> String {
        if self.selector.is_empty() { String::new() } else { format!("&fieldSelector={}", encode(&self.selector)) }
    }
}

/// How a watch ended without a failure.
enum End {
    Resume,
    Relist,
}

fn lines(body: Body) -> impl Stream<Item = Result<String, tokio_util::codec::LinesCodecError>> + Unpin {
    let bytes = body.into_data_stream().map_err(std::io::Error::other);
    FramedRead::new(StreamReader::new(Box::pin(bytes)), LinesCodec::new_with_max_length(LONGEST_LINE))
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MOST)
}

/// Percent-encodes a query value.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
        }
    }
    out
}
