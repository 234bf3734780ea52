//! Health timeouts of single Node conditions.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use crate::{GoDuration, ParseGoDurationError};

/// The value of [`HEALTH_TIMEOUTS`](crate::annotations::HEALTH_TIMEOUTS): for how long each of these Node conditions may make
/// a machine unhealthy until the machine is replaced, such as `DiskPressure=30m,Ready=5m`. The `healthTimeout` of the machine
/// is that of all other conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthTimeouts(BTreeMap<String, GoDuration>);

/// Why a text is no [`HealthTimeouts`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseHealthTimeoutsError {
    /// A part is not a condition and a duration.
    #[error("must be a list such as \"DiskPressure=30m,Ready=5m\", and {0:?} is no part of one")]
    Syntax(String),
    /// The duration of a condition is invalid.
    #[error("the timeout of {0:?} {1}")]
    Duration(String, ParseGoDurationError),
    /// The duration of a condition is not positive.
    #[error("the timeout of {0:?} must be greater than 0")]
    NotPositive(String),
    /// A condition has two durations.
    #[error("{0:?} has two timeouts")]
    Duplicate(String),
}

impl HealthTimeouts {
    /// Whether no condition has a timeout of its own.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The conditions that have their own.
    pub fn conditions(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The timeout of a condition, if it has its own.
    pub fn get(&self, condition: &str) -> Option<Duration> {
        self.0.get(condition).map(|timeout| timeout.to_std())
    }
}

impl FromStr for HealthTimeouts {
    type Err = ParseHealthTimeoutsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (condition, timeout) =
                part.split_once('=').ok_or_else(|| ParseHealthTimeoutsError::Syntax(part.to_owned()))?;
            let (condition, timeout) = (condition.trim().to_owned(), timeout.trim());
            // Another separator than a comma makes one long timeout of the rest.
            if condition.is_empty() || timeout.contains(['=', ';', ' ']) {
                return Err(ParseHealthTimeoutsError::Syntax(part.to_owned()));
            }
            let timeout: GoDuration =
                timeout.parse().map_err(|error| ParseHealthTimeoutsError::Duration(condition.clone(), error))?;
            if timeout.to_std().is_zero() {
                return Err(ParseHealthTimeoutsError::NotPositive(condition));
            }
            if all.insert(condition.clone(), timeout).is_some() {
                return Err(ParseHealthTimeoutsError::Duplicate(condition));
            }
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_timeout_for_each_condition() {
        let all: HealthTimeouts = " DiskPressure=30m, Ready = 1h30m ,".parse().unwrap();
        assert_eq!(all.get("DiskPressure"), Some(Duration::from_mins(30)));
        assert_eq!(all.get("Ready"), Some(Duration::from_mins(90)));
        assert_eq!(all.get("KernelDeadlock"), None);
        assert!("".parse::<HealthTimeouts>().unwrap().is_empty());
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let table = [
            ("Ready", "must be a list such as \"DiskPressure=30m,Ready=5m\", and \"Ready\" is no part of one"),
            ("=5m", "must be a list such as \"DiskPressure=30m,Ready=5m\", and \"=5m\" is no part of one"),
            (
                "Ready=5m;DiskPressure=3m",
                "must be a list such as \"DiskPressure=30m,Ready=5m\", and \"Ready=5m;DiskPressure=3m\" is no part of one",
            ),
            ("Ready=5", "the timeout of \"Ready\" must have a unit after each number, such as \"20m\""),
            ("Ready=0s", "the timeout of \"Ready\" must be greater than 0"),
            ("Ready=-5m", "the timeout of \"Ready\" must be greater than 0"),
            ("Ready=5m,Ready=6m", "\"Ready\" has two timeouts"),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<HealthTimeouts>().unwrap_err().to_string(), expected, "{text}");
        }
    }
}
