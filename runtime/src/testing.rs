//! Shared helpers of unit tests.

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use serde_json::json;

use crate::{cache::Unreadable, leadership::Clock, object::Cluster};

/// The cluster of most tests, and another one.
pub(crate) const HOME: Cluster = Cluster::new("home");
pub(crate) const AWAY: Cluster = Cluster::new("away");

/// An undecodable object in namespace `n` whose controller has the UID `owner`, and whose annotation holds a secret.
pub(crate) fn controlled(name: &str, owner: &str) -> Unreadable {
    let owner = json!({"apiVersion": "v1", "kind": "Set", "name": "s", "uid": owner, "controller": true});
    let metadata = json!({"namespace": "n", "name": name, "uid": "u", "ownerReferences": [owner],
        "annotations": {"last-applied": "hush"}});
    Unreadable::new(serde_json::from_value(metadata).unwrap())
}

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
