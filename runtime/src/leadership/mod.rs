//! Leader election, and the right to write that it gives.
//!
//! Every sender of mutating requests has a [`Leadership`]; before it begins, and once it has ended, none is sent. Decision 0004
//! lists where that is checked.
//!
//! # Guarantees
//! - A leadership that has ended stays so: no extension, however late its answer arrives, revives it.
//! - Time in which the process was stopped or the host was suspended counts, as in [`boot_clock`].
//! - All clones of a leadership, and all that [`Leadership::all`] makes from it, see its end.
//!
//! # Caveats
//! - [`Leadership::ended`] may be a second late: timers stand still while the host is suspended.
//! - A request that was sent in time may be committed late: safety rests on names, UIDs and versions.

mod checked_clock;
mod clock;
mod election;
mod guard;
mod protocol;
mod thread;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use futures::future::{self, FutureExt};
use tokio::sync::watch;

pub use self::{
    checked_clock::{LARGE_SKEW, NOTICEABLE_SKEW, checked_clock},
    clock::{Clock, boot_clock, tokio_clock},
    election::{Election, LeaseConfig},
};

/// How long [`Leadership::ended`] trusts a timer before it checks the clock again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The right to write, until it ends. Cheap to clone. The default one has not begun: it is for the clients of a process that is
/// yet to win its election, and [`crate::manager::Manager::run`] begins it.
#[derive(Clone, Default)]
pub struct Leadership {
    /// Absent before it begins. It lasts while all of these do.
    parts: Arc<OnceLock<Vec<Arc<Part>>>>,
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
        Self::ending(boot_clock(), End::Never)
    }

    /// A leadership that lasts until `clock` reads `until`, unless it is extended or ended before.
    pub fn until(clock: Arc<dyn Clock>, until: Duration) -> Self {
        Self::ending(clock, End::At(until))
    }

    /// A leadership that lasts while each of `several` does. Ending it ends each of them.
    pub fn all<'a>(several: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::of(several.into_iter().flat_map(Self::parts).cloned().collect())
    }

    fn ending(clock: Arc<dyn Clock>, end: End) -> Self {
        Self::of(vec![Arc::new(Part { clock, end: watch::Sender::new(end) })])
    }

    fn of(parts: Vec<Arc<Part>>) -> Self {
        Self { parts: Arc::new(parts.into()) }
    }

    /// Begins this leadership, if it has not begun: it lasts as long as `elected`.
    pub(crate) fn begin(&self, elected: &Self) {
        self.parts.get_or_init(|| elected.parts().to_vec());
    }

    fn parts(&self) -> &[Arc<Part>] {
        self.parts.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The remaining time: zero before it begins and when it has ended, [`Duration::MAX`] when it is unlimited.
    pub fn remaining(&self) -> Duration {
        self.parts().iter().map(|part| part.remaining()).min().unwrap_or_default()
    }

    /// Whether there is no right to write: the leadership has ended, or has not begun.
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Whether it has expired: its holder did not end it in time, so another process may lead.
    pub fn has_lapsed(&self) -> bool {
        let has_lapsed = |part: &Arc<Part>| matches!(*part.end.borrow(), End::At(end) if end <= part.clock.elapsed());
        self.parts().iter().any(has_lapsed)
    }

    /// Runs `work` only while the leadership lasts; returns `None` if it ends first.
    ///
    /// Waiting for [`Leadership::ended`] is not enough: the work may be polled first, and send its next request.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| if self.is_over() { Poll::Ready(None) } else { work.as_mut().poll(context).map(Some) }).await
    }

    /// Extends the leadership until its clock reads `until`, if that is later. Returns whether it continues.
    pub fn extend(&self, until: Duration) -> bool {
        self.parts().iter().all(|part| part.extend(until))
    }

    /// Ends the leadership now, for all clones.
    pub fn end(&self) {
        self.parts().iter().for_each(|part| part.end());
    }

    /// Resolves when the leadership, which must have begun, has ended.
    pub async fn ended(&self) {
        if self.parts().is_empty() {
            return future::pending().await;
        }
        // The order does not matter: the first part that ends, ends the leadership.
        future::select_all(self.parts().iter().map(|part| part.ended().boxed())).await;
    }
}

impl Part {
    fn remaining(&self) -> Duration {
        self.end.borrow().after(self.clock.elapsed())
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
            // Under the lock of the value: no end comes between the check and the write.
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
    fn after(&self, now: Duration) -> Duration {
        match self {
            Self::Never => Duration::MAX,
            Self::At(end) => end.saturating_sub(now),
            Self::Over => Duration::ZERO,
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("remaining", &self.remaining()).finish()
    }
}

#[cfg(test)]
mod tests;
