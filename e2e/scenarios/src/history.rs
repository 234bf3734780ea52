//! All that ever happened to the objects of a kind, by a watch.
//!
//! # Guarantees
//! * Every change that the API server made is there, in its order: a watch leaves nothing out.
//! * A watch that ends is resumed where it ended; if that is no longer possible, because the API server was away for
//!   instance, all is listed again, and the history says that it has a gap: [`History::changes`] is an error then.
//!
//! # Caveats
//! * An object that cannot be decoded is left out.
//! * [`Change::at`] is when the change was seen here, some milliseconds after it was made.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::AbortHandle};

use crate::{Failure, TestResult};

/// The present objects, by name.
pub type State<K> = BTreeMap<String, Arc<K>>;

/// An object came, changed, or went.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// When it was seen.
    pub at: Timestamp,
    /// The object, after the change; if it is gone, as it was at the end.
    pub object: Arc<K>,
    /// Whether it is gone.
    pub gone: bool,
}

struct Shared<K> {
    changes: Mutex<Vec<Change<K>>>,
    gap: Mutex<Option<String>>,
    length: watch::Sender<usize>,
}

/// The history of some objects since [`History::record`]; recording ends when this is dropped.
pub struct History<K> {
    shared: Arc<Shared<K>>,
    task: AbortHandle,
}

impl<K> Debug for History<K> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("History").field("changes", &*self.shared.length.borrow()).finish_non_exhaustive()
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> History<K>
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// Records all objects of `api` that the label selector selects; what exists already comes first.
    pub async fn record(api: Api<K>, selector: &str) -> TestResult<Self> {
        let (length, _) = watch::channel(0);
        let shared = Arc::new(Shared { changes: Mutex::default(), gap: Mutex::default(), length });
        let list = api.list(&ListParams::default().labels(selector)).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        for object in list.items {
            shared.add(object, false);
        }
        let parameters = WatchParams::default().labels(selector);
        let task = tokio::spawn(follow(api, parameters, version, Arc::clone(&shared))).abort_handle();
        Ok(Self { shared, task })
    }

    /// How many changes there are: a mark for [`History::states`].
    pub fn mark(&self) -> usize {
        *self.shared.length.borrow()
    }

    /// The changes that were seen, the oldest first. Where there is a gap, states in between are missing, and objects
    /// that came and went within it.
    pub fn seen(&self) -> Vec<Change<K>> {
        self.shared.changes.lock().clone()
    }

    /// All changes, the oldest first; an error if some are missing.
    pub fn changes(&self) -> TestResult<Vec<Change<K>>> {
        match &*self.shared.gap.lock() {
            Some(gap) => Err(Failure::new(format!("the history has a gap: {gap}"))),
            None => Ok(self.shared.changes.lock().clone()),
        }
    }

    /// The objects that there are.
    pub fn current(&self) -> State<K> {
        self.shared.current()
    }

    /// Looks at the state after each change from a mark on, the first of them being the state at the mark.
    pub fn states(&self, mark: usize, mut look: impl FnMut(Timestamp, &State<K>) -> TestResult) -> TestResult {
        let mut state = State::new();
        for (index, change) in self.changes()?.iter().enumerate() {
            apply(&mut state, change);
            if index + 1 >= mark {
                look(change.at, &state)?;
            }
        }
        Ok(())
    }

    /// Returns as soon as the changes are as wanted; called with all of them each time.
    pub async fn until(&self, wanted: impl Fn(&[Change<K>]) -> bool) {
        let mut length = self.shared.length.subscribe();
        while !wanted(&self.shared.changes.lock()) {
            if length.changed().await.is_err() {
                return;
            }
        }
    }

    /// The UIDs that were seen from a mark on, each once.
    pub fn born_since(&self, mark: usize) -> TestResult<usize> {
        let changes = self.changes()?;
        let uids = |changes: &[Change<K>]| -> std::collections::BTreeSet<String> {
            changes.iter().filter_map(|change| change.object.uid()).collect()
        };
        let (before, after) = changes.split_at(mark.min(changes.len()));
        Ok(uids(after).difference(&uids(before)).count())
    }

    /// How many went from a mark on.
    pub fn gone_since(&self, mark: usize) -> TestResult<usize> {
        Ok(self.changes()?.iter().skip(mark).filter(|change| change.gone).count())
    }
}

impl<K: Resource> Shared<K> {
    fn current(&self) -> State<K> {
        let mut state = State::new();
        for change in self.changes.lock().iter() {
            apply(&mut state, change);
        }
        state
    }
}

impl<K> Shared<K> {
    fn add(&self, object: K, gone: bool) {
        let mut changes = self.changes.lock();
        changes.push(Change { at: Timestamp::now(), object: Arc::new(object), gone });
        // Under the lock, so that a length is never announced before what it counts is there.
        self.length.send_replace(changes.len());
    }
}

fn apply<K: Resource>(state: &mut State<K>, change: &Change<K>) {
    let name = change.object.name_any();
    if change.gone {
        state.remove(&name);
    } else {
        state.insert(name, Arc::clone(&change.object));
    }
}

/// Why a watch is over.
enum End {
    /// It can go on from this version.
    At(String),
    /// What came after its version is not known any more.
    TooOld(String),
}

async fn follow<K>(api: Api<K>, parameters: WatchParams, mut version: String, shared: Arc<Shared<K>>)
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    loop {
        match watch_once(&api, &parameters, version.clone(), &shared).await {
            End::At(last) => version = last,
            End::TooOld(why) => {
                *shared.gap.lock() = Some(why);
                match list_again(&api, &parameters, &shared).await {
                    Ok(listed) => version = listed,
                    Err(error) => tracing::debug!(%error, "a list of the history failed; trying again"),
                }
            }
        }
        // A server that is away is not to be asked all the time.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn watch_once<K>(api: &Api<K>, parameters: &WatchParams, mut version: String, shared: &Shared<K>) -> End
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    let stream = match api.watch(parameters, &version).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) if status.code == 410 => return End::TooOld(status.message.clone()),
        Err(_) => return End::At(version),
    };
    pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let (object, gone) = match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
            Ok(WatchEvent::Deleted(object)) => (object, true),
            Ok(WatchEvent::Bookmark(bookmark)) => {
                version = bookmark.metadata.resource_version;
                continue;
            }
            Ok(WatchEvent::Error(status)) => return End::TooOld(status.message.clone()),
            // Poison, which a scenario made on purpose: the others are to be seen nevertheless.
            Err(error) if is_undecodable(&error) => continue,
            Err(_) => return End::At(version),
        };
        version = object.resource_version().unwrap_or(version);
        shared.add(object, gone);
    }
    End::At(version)
}

/// Whether one line of a watch could not be decoded. kube takes such a line for a Status, all of whose fields may be
/// missing; one of the API server has a code.
fn is_undecodable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

/// Notes what has changed, come and gone meanwhile.
async fn list_again<K>(api: &Api<K>, parameters: &WatchParams, shared: &Shared<K>) -> kube::Result<String>
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    let selector = parameters.label_selector.clone().unwrap_or_default();
    let list = api.list(&ListParams::default().labels(&selector)).await?;
    let mut before = shared.current();
    for object in list.items {
        let known = before.remove(&object.name_any());
        if known.is_none_or(|known| known.resource_version() != object.resource_version()) {
            shared.add(object, false);
        }
    }
    for object in before.into_values() {
        shared.add(object.as_ref().clone(), true);
    }
    Ok(list.metadata.resource_version.unwrap_or_default())
}
