//! What is known of each label: lost with the process, and read again by the next one.

use std::{collections::BTreeMap, time::Duration};

use super::mark::{Guarded, Mark, Outcome};

/// How often a label that is as it should be is read.
pub(super) const CONFIRM: Duration = Duration::from_mins(10);
/// The pause after the first failure, which doubles up to [`CONFIRM`].
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// After how many failures, some 35 seconds, nothing waits for a label any longer.
const MAX_AWAITED_FAILURES: u32 = 4;

/// What the process logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A label was set or removed.
    Changed(String),
    /// A label could not be kept.
    Failed(String),
}

#[derive(Debug, Default)]
pub(super) struct Memory(BTreeMap<Guarded, Known>);

#[derive(Debug)]
struct Known {
    /// What was wanted in the last call.
    in_use: bool,
    failures: u32,
    due: Duration,
    /// The last failure, which is logged once.
    failure: Option<String>,
}

impl Memory {
    /// Whether the label has to be read or written now. A failure delays the opposite change too: it fails for the same reason.
    pub(super) fn is_due(&self, now: Duration, mark: &Mark) -> bool {
        self.0
            .get(&mark.on)
            .is_none_or(|known| known.due <= now || (known.in_use != mark.in_use && known.failures == 0))
    }

    /// Whether the label is as wanted, or has failed to become so often enough that nothing waits for it.
    pub(super) fn is_done(&self, mark: &Mark) -> bool {
        self.0.get(&mark.on).is_some_and(|known| {
            known.in_use == mark.in_use && (known.failures == 0 || known.failures >= MAX_AWAITED_FAILURES)
        })
    }

    /// Notes an outcome; returns what is to be logged of it. A failure is logged once.
    pub(super) fn keep(&mut self, now: Duration, mark: Mark, outcome: Outcome) -> Option<Note> {
        let before = self.0.remove(&mark.on);
        let (failures, failure, note) = match outcome {
            Outcome::AsWanted | Outcome::StillInUse | Outcome::NotOurs => (0, None, None),
            Outcome::Changed(text) => (0, None, Some(Note::Changed(text))),
            Outcome::Failed(text) => {
                let is_known = before.as_ref().is_some_and(|before| before.failure.as_ref() == Some(&text));
                let note = (!is_known).then(|| Note::Failed(text.clone()));
                (before.map_or(0, |before| before.failures).saturating_add(1), Some(text), note)
            }
        };
        let pause = if failures == 0 { CONFIRM } else { pause(failures) };
        let due = now.saturating_add(pause);
        self.0.insert(mark.on, Known { in_use: mark.in_use, failures, due, failure });
        note
    }
}

fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(10);
    (RETRY * 2_u32.pow(doublings)).min(CONFIRM)
}
