//! The newest round of replacements for Machines that never joined.

use std::{fmt, str::FromStr};

use super::{Malformed, Ordinal, Seconds};

/// How many rounds of replacements there were in a row, the first ordinal of the newest one, and when that began, as in
/// `3;42;2026-06-01T12:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreationRound {
    /// How many rounds there were in a row.
    pub rounds: u32,
    /// The first ordinal of the newest one.
    pub first: Ordinal,
    /// When it began.
    pub begun: Seconds,
}

impl fmt::Display for CreationRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};{};{}", self.rounds, self.first, self.begun)
    }
}

impl FromStr for CreationRound {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new("round of replacements", text);
        let mut parts = text.split(';');
        let (Some(rounds), Some(first), Some(begun), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        Ok(Self {
            rounds: rounds.parse().map_err(|_| malformed())?,
            first: first.parse()?,
            begun: begun.parse().map_err(|_| malformed())?,
        })
    }
}
