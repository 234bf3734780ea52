//! The former revisions of a MachineSet.

use std::{fmt, str::FromStr};

use super::Malformed;

/// Kubernetes' limit (`maxRevHistoryLengthInChars`). Its text would grow with each rollback otherwise.
const LONGEST: usize = 2_000;

/// The former revisions of a MachineSet that a rollback made the newest again, oldest first. The text is that of Kubernetes and MCM:
/// numbers, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevisionHistory(Vec<i64>);

impl RevisionHistory {
    /// Adds the revision that the set had until now. The oldest ones go if the text would have more than 2,000 characters.
    pub fn push(&mut self, revision: i64) {
        self.0.push(revision);
        while self.to_string().len() > LONGEST {
            self.0.remove(0);
        }
    }
}

impl fmt::Display for RevisionHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revisions: Vec<_> = self.0.iter().map(i64::to_string).collect();
        f.write_str(&revisions.join(","))
    }
}

impl FromStr for RevisionHistory {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let revisions: Result<_, _> = text.split(',').map(str::parse).collect();
        revisions.map(Self).map_err(|_| Malformed::new("list of revisions", text))
    }
}

#[cfg(test)]
mod tests {
    use super::RevisionHistory;

    #[test]
    fn the_oldest_revisions_go_when_the_text_is_long() {
        let mut history = RevisionHistory::default();
        for revision in 1..=1_000 {
            history.push(revision);
        }
        let text = history.to_string();
        assert!(text.ends_with(",999,1000"), "{text}");
        assert!((1_990..=2_000).contains(&text.len()), "{}", text.len());
        assert_eq!(text.parse(), Ok(history));
    }
}
