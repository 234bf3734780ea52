//! Waiting until a cache shows what was written.

use std::{cmp::Reverse, collections::BinaryHeap, fmt, sync::Arc};

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

/// Who waits for a store, sorted so that an event costs nothing for those whose time has not come.
#[derive(Default)]
pub(super) struct Waiters {
    versions: BinaryHeap<Reverse<Waiter>>,
    objects: Vec<(Until, Instant, Wake)>,
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("versions", &self.versions.len()).field("objects", &self.objects.len()).finish()
    }
}

impl Waiters {
    pub(super) fn push(&mut self, until: Until, wake: Wake) {
        let since = Instant::now();
        match until {
            Until::Version(version, written) => self.versions.push(Reverse(Waiter { version, written, since, wake })),
            until => self.objects.push((until, since, wake)),
        }
    }

    /// Takes out those who wait for `reached` or less, and those whose condition `met` holds.
    pub(super) fn release(&mut self, reached: Version, mut met: impl FnMut(&Until) -> bool) -> Vec<Wake> {
        let mut free = Vec::new();
        while self.versions.peek().is_some_and(|Reverse(waiter)| waiter.version <= reached) {
            free.extend(self.versions.pop().map(|Reverse(waiter)| waiter.wake));
        }
        self.objects.retain(|(until, _, wake)| {
            let done = met(until);
            if done {
                free.push(wake.clone());
            }
            !done
        });
        free
    }

    /// Takes out those who wait for a version that was there before a list was begun.
    pub(super) fn release_listed(&mut self, started: Instant) -> Vec<Wake> {
        let mut free = Vec::new();
        self.versions.retain(|Reverse(waiter)| {
            let shown = waiter.written < started;
            if shown {
                free.push(waiter.wake.clone());
            }
            !shown
        });
        free
    }

    /// Since when the longest wait lasts.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let versions = self.versions.iter().map(|Reverse(waiter)| waiter.since);
        versions.chain(self.objects.iter().map(|(_, since, _)| *since)).min()
    }

    pub(super) fn len(&self) -> usize {
        self.versions.len() + self.objects.len()
    }
}
