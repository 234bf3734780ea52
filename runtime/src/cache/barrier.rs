//! Barriers: wait until a cache shows a write.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use crate::{object::ObjectRef, queue::RequeueHandle};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The cache has reached this version, or has shown a list that began after this moment, at which the version existed. A
    /// server that was restored from a backup may never reach it.
    Version(u64, Instant),
    /// The object with this UID is gone or being deleted.
    Leaving(ObjectRef, Arc<str>),
    /// The object with this UID is gone.
    Gone(ObjectRef, Arc<str>),
    /// The cache has shown a complete list that began at this moment or later.
    Listed(Instant),
}

/// The waiters of a store. An event costs nothing for unrelated ones.
#[derive(Default)]
pub(super) struct Waiters {
    /// When the write was made, and the start of the wait.
    versions: BTreeMap<u64, BTreeMap<RequeueHandle, (Instant, Instant)>>,
    pub(super) objects: BTreeMap<ObjectRef, Vec<(Until, Instant, RequeueHandle)>>,
    /// The required start of the list, and the start of the wait.
    lists: BTreeMap<RequeueHandle, (Instant, Instant)>,
}

impl Waiters {
    pub(super) fn push(&mut self, until: &Until, sleeper: RequeueHandle) {
        let since = Instant::now();
        match until {
            Until::Version(version, written) => {
                let waiting = self.versions.entry(*version).or_default();
                waiting.entry(sleeper).or_insert((*written, since));
            }
            Until::Listed(begun) => self.lists.entry(sleeper).or_insert((*begun, since)).0 = *begun,
            Until::Leaving(key, _) | Until::Gone(key, _) => {
                let waiting = self.objects.entry(key.clone()).or_default();
                if !waiting.iter().any(|(other, _, who)| other == until && *who == sleeper) {
                    waiting.push((until.clone(), since, sleeper));
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.objects.is_empty() && self.lists.is_empty()
    }

    pub(super) fn release(&mut self, reached: u64) -> Vec<RequeueHandle> {
        let mut free = Vec::new();
        while let Some(first) = self.versions.first_entry().filter(|first| *first.key() <= reached) {
            free.extend(first.remove().into_keys());
        }
        free
    }

    pub(super) fn release_object(&mut self, key: &ObjectRef, met: impl Fn(&Until) -> bool) -> Vec<RequeueHandle> {
        let Some(waiting) = self.objects.get_mut(key) else { return vec![] };
        let free = waiting.extract_if(.., |(until, ..)| met(until)).map(|(.., sleeper)| sleeper).collect();
        if waiting.is_empty() {
            self.objects.remove(key);
        }
        free
    }

    /// Removes and returns the waiters for the list, and those for a version that existed before it began.
    pub(super) fn release_listed(&mut self, started: Instant) -> Vec<RequeueHandle> {
        let mut free = Vec::new();
        self.versions.retain(|_, waiting| {
            free.extend(waiting.extract_if(.., |_, (written, _)| *written < started).map(|(sleeper, _)| sleeper));
            !waiting.is_empty()
        });
        free.extend(self.lists.extract_if(.., |_, (begun, _)| *begun <= started).map(|(sleeper, _)| sleeper));
        free
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        let versions = self.versions.values().flat_map(BTreeMap::values).map(|(_, since)| *since);
        let objects = self.objects.values().flatten().map(|(_, since, _)| *since);
        versions.chain(objects).chain(self.lists.values().map(|(_, since)| *since)).min()
    }
}
