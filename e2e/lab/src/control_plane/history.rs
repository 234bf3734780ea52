//! The complete history of the objects of a kind, recorded by a watch.
//!
//! # Guarantees
//! * It contains every change by the API server, in order: a watch omits nothing.
//! * A watch that ends is resumed from its last version. If that is impossible, for example after an outage of the API server,
//!   the objects are listed again and the history notes a gap: [`History::changes`] then returns an error.
//!
//! # Caveats
//! * An object that cannot be decoded is omitted.
//! * [`Change::at`] is the time of observation, some milliseconds after the change.

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

use crate::control_plane::testing::{Failure, TestResult};

/// The current objects, by name.
pub type State<K> = BTreeMap<String, Arc<K>>;

/// A creation, an update or a deletion of an object.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// The time of observation.
    pub at: Timestamp,
    /// The object after the change; the last state if it is gone.
    pub object: Arc<K>,
    /// Whether it is gone.
    pub gone: bool,
}

struct Shared<K> {
    changes: Mutex<Vec<Change<K>>>,
    gap: Mutex<Option<String>>,
    length: watch::Sender<usize>,
}

/// The history of some objects since [`History::record`]. Dropping it ends the recording.
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
    /// Records all objects of `api` that match the label selector, beginning with the existing ones.
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

    /// The number of changes: a mark for [`History::states`].
    pub fn mark(&self) -> usize {
        *self.shared.length.borrow()
    }

    /// The observed changes, oldest first. A gap hides intermediate states, and objects that existed only during it.
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

    /// The current objects.
    pub fn current(&self) -> State<K> {
        self.shared.current()
    }

    /// Calls `look` with the state at a mark and after each later change.
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

    /// Returns as soon as `wanted` accepts the changes; it gets all of them each time.
    pub async fn until(&self, wanted: impl Fn(&[Change<K>]) -> bool) {
        let mut length = self.shared.length.subscribe();
        while !wanted(&self.shared.changes.lock()) {
            if length.changed().await.is_err() {
                return;
            }
        }
    }

    /// The number of distinct UIDs observed since a mark.
    pub fn born_since(&self, mark: usize) -> TestResult<usize> {
        let changes = self.changes()?;
        let uids = |changes: &[Change<K>]| -> std::collections::BTreeSet<String> {
            changes.iter().filter_map(|change| change.object.uid()).collect()
        };
        let (before, after) = changes.split_at(mark.min(changes.len()));
        Ok(uids(after).difference(&uids(before)).count())
    }

    /// The number of objects deleted since a mark.
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
        // Under the lock, so that the announced length never exceeds the recorded changes.
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

/// Why a watch ended.
enum End {
    /// It can be resumed from this version.
    At(String),
    /// The server no longer knows the changes after its version.
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
        // Do not poll an unreachable server in a tight loop.
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
            // An undecodable object that a scenario created on purpose: the others must be recorded nevertheless.
            Err(error) if is_undecodable(&error) => continue,
            Err(_) => return End::At(version),
        };
        version = object.resource_version().unwrap_or(version);
        shared.add(object, gone);
    }
    End::At(version)
}

/// Whether a line of a watch could not be decoded. kube decodes such a line as a Status, all of whose fields may be missing; a
/// Status from the API server has a code.
fn is_undecodable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

/// Records the changes, creations and deletions during the gap.
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
