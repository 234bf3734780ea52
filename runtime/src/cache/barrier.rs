//! Waiting until a cache shows what was written.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt,
    sync::Arc,
};

use tokio::time::Instant;

use crate::object::{Key, Version};

/// What a cache has to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// It has reached this version. Or it has shown a list that was begun after this moment, at which the version was
    /// there: a server that was restored from a backup may never reach it.
    Version(Version, Instant),
    /// The object with this UID is gone, or its deletion has begun.
    Leaving(Key, Arc<str>),
    /// The object with this UID is gone.
    Gone(Key, Arc<str>),
    /// A complete list that was begun at this moment or later.
    Listed(Instant),
}

/// Called once when the wait is over.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

struct Waiter {
    version: Version,
    written: Instant,
    since: Instant,
    wake: Wake,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}
impl Eq for Waiter {}
impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.version.cmp(&other.version)
    }
}

/// Who waits for a store, sorted so that an event costs nothing for those whom it does not concern.
#[derive(Default)]
pub(super) struct Waiters {
    versions: BinaryHeap<Reverse<Waiter>>,
    objects: HashMap<Key, Vec<(Until, Instant, Wake)>>,
    lists: Vec<(Instant, Instant, Wake)>,
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { versions, objects, lists } = self;
        let lengths = [versions.len(), objects.len(), lists.len()];
        f.debug_tuple("Waiters").field(&lengths).finish()
    }
}

impl Waiters {
    pub(super) fn push(&mut self, until: Until, wake: Wake) {
        let since = Instant::now();
        match until {
            Until::Version(version, written) => self.versions.push(Reverse(Waiter { version, written, since, wake })),
            Until::Listed(begun) => self.lists.push((begun, since, wake)),
            Until::Leaving(ref key, _) | Until::Gone(ref key, _) => {
                self.objects.entry(key.clone()).or_default().push((until, since, wake));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.objects.is_empty() && self.lists.is_empty()
    }

    /// Takes out those who wait for `reached` or less.
    pub(super) fn release(&mut self, reached: Version) -> Vec<Wake> {
        let mut free = Vec::new();
        while self.versions.peek().is_some_and(|Reverse(waiter)| waiter.version <= reached) {
            free.extend(self.versions.pop().map(|Reverse(waiter)| waiter.wake));
        }
        free
    }

    /// Takes out those who wait for something of one object that has come about.
    pub(super) fn release_object(&mut self, key: &Key, met: impl Fn(&Until) -> bool) -> Vec<Wake> {
        if self.objects.is_empty() {
            return vec![];
        }
        let Some(waiting) = self.objects.get_mut(key) else { return vec![] };
        let free = waiting.extract_if(.., |(until, ..)| met(until)).map(|(.., wake)| wake).collect();
        if waiting.is_empty() {
            self.objects.remove(key);
        }
        free
    }

    /// The objects of which something is waited for.
    pub(super) fn objects(&self) -> Vec<Key> {
        self.objects.keys().cloned().collect()
    }

    /// Takes out those who wait for a version that was there before a list was begun, and those who wait for the list.
    pub(super) fn release_listed(&mut self, started: Instant) -> Vec<Wake> {
        let mut free = Vec::new();
        self.versions.retain(|Reverse(waiter)| {
            let shown = waiter.written < started;
            if shown {
                free.push(waiter.wake.clone());
            }
            !shown
        });
        free.extend(self.lists.extract_if(.., |(begun, ..)| *begun <= started).map(|(.., wake)| wake));
        free
    }

    /// Since when the longest wait lasts.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let versions = self.versions.iter().map(|Reverse(waiter)| waiter.since);
        let objects = self.objects.values().flatten().map(|(_, since, _)| *since);
        versions.chain(objects).chain(self.lists.iter().map(|(_, since, _)| *since)).min()
    }
}
