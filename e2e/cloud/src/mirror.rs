//! A list and a watch of a kind, for stand-ins such as kubelets and the simulated control plane.
//!
//! # Guarantees
//! * The view is at most minutes old, whatever happens to requests: each list and each opening of a watch has a
//!   deadline, and a watch without events and bookmarks counts as broken.
//! * After a gap, everything is listed again; also after a watch without any event. Its server may have been restored
//!   to an earlier version, and then sends nothing to clients that know a later one.
//! * Delays have no jitter: on paused time the same server leads to the same requests.
//!
//! # Why not `kube_runtime::watcher`
//! It has no deadlines for lists and for opening watches, resumes after a watch without events, which hides a restored
//! server forever, and its default backoff uses random delays.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Error, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::timeout};

use crate::pages::pages;

/// Objects per page of a list.
const PAGE: u32 = 500;
/// The deadline of a list, and of the opening of a watch.
const ANSWER: Duration = Duration::from_secs(30);
/// The timeout of a watch in seconds. The server ends it then, and the mirror resumes it.
const WATCH_SECONDS: u32 = 290;
/// After this time without events and bookmarks a connection counts as dead. Bookmarks arrive about once a minute.
const SILENCE: Duration = Duration::from_secs(150);
/// The minimum time between two openings of a watch.
const SHORTEST_WATCH: Duration = Duration::from_millis(500);

/// What the mirror sends.
#[derive(Debug)]
pub enum Seen<K> {
    /// All objects. Earlier ones that are missing here are gone.
    Reset(Vec<K>),
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
}

/// Why everything is listed again.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Api(#[from] Error),
    #[error("no answer within {ANSWER:?}")]
    NoAnswer,
    #[error("the watch was silent for {SILENCE:?}")]
    Silent,
    #[error("the watch ended and had nothing to say")]
    Idle,
}

/// Sends the objects of a kind to `to` until the receiver is dropped. `select` restricts lists and watches.
///
/// # Caveats
/// * Between the loss of a watch and the next [`Seen::Reset`] the view is outdated.
pub async fn mirror<K>(api: Api<K>, select: Select, to: mpsc::Sender<Seen<K>>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut pause = Duration::ZERO;
    while !to.is_closed() {
        match follow(&api, &select, &to).await {
            Ok(()) | Err(Broken::Idle) => pause = Duration::ZERO,
            Err(error) => {
                tracing::debug!(%error, kind = std::any::type_name::<K>(), "a watch broke; listing again");
                pause = (pause * 2).clamp(Duration::from_millis(250), Duration::from_secs(5));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Which objects are mirrored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select {
    /// The label selector.
    pub labels: Option<&'static str>,
    /// The field selector.
    pub fields: Option<&'static str>,
}

/// Lists once, then watches until the watch breaks.
async fn follow<K>(api: &Api<K>, select: &Select, to: &mpsc::Sender<Seen<K>>) -> Result<(), Broken>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (objects, mut version) = list(api, select).await?;
    if to.send(Seen::Reset(objects)).await.is_err() {
        return Ok(());
    }
    let parameters = WatchParams {
        label_selector: select.labels.map(str::to_owned),
        field_selector: select.fields.map(str::to_owned),
        timeout: Some(WATCH_SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    loop {
        let opened = tokio::time::Instant::now();
        let mut is_news = false;
        let watch = timeout(ANSWER, api.watch(&parameters, &version)).await;
        let mut events = watch.map_err(|_| Broken::NoAnswer)??.boxed();
        while let Some(event) = timeout(SILENCE, events.try_next()).await.map_err(|_| Broken::Silent)?? {
            let seen = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Seen::Applied(object),
                WatchEvent::Deleted(object) => Seen::Deleted(object),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => return Err(Error::Api(status).into()),
            };
            is_news = true;
            if let Seen::Applied(object) | Seen::Deleted(object) = &seen
                && let Some(reached) = &object.meta().resource_version
            {
                version.clone_from(reached);
            }
            if to.send(seen).await.is_err() {
                return Ok(());
            }
        }
        // Do not reopen a watch in a tight loop if the server ends each one at once.
        tokio::time::sleep_until(opened + SHORTEST_WATCH).await;
        if !is_news {
            return Err(Broken::Idle);
        }
    }
}

async fn list<K>(api: &Api<K>, select: &Select) -> Result<(Vec<K>, String), Broken>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let parameters = ListParams {
        label_selector: select.labels.map(str::to_owned),
        field_selector: select.fields.map(str::to_owned),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    Ok(timeout(ANSWER, pages(api, parameters, |object| object)).await.map_err(|_| Broken::NoAnswer)??)
}
