//! The clocks of a manager. They can jump.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::leadership::{Clock, tokio_clock};

/// The time of tokio's timers. The time of day can be stepped forward or back, as by an operator or by NTP.
pub(super) struct JumpingClock {
    timers: Arc<dyn Clock>,
    ahead_seconds: AtomicI64,
    /// How many seconds it gains in an hour, from the start on.
    drift: AtomicI64,
    slept_seconds: AtomicU64,
}

impl JumpingClock {
    /// A clock whose current time is `wall`.
    pub(super) fn starting_at(wall: Timestamp) -> Self {
        Self {
            timers: tokio_clock(wall),
            ahead_seconds: AtomicI64::new(0),
            drift: AtomicI64::new(0),
            slept_seconds: AtomicU64::new(0),
        }
    }

    /// Steps the time of day forward or back.
    pub(super) fn jump(&self, seconds: i64) {
        self.ahead_seconds.fetch_add(seconds, Relaxed);
    }

    /// Lets the time of day gain this many seconds in an hour from now on, or lose them.
    pub(super) fn drift(&self, seconds: i64) {
        let former = self.drifted();
        self.drift.store(seconds, Relaxed);
        self.jump(former.saturating_sub(self.drifted()));
    }

    fn drifted(&self) -> i64 {
        let elapsed = i64::try_from(self.timers.elapsed().as_secs()).unwrap_or(i64::MAX);
        self.drift.load(Relaxed).saturating_mul(elapsed) / 3_600
    }

    /// Lets time pass without any timer noticing: the process was stopped, or the computer slept.
    pub(super) fn sleep(&self, seconds: u32) {
        self.slept_seconds.fetch_add(seconds.into(), Relaxed);
    }

    fn slept(&self) -> Duration {
        Duration::from_secs(self.slept_seconds.load(Relaxed))
    }
}

impl Clock for JumpingClock {
    fn elapsed(&self) -> Duration {
        self.timers.elapsed() + self.slept()
    }

    fn wall(&self) -> Timestamp {
        let slept = SignedDuration::try_from(self.slept()).unwrap_or_default();
        let ahead = SignedDuration::from_secs(self.ahead_seconds.load(Relaxed).saturating_add(self.drifted()))
            .saturating_add(slept);
        self.timers.wall().saturating_add(ahead).unwrap_or_else(|_| self.timers.wall())
    }
}
