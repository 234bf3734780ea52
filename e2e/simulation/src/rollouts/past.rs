//! What something is, and what it was a while ago: a manager may act on that.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// A value with its former ones, each with the time of its end.
pub(super) struct Past<T> {
    now: T,
    since: Instant,
    before: VecDeque<(T, Instant)>,
}

impl<T: PartialEq> Past<T> {
    pub(super) fn new(now: T) -> Self {
        Self { now, since: Instant::now(), before: VecDeque::new() }
    }

    /// Notes a new value, and forgets those that nobody sees any more.
    pub(super) fn set(&mut self, new: T, sight: Duration) {
        while self.before.front().is_some_and(|(_, end)| end.elapsed() > sight) {
            self.before.pop_front();
        }
        if new != self.now {
            let end = Instant::now();
            self.before.push_back((std::mem::replace(&mut self.now, new), end));
            self.since = end;
        }
    }

    pub(super) fn now(&self) -> &T {
        &self.now
    }

    /// Whether everybody sees the value as it is.
    pub(super) fn is_settled(&self, sight: Duration) -> bool {
        self.since.elapsed() > sight
    }

    /// The values that somebody may see.
    pub(super) fn seen(&self, sight: Duration) -> impl Iterator<Item = &T> {
        let former = self.before.iter().filter(move |(_, end)| end.elapsed() <= sight);
        std::iter::once(&self.now).chain(former.map(|(value, _)| value))
    }
}
