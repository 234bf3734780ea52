//! What a set has to tell, for all who watch it.

use std::collections::VecDeque;

use tokio::sync::watch;

/// So many lines are kept for those who look later.
const KEPT: usize = 200;

/// Where a set is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not everything is there yet.
    Starting,
    /// Everything was started, and can be reached.
    Ready,
    /// It is being ended, or could not be started.
    Over,
}

/// The lines so far, and the stage.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    lines: VecDeque<String>,
    /// How many lines there were before those that are kept.
    dropped: usize,
    pub(crate) stage: Stage,
}

impl Told {
    /// The lines after the first `seen`, as far as they are kept. From now on all have been seen.
    pub(crate) fn news(&self, seen: &mut usize) -> Vec<String> {
        let skipped = seen.saturating_sub(self.dropped);
        *seen = self.dropped + self.lines.len();
        self.lines.iter().skip(skipped).cloned().collect()
    }
}

/// Writes down what happens.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    told: watch::Sender<Told>,
    logged: bool,
}

impl Journal {
    /// `logged`: lines go to the log as well, because nobody may be watching.
    pub(crate) fn new(logged: bool) -> Self {
        let told = Told { lines: VecDeque::new(), dropped: 0, stage: Stage::Starting };
        Self { told: watch::Sender::new(told), logged }
    }

    pub(crate) fn say(&self, line: String) {
        if self.logged {
            tracing::info!("{line}");
        }
        self.told.send_modify(|told| {
            told.lines.push_back(line);
            if told.lines.len() > KEPT {
                told.lines.pop_front();
                told.dropped += 1;
            }
        });
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.told.send_modify(|told| told.stage = stage);
    }

    pub(crate) fn listen(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_look_later_see_what_is_kept() {
        let journal = Journal::new(false);
        let told = journal.listen();
        for number in 0..KEPT + 3 {
            journal.say(number.to_string());
        }
        let told = told.borrow();
        let mut seen = 0;
        assert_eq!(told.news(&mut seen)[0], "3");
        assert_eq!(seen, KEPT + 3);
        assert!(told.news(&mut seen).is_empty());
        seen = KEPT + 1;
        assert_eq!(told.news(&mut seen), [(KEPT + 1).to_string(), (KEPT + 2).to_string()]);
    }
}
