//! The events of a devcluster, line by line, for all subscribers.

use std::collections::VecDeque;

use tokio::sync::watch;

/// How many lines are kept for later subscribers.
const KEPT: usize = 200;

/// The stage of a devcluster's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not everything was started yet.
    Starting,
    /// Everything was started and can be used.
    Ready,
    /// It is ending, or the start failed.
    Ended,
}

/// The latest lines, and the stage.
#[derive(Clone, Debug)]
pub(crate) struct History {
    lines: VecDeque<String>,
    /// How many lines were dropped.
    dropped: usize,
    pub(crate) stage: Stage,
}

impl History {
    /// The lines after the first `seen` ones, without dropped ones. Advances `seen` to the end.
    pub(crate) fn new_lines(&self, seen: &mut usize) -> Vec<String> {
        let skipped = seen.saturating_sub(self.dropped);
        *seen = self.dropped + self.lines.len();
        self.lines.iter().skip(skipped).cloned().collect()
    }
}

/// Reports progress to all subscribers.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    history: watch::Sender<History>,
    logged: bool,
}

impl Progress {
    /// `logged`: also writes each line to the log, because there may be no subscriber.
    pub(crate) fn new(logged: bool) -> Self {
        let history = History { lines: VecDeque::new(), dropped: 0, stage: Stage::Starting };
        Self { history: watch::Sender::new(history), logged }
    }

    pub(crate) fn report(&self, line: String) {
        if self.logged {
            tracing::info!("{line}");
        }
        self.history.send_modify(|history| {
            history.lines.push_back(line);
            if history.lines.len() > KEPT {
                history.lines.pop_front();
                history.dropped += 1;
            }
        });
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.history.send_modify(|history| history.stage = stage);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<History> {
        self.history.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_subscribers_receive_the_kept_lines() {
        let progress = Progress::new(false);
        let history = progress.subscribe();
        for number in 0..KEPT + 3 {
            progress.report(number.to_string());
        }
        let history = history.borrow();
        let mut seen = 0;
        assert_eq!(history.new_lines(&mut seen)[0], "3");
        assert_eq!(seen, KEPT + 3);
        assert!(history.new_lines(&mut seen).is_empty());
        seen = KEPT + 1;
        assert_eq!(history.new_lines(&mut seen), [(KEPT + 1).to_string(), (KEPT + 2).to_string()]);
    }
}
