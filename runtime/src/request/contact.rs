//! Whether an API server is there, and since when without a break.
//!
//! A controller must not judge what others report while they cannot report: when an API server comes back, all that its
//! caches show may be as old as the outage. So a plan has to know since when the server has answered.
//!
//! How often an idle server speaks says nothing. A real kube-apiserver sends the bookmarks of an idle kind after 60 or
//! 120 s or never, and goes on sending them while its etcd is away and nobody can write. So only an event or a good
//! answer counts as contact, and after 30 s without either one of the watches asks.
//!
//! # Guarantees
//! * An idle server that answers is in contact.
//! * A break of less than 30 s is ignored, and one of more than 60 s is noticed. Between the two it depends on what was
//!   heard before it.
//! * All watches of a cluster share one contact. When they come back one after the other, one break has ended, not
//!   several; a single watch that fails is no break.
//! * A silent server gets one question in 30 s, one that does not answer one in 10 s, from all watches together.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// After this long without an event or an answer the server is asked.
const SILENCE: Duration = Duration::from_secs(30);
/// How long an answer to that question may take, and the time between two questions without an answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After this long without an event or an answer contact is lost: three questions have found no answer.
const BREAK: Duration = Duration::from_mins(1);

/// The contact with one API server.
#[derive(Debug, Default)]
pub(crate) struct Contact(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When the newest event or answer came.
    heard: Option<Instant>,
    /// When the newest question was sent.
    asked: Option<Instant>,
    /// The end of the newest break.
    since: Option<Instant>,
}

impl State {
    fn is_broken(&self, now: Instant) -> bool {
        self.heard.is_none_or(|heard| now - heard >= BREAK)
    }

    /// When the next question is due.
    fn due(&self, now: Instant) -> Instant {
        let silent = self.heard.map_or(now, |heard| heard + SILENCE);
        let unanswered = self.asked.filter(|asked| self.heard.is_none_or(|heard| heard < *asked));
        unanswered.map_or(silent, |asked| silent.max(asked + ANSWER_WITHIN))
    }
}

impl Contact {
    /// Notes an event or a good answer.
    pub(crate) fn heard(&self) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        if state.is_broken(now) {
            state.since = Some(now);
        }
        state.heard = Some(now);
    }

    /// Since when there has been contact without a break; the present moment while there is none.
    pub(crate) fn since(&self) -> Instant {
        let (state, now) = (*self.0.lock(), Instant::now());
        state.since.filter(|_| !state.is_broken(now)).unwrap_or(now)
    }

    /// Resolves when the server has been silent and it is the caller's turn to ask.
    pub(crate) async fn silence(&self) {
        loop {
            let due = {
                let (mut state, now) = (self.0.lock(), Instant::now());
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
        pass(600).await;
        contact.heard();
        let regained = Instant::now();
        // The other watches come back one after the other.
        for _ in 0..3 {
            pass(20).await;
            contact.heard();
        }
        assert_eq!(contact.since(), regained);
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
