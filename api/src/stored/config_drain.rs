//! The drain of a Node for another configuration.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

use super::{Malformed, Seconds};

/// What is known of the drain of a Node that its agent asks for, or may ask for, before it applies a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigDrain {
    /// `open`: the Node was schedulable when it was given its target, and no controller has cordoned it since.
    Open,
    /// `cordoned;<request>;<RFC 3339>`: the controller has cordoned it for this request, and began to drain it then.
    Cordoned(DrainRequest),
    /// `closed;<request>;<RFC 3339>`: the same, and the Node was unschedulable before. It stays so.
    Closed(DrainRequest),
}

/// What an agent has asked for, and when its drain began, or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainRequest {
    /// The text by which the agent asks, such as `drain-rendered-worker-0123`.
    pub asked: String,
    /// When the drain began; once it is acknowledged, when it ended.
    pub since: Timestamp,
}

impl ConfigDrain {
    /// The same with another time.
    #[must_use]
    pub fn at(self, since: Timestamp) -> Self {
        let at = |request: DrainRequest| DrainRequest { since, ..request };
        match self {
            Self::Open => Self::Open,
            Self::Cordoned(request) => Self::Cordoned(at(request)),
            Self::Closed(request) => Self::Closed(at(request)),
        }
    }
}

impl fmt::Display for ConfigDrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, request) = match self {
            Self::Open => return f.write_str("open"),
            Self::Cordoned(request) => ("cordoned", request),
            Self::Closed(request) => ("closed", request),
        };
        write!(f, "{word};{};{}", request.asked, Seconds(request.since))
    }
}

impl FromStr for ConfigDrain {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let read = || {
            let (word, rest) = text.split_once(';')?;
            let (asked, since) = rest.rsplit_once(';')?;
            let request = DrainRequest { asked: asked.to_owned(), since: since.parse().ok()? };
            match word {
                _ if request.asked.is_empty() => None,
                "cordoned" => Some(Self::Cordoned(request)),
                "closed" => Some(Self::Closed(request)),
                _ => None,
            }
        };
        if text == "open" { Ok(Self::Open) } else { read().ok_or_else(|| Malformed::new("drain of a node", text)) }
    }
}
