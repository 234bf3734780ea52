//! Whether an API server answers, since when without a gap, and when it was set back to an earlier state.
//!
//! A plan must not evaluate missing reports while nothing can be reported. A kube-apiserver sends the bookmarks of an idle kind
//! after 60 or 120 s or never, and continues to send them while its etcd is away. So only an event or a successful answer counts
//! as contact. After 30 s without either, a watch probes the server.
//!
//! # Guarantees
//! * A gap of less than 30 s is ignored, and one of more than 60 s is detected.
//! * All watches of a cluster share one contact: a single failing watch is no gap.
//! * All watches together send one probe per 30 s to a silent server, and one per 10 s to a server that does not answer.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// After this time without an event or an answer the server is probed.
const SILENCE: Duration = Duration::from_secs(30);
/// The time limit of a probe, and the interval between two probes without an answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After this time without an event or an answer contact is lost: three probes had no answer.
const BREAK: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(crate) struct Contact {
    state: Mutex<State>,
    set_back: watch::Sender<Option<Instant>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When the newest event or answer arrived.
    heard: Option<Instant>,
    /// When the newest probe was sent.
    asked: Option<Instant>,
    /// The end of the newest gap.
    since: Option<Instant>,
}

impl State {
    fn is_broken(&self, now: Instant) -> bool {
        self.heard.is_none_or(|heard| now - heard >= BREAK)
    }

    fn due(&self, now: Instant) -> Instant {
        let silent = self.heard.map_or(now, |heard| heard + SILENCE);
        let unanswered = self.asked.filter(|asked| self.heard.is_none_or(|heard| heard < *asked));
        unanswered.map_or(silent, |asked| silent.max(asked + ANSWER_WITHIN))
    }
}

impl Contact {
    pub(crate) fn heard(&self) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        if state.is_broken(now) {
            state.since = Some(now);
        }
        state.heard = Some(now);
    }

    /// Since when there has been contact without a gap; the current time while there is none.
    pub(crate) fn since(&self) -> Instant {
        let (state, now) = (*self.state.lock(), Instant::now());
        state.since.filter(|_| !state.is_broken(now)).unwrap_or(now)
    }

    /// Whether there is contact now.
    pub(crate) fn is_held(&self) -> bool {
        !self.state.lock().is_broken(Instant::now())
    }

    /// A request that was sent at `sent` has shown that the server was set back to an earlier state. What was listed before is of
    /// a history that is gone.
    pub(crate) fn was_set_back(&self, sent: Instant) {
        self.set_back.send_modify(|set_back| *set_back = (*set_back).max(Some(sent)));
    }

    /// The moment from which on lists show the state to which the server was set back; `None` if it never was.
    pub(crate) fn set_back(&self) -> Option<Instant> {
        *self.set_back.borrow()
    }

    /// Resolves once lists have to be newer than this one.
    pub(crate) async fn set_back_after(&self, listed: Instant) {
        // The sender lives as long as this.
        drop(self.set_back.subscribe().wait_for(|set_back| set_back.is_some_and(|at| at > listed)).await);
    }

    /// Resolves when the server is silent and the caller must probe it.
    pub(crate) async fn silence(&self) {
        loop {
            let due = {
                let (mut state, now) = (self.state.lock(), Instant::now());
                let due = state.due(now);
                if due <= now {
                    state.asked = Some(now);
                    return;
                }
                due
            };
            sleep_until(due).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_break_is_ignored_and_a_long_one_ends_with_the_first_answer() {
        let contact = Contact::default();
        assert_eq!(contact.since(), Instant::now(), "never so far");
        contact.heard();
        let begun = Instant::now();
        for _ in 0..3 {
            pass(59).await;
            assert_eq!(contact.since(), begun);
            contact.heard();
        }
        pass(60).await;
        assert_eq!(contact.since(), Instant::now(), "it is lost");
        assert!(!contact.is_held());
        pass(600).await;
        contact.heard();
        let regained = Instant::now();
        // The other watches come back one after the other.
        for _ in 0..3 {
            pass(20).await;
            contact.heard();
        }
        assert_eq!(contact.since(), regained);
        assert!(contact.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_asked_by_one_watch_at_a_time() {
        let (contact, begun) = (Contact::default(), Instant::now());
        contact.heard();
        let questions = Mutex::new(vec![]);
        let ask = |answers: usize| {
            let (contact, questions) = (&contact, &questions);
            async move {
                loop {
                    contact.silence().await;
                    questions.lock().push(begun.elapsed().as_secs());
                    if questions.lock().len() <= answers {
                        contact.heard();
                    }
                }
            }
        };
        let all = futures::future::join3(ask(2), ask(2), ask(2));
        assert!(tokio::time::timeout(Duration::from_secs(95), all).await.is_err());
        assert_eq!(*questions.lock(), [30, 60, 90]);
        assert!(contact.silence().now_or_never().is_none(), "the answer may yet come");
        pass(5).await;
        assert!(contact.silence().now_or_never().is_some());
    }
}
