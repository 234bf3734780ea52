//! The right to write, with its end.
//!
//! Every sender of mutating requests has a [`Leadership`]. Without one, or once it has ended, the sender sends nothing. Leader
//! election ([`super::Election`]) creates it; a process without election uses [`Leadership::unlimited`].
//!
//! # Guarantees
//!
//! - A leadership that has ended stays so: no extension, however late its answer arrives, revives it.
//! - [`Leadership::remaining`] reads the clock at each call. It includes time in which the process was stopped (`SIGSTOP`, a
//!   frozen container) or the host was suspended, as [`BootClock`] does.
//! - All clones of a leadership, and all that [`Leadership::all`] makes from it, see its end.
//!
//! # Assumptions
//!
//! - The [`Clock`] never goes back.
//!
//! # Caveats
//!
//! - [`Leadership::ended`] uses timers that stand still while the host is suspended, so it checks the clock at least once a
//!   second. After a suspension it resolves up to a second late. [`Leadership::remaining`] is never late.
//! - A request that was sent in time may be committed late. Leadership narrows that window and cannot close it. Writes that
//!   must not happen twice need names, UIDs and resource versions as well.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{self, FutureExt};
use tokio::sync::watch;

use super::clock::{BootClock, Clock};

/// How long [`Leadership::ended`] trusts a timer before it checks the clock again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The right to write, until it ends. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Leadership {
    /// The leadership lasts while all of these do. Empty: for ever.
    parts: Arc<[Arc<Part>]>,
}

/// One source of the right to write.
struct Part {
    clock: Arc<dyn Clock>,
    end: watch::Sender<End>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    /// In the clock's `elapsed` time.
    At(Duration),
    /// Ended by its holder before it expired.
    Over,
}

impl Leadership {
    /// A leadership that lasts until [`Leadership::end`] is called: for a process without leader election.
    pub fn unlimited() -> Self {
        Self::of(Part { clock: Arc::new(BootClock), end: watch::Sender::new(End::Never) })
    }

    /// A leadership that lasts until `clock` reads `until`, unless it is extended or ended before.
    pub fn until(clock: Arc<dyn Clock>, until: Duration) -> Self {
        Self::of(Part { clock, end: watch::Sender::new(End::At(until)) })
    }

    /// A leadership that lasts while each of `terms` does. Ending it ends each of them.
    pub fn all<'a>(terms: impl IntoIterator<Item = &'a Self>) -> Self {
        Self { parts: terms.into_iter().flat_map(|term| term.parts.iter().cloned()).collect() }
    }

    fn of(part: Part) -> Self {
        Self { parts: Arc::new([Arc::new(part)]) }
    }

    /// The remaining time: zero when it has ended, [`Duration::MAX`] when it is unlimited.
    pub fn remaining(&self) -> Duration {
        self.parts.iter().map(|part| part.remaining()).min().unwrap_or(Duration::MAX)
    }

    /// Whether the leadership has ended.
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Whether the leadership, or one of its parts, has expired: its holder did not end it in time, so another process may
    /// lead.
    pub fn has_lapsed(&self) -> bool {
        self.parts.iter().any(|part| part.has_lapsed())
    }

    /// Runs `work` only while the leadership lasts; returns `None` if it ends first.
    ///
    /// Waiting for [`Leadership::ended`] alone is not enough: that waiter may be polled after the work, which has then already
    /// sent its next request.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| if self.is_over() { Poll::Ready(None) } else { work.as_mut().poll(context).map(Some) }).await
    }

    /// Extends the leadership until its clock reads `until`, if that is later than the current end.
    ///
    /// Returns whether the leadership continues. One that has ended is not revived: in between, other processes may have had
    /// the right to write.
    pub fn extend(&self, until: Duration) -> bool {
        self.parts.iter().all(|part| part.extend(until))
    }

    /// Ends the leadership now, for all clones.
    pub fn end(&self) {
        for part in self.parts.iter() {
            part.end();
        }
    }

    /// Resolves when the leadership has ended.
    pub async fn ended(&self) {
        if self.parts.is_empty() {
            return future::pending().await;
        }
        // The order does not matter: the first part that ends, ends the leadership.
        future::select_all(self.parts.iter().map(|part| part.ended().boxed())).await;
    }
}

impl Part {
    fn remaining(&self) -> Duration {
        let end = *self.end.borrow();
        end.after(self.clock.elapsed())
    }

    fn has_lapsed(&self) -> bool {
        matches!(*self.end.borrow(), End::At(end) if end <= self.clock.elapsed())
    }

    fn end(&self) {
        self.end.send_modify(|end| {
            // An expired leadership stays expired.
            if !end.after(self.clock.elapsed()).is_zero() {
                *end = End::Over;
            }
        });
    }

