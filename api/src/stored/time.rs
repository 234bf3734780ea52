//! Times as Kubernetes writes them.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

/// A time as RFC 3339 in UTC, written in whole seconds. Others may write it with fractions or an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub Timestamp);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl FromStr for Seconds {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        text.parse().map(Self)
    }
}
