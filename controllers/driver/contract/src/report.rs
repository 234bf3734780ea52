//! What the checks have found.

use std::fmt;

/// The outcomes of all checks that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order of the checks.
    pub outcomes: Vec<Outcome>,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its name.
    pub check: &'static str,
    /// The rule of the contract that it checks.
    pub rule: &'static str,
    /// What it found.
    pub verdict: Verdict,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The driver keeps the rule.
    Kept,
    /// The rule could not be checked, and why.
    Skipped(String),
    /// The driver breaks the rule, and how.
    Broken(String),
}

impl Report {
    /// The names of the checks whose rules are broken.
    pub fn broken(&self) -> Vec<&'static str> {
        self.names(|verdict| matches!(verdict, Verdict::Broken(_)))
    }

    /// The names of the checks that were skipped.
    pub fn skipped(&self) -> Vec<&'static str> {
        self.names(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    fn names(&self, is_meant: impl Fn(&Verdict) -> bool) -> Vec<&'static str> {
        let outcomes = self.outcomes.iter().filter(|outcome| is_meant(&outcome.verdict));
        outcomes.map(|outcome| outcome.check).collect()
    }

    /// Prints the report.
    ///
    /// # Panics
    /// If a rule is broken.
    #[track_caller]
    #[allow(clippy::panic, reason = "it is the assertion of a test")]
    pub fn assert_kept(&self) {
        println!("{self}");
        let broken = self.broken();
        assert!(broken.is_empty(), "the driver breaks the contract: {}\n{self}", broken.join(", "));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Outcome { check, rule, verdict } in &self.outcomes {
            match verdict {
                Verdict::Kept => writeln!(f, "ok       {check}")?,
                Verdict::Skipped(why) => writeln!(f, "skipped  {check}: {why}")?,
                Verdict::Broken(how) => writeln!(f, "BROKEN   {check}: {how}\n         the rule: {rule}")?,
            }
        }
        Ok(())
    }
}