    fn extend(&self, until: Duration) -> bool {
        let mut goes_on = true;
        self.end.send_if_modified(|end| {
            // Decide under the lock of the value, so that no end comes between the check and the write.
            if end.after(self.clock.elapsed()).is_zero() {
                goes_on = false;
                // The waiters for the end check at once.
                return true;
            }
            let later = matches!(end, End::At(foreseen) if until > *foreseen);
            if later {
                *end = End::At(until);
            }
            later
        });
        goes_on
    }

    async fn ended(&self) {
        let mut changes = self.end.subscribe();
        loop {
            let end = *changes.borrow_and_update();
            let remaining = end.after(self.clock.elapsed());
            if remaining.is_zero() {
                return;
            }
            // `self` holds the sender, so `changed` cannot fail during this borrow.
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = tokio::time::sleep(remaining.min(LOOK_AGAIN)), if !matches!(end, End::Never) => {}
            }
        }
    }
}

impl End {
    fn after(self, now: Duration) -> Duration {
        match self {
            Self::Never => Duration::MAX,
            Self::At(end) => end.saturating_sub(now),
            Self::Over => Duration::ZERO,
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Leadership").field("remaining", &self.remaining()).finish()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::leadership::clock::TokioClock;
    use crate::testing::HandClock;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn counts_down_and_is_extended() {
        let clock = Arc::new(HandClock::default());
        let term = Leadership::until(clock.clone(), seconds(10));
        assert_eq!(term.remaining(), seconds(10));
        clock.set(4);
        assert_eq!(term.remaining(), seconds(6));
        assert!(term.extend(seconds(14)));
        assert_eq!(term.remaining(), seconds(10));
        assert!(term.extend(seconds(12)), "an answer that comes out of order shortens nothing");
        assert_eq!(term.remaining(), seconds(10));
    }

    #[test]
    fn what_is_over_stays_over() {
        let clock = Arc::new(HandClock::default());
        let term = Leadership::until(clock.clone(), seconds(10));
        clock.set(10);
        assert!(term.is_over());
        assert!(!term.extend(seconds(30)), "the answer to a renewal that came after a long stop");
        assert!(term.is_over());

        let ended = Leadership::unlimited();
        assert_eq!(ended.remaining(), Duration::MAX);
        ended.clone().end();
        assert!(ended.is_over());
        assert!(!ended.extend(seconds(1)));
    }

    #[test]
    fn to_run_out_is_not_to_be_ended() {
        let clock = Arc::new(HandClock::default());
        let of_ten = || Leadership::until(clock.clone(), seconds(10));
        let (ended, lapsed) = (of_ten(), of_ten());
        ended.end();
        assert!(ended.is_over() && !lapsed.has_lapsed());
        clock.set(10);
        lapsed.extend(seconds(20));
        lapsed.end();
        assert!(lapsed.has_lapsed() && Leadership::all([&ended, &lapsed]).has_lapsed());
        assert!(!ended.has_lapsed() && !Leadership::unlimited().has_lapsed());
    }

    #[test]
    fn several_last_while_all_do() {
        let clock: Arc<dyn Clock> = Arc::new(HandClock::default());
        let (short, long) = (Leadership::until(clock.clone(), seconds(5)), Leadership::until(clock, seconds(9)));
        let both = Leadership::all([&short, &long]);
        assert_eq!(both.remaining(), seconds(5));
        both.end();
        assert!(short.is_over() && long.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn ended_resolves_in_time_and_after_an_extension() {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        let term = Leadership::until(Arc::new(clock), seconds(10));
        let waiter = tokio::spawn({
            let term = term.clone();
            async move { term.ended().await }
        });
        tokio::time::sleep(seconds(8)).await;
        assert!(term.extend(seconds(20)));
        tokio::time::sleep(seconds(11)).await;
        assert!(!waiter.is_finished());
        waiter.await.unwrap();
        assert_eq!(clock.elapsed(), seconds(20));
        assert_eq!(clock.wall(), "1970-01-01T00:00:20Z".parse::<Timestamp>().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn ended_notices_time_that_timers_did_not_see() {
        let clock = Arc::new(HandClock::default());
        let term = Leadership::until(clock.clone(), seconds(10));
        let waiter = tokio::spawn({
            let term = term.clone();
            async move { term.ended().await }
        });
        tokio::task::yield_now().await;
        clock.set(3_600);
        tokio::time::timeout(seconds(2), waiter).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn ended_resolves_at_once_when_one_of_several_ends() {
        let (first, second) = (Leadership::unlimited(), Leadership::unlimited());
        let both = Leadership::all([&first, &second]);
        assert!(tokio::time::timeout(seconds(60), both.ended()).await.is_err());
        second.end();
        both.ended().await;
        assert!(!first.is_over());
    }
}
