//! The state of a connection: its next deadline, and since when it has been idle.

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::Limits;

/// Shared by a connection and its port.
#[derive(Debug)]
pub(super) struct ConnectionState(Mutex<State>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The handshake and the head of the first request.
    Opening,
    /// Between two requests.
    Idle,
    /// A part of a further request's head has arrived.
    Head,
    /// A request's body is arriving. Its handler sets the deadline, so that the client gets an answer.
    Body,
    /// The whole request has arrived.
    Answering,
    /// The answer is being sent.
    Writing,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// When the last answer was ready, or the connection was accepted.
    idle_since: Instant,
    /// Whether bytes of the next request arrived before this one was answered.
    is_ahead: bool,
    /// Whether the whole answer was passed to the connection, which may not have sent it yet.
    is_handed_over: bool,
}

impl State {
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }
}

impl ConnectionState {
    pub(super) fn new(accepted: Instant) -> Self {
        let (since, idle_since) = (accepted, accepted);
        Self(Mutex::new(State { phase: Phase::Opening, since, idle_since, is_ahead: false, is_handed_over: false }))
    }

    pub(super) fn received(&self) {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Idle => state.enter(Phase::Head),
            Phase::Answering | Phase::Writing => state.is_ahead = true,
            Phase::Opening | Phase::Head | Phase::Body => {}
        }
    }

    /// Records that the head of a request is complete.
    pub(super) fn head_read(&self, has_body: bool) {
        let mut state = self.0.lock();
        (state.is_ahead, state.is_handed_over) = (false, false);
        state.enter(if has_body { Phase::Body } else { Phase::Answering });
    }

    /// Records that the body of a request is complete, or that its handler stopped reading.
    pub(super) fn body_read(&self) {
        let mut state = self.0.lock();
        if state.phase == Phase::Body {
            state.enter(Phase::Answering);
        }
    }

    pub(super) fn answered(&self) {
        let mut state = self.0.lock();
        state.enter(Phase::Writing);
        state.idle_since = state.since;
    }

    /// Records that the whole answer was passed to the connection.
    pub(super) fn handed_over(&self) {
        self.0.lock().is_handed_over = true;
    }

    /// Records that the connection has sent everything.
    pub(super) fn flushed(&self) {
        let mut state = self.0.lock();
        if state.phase == Phase::Writing && state.is_handed_over {
            let next = if state.is_ahead { Phase::Head } else { Phase::Idle };
            state.enter(next);
        }
    }

    /// Since when no request has been in progress; `None` during a request.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        (state.phase != Phase::Answering).then_some(state.idle_since)
    }

    /// The next deadline, and the message if it passes.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<(Instant, &'static str)> {
        let state = self.0.lock();
        let (time, why) = match state.phase {
            Phase::Opening => (limits.first_request, "its first request took too long"),
            Phase::Idle => (limits.idle, "it was idle"),
            Phase::Head => (limits.head, "the head of a request took too long"),
            Phase::Writing => (limits.answer, "the client read its answer too slowly"),
            Phase::Body | Phase::Answering => return None,
        };
        Some((state.since + time, why))
    }
}
