//! Clocks.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::object::Cluster;

/// The wall clock and the monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// The time since a fixed moment in the past. It never goes back, even if the wall clock is stepped.
    fn elapsed(&self) -> Duration;

    /// The wall-clock time, for timestamps in objects. It may jump.
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    /// How far the wall clock is ahead of that of the API server that differs most, at least; negative if it is behind. Only a
    /// [`checked_clock`](super::checked_clock) knows this and what follows.
    fn skew(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    /// The same for the API server of each cluster.
    fn skews(&self) -> Vec<(Cluster, SignedDuration)> {
        vec![]
    }

    /// Records the time in an answer of an API server to a request that was sent at `sent`, in [`Clock::elapsed`] time.
    fn answered(&self, _cluster: Cluster, _sent: Duration, _date: Timestamp) {}
}

/// Linux' `CLOCK_BOOTTIME`: it advances while the host is suspended and while the process is stopped.
pub fn boot_clock() -> Arc<dyn Clock> {
    Arc::new(BootClock)
}

/// The clock of tokio's timers: simulated time under `tokio::time::pause`. Its wall-clock time is `wall` now.
pub fn tokio_clock(wall: Timestamp) -> Arc<dyn Clock> {
    Arc::new(TokioClock { origin: Instant::now(), wall })
}

struct BootClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;

/// On other systems the monotonic clock, for development only. On macOS it includes suspension too.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for BootClock {
    fn elapsed(&self) -> Duration {
        let time = rustix::time::clock_gettime(BOOT_CLOCK);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

struct TokioClock {
    origin: Instant,
    wall: Timestamp,
}

impl Clock for TokioClock {
    fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.elapsed()).unwrap_or(SignedDuration::MAX);
        self.wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_moves_forward() {
        let clock = boot_clock();
        let first = clock.elapsed();
        assert!(first > Duration::ZERO);
        assert!(clock.elapsed() >= first);
    }
}
