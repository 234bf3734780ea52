//! A clock that is compared with the clocks of the API servers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::clock::Clock;
use crate::object::Cluster;

/// A greater difference between this computer's clock and that of an API server is reported, and the earlier of both counts.
pub const NOTICEABLE_SKEW: SignedDuration = SignedDuration::from_secs(30);
/// With a greater difference what depends on time is delayed noticeably.
pub const LARGE_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The header `Date` has whole seconds, rounded down.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// A clock for a process whose objects have times of other clocks: `creationTimestamp` and `deletionTimestamp` are those of the
/// API server.
///
/// # Guarantees
/// * While an API server's clock is more than [`NOTICEABLE_SKEW`] behind, [`Clock::wall`] is the time of that server, so that
///   nothing times out before it does by both clocks. While the server's clock is ahead, it is the time of this computer.
/// * A step of this computer's clock is noticed at once: it is measured against the boot clock, not against the next answer.
///
/// # Assumptions
/// Each answer of an API server has the time of that answer. One without a time changes nothing.
///
/// # Caveats
/// * The difference is a lower bound: an answer that takes long, and the whole seconds of the header, make it smaller.
/// * Without an answer so far there is no difference.
pub fn checked_clock(clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
    Arc::new(CheckedClock { clock, answers: Mutex::default() })
}

struct CheckedClock {
    clock: Arc<dyn Clock>,
    answers: Mutex<BTreeMap<Cluster, Answer>>,
}

/// The time in an answer of an API server.
#[derive(Clone, Copy)]
struct Answer {
    /// How far this computer's clock was ahead, at least; negative if it was behind.
    skew: SignedDuration,
    /// The wall-clock time at monotonic zero when it arrived.
    zero: Timestamp,
}

impl Answer {
    /// The difference now, if the wall-clock time at monotonic zero is `zero` now: a change means that the clock was stepped.
    fn skew_at(&self, zero: Option<Timestamp>) -> SignedDuration {
        let stepped = zero.map_or(SignedDuration::ZERO, |zero| zero.duration_since(self.zero));
        self.skew.saturating_add(stepped)
    }
}

impl CheckedClock {
    fn zero(&self) -> Option<Timestamp> {
        let elapsed = SignedDuration::try_from(self.clock.elapsed()).ok()?;
        self.clock.wall().checked_sub(elapsed).ok()
    }
}

impl Clock for CheckedClock {
    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let zero = self.zero();
        let ahead = self.answers.lock().values().map(|answer| answer.skew_at(zero)).max();
        let ahead = ahead.filter(|skew| *skew > NOTICEABLE_SKEW);
        self.clock.wall().saturating_sub(ahead.unwrap_or_default()).unwrap_or(Timestamp::MIN)
    }

    fn skew(&self) -> SignedDuration {
        let zero = self.zero();
        let answers = self.answers.lock();
        answers.values().map(|answer| answer.skew_at(zero)).max_by_key(|skew| skew.abs()).unwrap_or_default()
    }

    fn skews(&self) -> Vec<(Cluster, SignedDuration)> {
        let zero = self.zero();
        self.answers.lock().iter().map(|(cluster, answer)| (*cluster, answer.skew_at(zero))).collect()
    }

    fn answered(&self, cluster: Cluster, sent: Duration, date: Timestamp) {
        let (Some(zero), now) = (self.zero(), self.clock.wall()) else { return };
        let took = SignedDuration::try_from(self.clock.elapsed().saturating_sub(sent)).unwrap_or_default();
        let latest = now.duration_since(date);
        let earliest = latest.saturating_sub(took).saturating_sub(RESOLUTION);
        let skew = earliest.max(SignedDuration::ZERO).saturating_add(latest.min(SignedDuration::ZERO));
        self.answers.lock().insert(cluster, Answer { skew, zero });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    use super::*;

    const HOME: Cluster = Cluster::new("home");
    const OTHER: Cluster = Cluster::new("other");

    /// Seconds since noon: of the wall clock, and of the boot clock.
    #[derive(Default)]
    struct Hands {
        wall: AtomicI64,
        boot: AtomicI64,
    }

    impl Hands {
        fn pass(&self, seconds: i64) {
            self.wall.fetch_add(seconds, Relaxed);
            self.boot.fetch_add(seconds, Relaxed);
        }

        fn step(&self, seconds: i64) {
            self.wall.fetch_add(seconds, Relaxed);
        }
    }

    fn noon(seconds: i64) -> Timestamp {
        let noon: Timestamp = "2026-06-01T12:00:00Z".parse().expect("it is a time");
        noon + SignedDuration::from_secs(seconds)
    }

    impl Clock for Hands {
        fn elapsed(&self) -> Duration {
            Duration::from_secs(u64::try_from(self.boot.load(Relaxed)).unwrap_or_default())
        }

        fn wall(&self) -> Timestamp {
            noon(self.wall.load(Relaxed))
        }
    }

    #[test]
    fn nothing_times_out_before_it_does_by_both_clocks() {
        // How far the clock is ahead, and what counts.
        for (ahead, expected) in [(0, 0), (30, 30), (31, 31), (32, 1), (3_600, 1), (-20, -20), (-3_600, -3_600)] {
            let hands = Arc::new(Hands::default());
            let clock = checked_clock(hands.clone());
            hands.step(ahead);
            clock.answered(HOME, Duration::ZERO, noon(0));
            assert_eq!(clock.wall(), noon(expected), "{ahead} s ahead");
        }
    }

    #[test]
    fn a_step_of_the_clock_counts_before_the_next_answer() {
        let hands = Arc::new(Hands::default());
        let clock = checked_clock(hands.clone());
        clock.answered(HOME, Duration::ZERO, noon(0));
        hands.pass(100);
        hands.step(3_600);
        assert_eq!((clock.wall(), clock.skew()), (noon(100), SignedDuration::from_secs(3_600)));
        hands.step(-7_200);
        assert_eq!((clock.wall(), clock.skew()), (noon(-3_500), SignedDuration::from_secs(-3_600)));
        hands.step(3_600);
        assert_eq!((clock.wall(), clock.skew()), (noon(100), SignedDuration::ZERO), "it is right again");
    }

    #[test]
    fn an_answer_that_takes_long_proves_less() {
        let hands = Arc::new(Hands::default());
        let clock = checked_clock(hands.clone());
        hands.pass(40);
        clock.answered(HOME, Duration::ZERO, noon(0));
        assert_eq!(clock.skew(), SignedDuration::ZERO, "the server may have answered at once");
        clock.answered(HOME, Duration::from_secs(40), noon(0));
        assert_eq!(clock.skew(), SignedDuration::from_secs(39));
    }

    #[test]
    fn the_earliest_clock_counts() {
        let hands = Arc::new(Hands::default());
        let clock = checked_clock(hands.clone());
        clock.answered(HOME, Duration::ZERO, noon(0));
        clock.answered(OTHER, Duration::ZERO, noon(-601));
        assert_eq!(clock.wall(), noon(-600));
        assert_eq!(clock.skews(), [(HOME, SignedDuration::ZERO), (OTHER, SignedDuration::from_secs(600))]);
        clock.answered(OTHER, Duration::ZERO, noon(0));
        assert_eq!(clock.wall(), noon(0));
    }
}
