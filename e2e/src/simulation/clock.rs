//! A wall clock that jumps when told to.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::term::{Clock, TokioClock};

/// The time of tokio's timers; the time of day may be set ahead or back, as by an operator or by NTP.
#[derive(Debug)]
pub(super) struct JumpingClock {
    timers: TokioClock,
    ahead_seconds: AtomicI64,
}

impl JumpingClock {
    /// It is `wall` now.
    pub(super) fn starting_at(wall: Timestamp) -> Self {
        Self { timers: TokioClock::starting_at(wall), ahead_seconds: AtomicI64::new(0) }
    }

    /// Sets the time of day ahead, or back.
    pub(super) fn jump(&self, seconds: i64) {
        self.ahead_seconds.fetch_add(seconds, Relaxed);
    }
}

impl Clock for JumpingClock {
    fn elapsed(&self) -> std::time::Duration {
        self.timers.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let ahead = SignedDuration::from_secs(self.ahead_seconds.load(Relaxed));
        self.timers.wall().saturating_add(ahead).unwrap_or_else(|_| self.timers.wall())
    }
}
