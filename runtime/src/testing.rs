//! Shared helpers of unit tests.

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use crate::{leadership::Clock, object::Cluster};

/// The cluster of most tests, and another one.
pub(crate) const HOME: Cluster = Cluster::new("home");
pub(crate) const AWAY: Cluster = Cluster::new("away");

/// A clock that only a test moves, as if the process slept in between. The wall-clock time is the computer's.
#[derive(Debug, Default)]
pub(crate) struct HandClock(AtomicU64);

impl HandClock {
    /// Sets the seconds since the start.
    ///
    /// # Panics
    /// If it would go back: no [`Clock`] does.
    pub(crate) fn set(&self, seconds: u64) {
        let before = self.0.swap(seconds, SeqCst);
        assert!(before <= seconds, "from {before} s back to {seconds} s");
    }
}

impl Clock for HandClock {
    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0.load(SeqCst))
    }
}
