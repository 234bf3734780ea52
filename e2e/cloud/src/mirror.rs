//! One list and one watch of a kind, for all who play a part around the manager: kubelets, the control plane.
//!
//! # Guarantees
//! * What is shown is late by minutes at most, whatever becomes of requests: each list and each opening of a watch has a
//!   deadline, and a watch without a word, not even a bookmark, counts as broken.
//! * After a gap, all is listed again. So it is after a watch that had nothing to say: it may be that of a server that
//!   was set back to an earlier version, which is silent to whoever knows more.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Error, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::timeout};

use crate::pages::pages;

/// Entries per page of a list.
const PAGE: u32 = 500;
/// How long a list or the opening of a watch may take.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a watch may last, in seconds; the server ends it then, and it is opened again where it ended.
const WATCH_SECONDS: u32 = 290;
/// Without a word for so long, a connection is dead: bookmarks come about once a minute.
const SILENCE: Duration = Duration::from_secs(150);
/// Watches are opened no more often than this.
const SHORTEST_WATCH: Duration = Duration::from_millis(500);

/// What the mirror shows.
#[derive(Debug)]
pub enum Seen<K> {
    /// All that there is. What was known before and is not among it is gone.
    Reset(Vec<K>),
    /// An object is new or different.
    Applied(K),
    /// An object is gone.
    Deleted(K),
}

/// Why all is listed again.
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

/// Shows a kind to `to` until nobody listens any more. `select` narrows lists and watches.
///
/// # Caveats
/// * Between a lost watch and the next [`Seen::Reset`], what is shown is old.
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

/// Lists, then watches for as long as it goes.
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
        // A server that ends every watch at once must not be asked without a pause.
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
