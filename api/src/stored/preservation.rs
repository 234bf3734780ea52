//! Whether a machine is preserved, and what its Node shows of that. The texts are MCM's.

use std::{fmt, str::FromStr};

use k8s_openapi::api::core::v1::NodeCondition;

use super::Malformed;
use crate::annotations;

/// Whether and when a machine is preserved: not replaced although it has failed, not removed by the cluster autoscaler, and the last
/// of its set to be deleted. The value of [`annotations::PRESERVE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preserve {
    /// In every phase, until its time is over.
    Now,
    /// While the machine has failed.
    WhenFailed,
    /// The same. Its set has asked for it, within `autoPreserveFailedMachineMax`.
    Auto,
    /// Never, and not any longer.
    Never,
}

impl Preserve {
    const ALL: [Self; 4] = [Self::Now, Self::WhenFailed, Self::Auto, Self::Never];

    /// The value of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => annotations::PRESERVE_NOW,
            Self::WhenFailed => annotations::PRESERVE_WHEN_FAILED,
            Self::Auto => annotations::PRESERVE_AUTO,
            Self::Never => annotations::PRESERVE_FALSE,
        }
    }
}

impl FromStr for Preserve {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let value = Self::ALL.into_iter().find(|value| value.as_str() == text);
        value.ok_or_else(|| Malformed::new("value of the annotation", text))
    }
}

impl fmt::Display for Preserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the Node of a preserved machine shows, in the message of its condition `Preserved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreservedNode {
    /// Whether the Node was drained, because the machine had failed.
    pub is_drained: bool,
    /// When the preservation ends, for people.
    pub until: String,
}

const DRAINED: &str = "Preserved node drained successfully. ";
const UNTIL: &str = "Machine preserved until ";

impl PreservedNode {
    /// Reads it from a condition that is True. MCM writes it in the course of a drain that failed as well, as False.
    pub fn of(condition: &NodeCondition) -> Option<Self> {
        condition.message.as_deref().filter(|_| condition.status == "True")?.parse().ok()
    }
}

impl FromStr for PreservedNode {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (is_drained, rest) = text.strip_prefix(DRAINED).map_or((false, text), |rest| (true, rest));
        let until = rest.strip_prefix(UNTIL).and_then(|rest| rest.strip_suffix('.'));
        let until = until.ok_or_else(|| Malformed::new("message of a preserved node", text))?;
        Ok(Self { is_drained, until: until.to_owned() })
    }
}

impl fmt::Display for PreservedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{UNTIL}{}.", if self.is_drained { DRAINED } else { "" }, self.until)
    }
}
