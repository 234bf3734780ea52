//! Numbers or percentages, and the bounds of a rollout.

use crate::defaults;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The error of a percentage above 100.
pub const ABOVE_ALL: &str = "must not be more than 100%";

/// Whether a value is a percentage above 100.
pub fn is_above_all(value: &IntOrString) -> bool {
    matches!(value, IntOrString::String(text) if parse_percentage(text).is_ok_and(|percentage| percentage > 100))
}

/// How a fraction of a machine is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Up, as for surge.
    Up,
    /// Down, as for unavailable machines.
    Down,
}

/// A value is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseIntOrPercentError {
    /// The text has not the form `25%`.
    #[error("must be a number or a percentage such as \"25%\"")]
    NotAPercentage,
    /// The number does not fit into 32 bits.
    #[error("must be a number of machines below 2147483648")]
    TooLarge,
}

/// Returns the number, or the percentage of `total`. As in Kubernetes, a text must end in `%`.
pub fn resolve(value: &IntOrString, total: i32, rounding: Rounding) -> Result<i32, ParseIntOrPercentError> {
    let percentage = match value {
        IntOrString::Int(number) => return Ok(*number),
        IntOrString::String(text) => parse_percentage(text)?,
    };
    // 128 bits hold the product of two 64-bit numbers.
    let product = i128::from(percentage) * i128::from(total);
    let (quotient, remainder) = (product.div_euclid(100), product.rem_euclid(100));
    let number = match rounding {
        Rounding::Up if remainder != 0 => quotient + 1,
        _ => quotient,
    };
    i32::try_from(number).map_err(|_| ParseIntOrPercentError::TooLarge)
}

fn parse_percentage(text: &str) -> Result<i64, ParseIntOrPercentError> {
    text.strip_suffix('%').and_then(|digits| digits.parse().ok()).ok_or(ParseIntOrPercentError::NotAPercentage)
}

/// The bounds of a rollout around the desired number of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateBounds {
    /// How many machines may exist above the desired number.
    pub max_surge: i32,
    /// How many machines may be unavailable. At most the desired number.
    pub max_unavailable: i32,
}

impl UpdateBounds {
    /// Resolves the bounds. Surge is rounded up, unavailable down. If both are 0, one machine may be unavailable, or the
    /// rollout could not proceed. Absent values are [`defaults::MAX_SURGE`] and [`defaults::MAX_UNAVAILABLE`].
    pub fn resolve(
        max_surge: Option<&IntOrString>,
        max_unavailable: Option<&IntOrString>,
        replicas: i32,
    ) -> Result<Self, ParseIntOrPercentError> {
        let max_surge =
            max_surge.map_or(Ok(defaults::MAX_SURGE), |value| resolve(value, replicas, Rounding::Up))?.max(0);
        let max_unavailable = max_unavailable
            .map_or(Ok(defaults::MAX_UNAVAILABLE), |value| resolve(value, replicas, Rounding::Down))?
            .max(0);
        let max_unavailable = if max_surge == 0 && max_unavailable == 0 { 1 } else { max_unavailable };
        Ok(Self { max_surge, max_unavailable: max_unavailable.min(replicas.max(0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(text: &str) -> IntOrString {
        IntOrString::String(text.to_owned())
    }

    #[test]
    fn a_percentage_is_rounded_as_requested() {
        for (text, total, up, down) in
            [("25%", 10, 3, 2), ("25%", 4, 1, 1), ("0%", 7, 0, 0), ("100%", 7, 7, 7), ("150%", 3, 5, 4)]
        {
            assert_eq!(resolve(&percent(text), total, Rounding::Up), Ok(up), "{text} of {total}");
            assert_eq!(resolve(&percent(text), total, Rounding::Down), Ok(down), "{text} of {total}");
        }
    }

    #[test]
    fn a_number_is_itself() {
        assert_eq!(resolve(&IntOrString::Int(5), 3, Rounding::Up), Ok(5));
    }

    #[test]
    fn what_is_no_percentage_is_refused() {
        for text in ["5", "", "%", "1.5%", "many", "10%%"] {
            assert_eq!(resolve(&percent(text), 3, Rounding::Up), Err(ParseIntOrPercentError::NotAPercentage), "{text}");
        }
        assert_eq!(resolve(&percent("9000000000%"), 100, Rounding::Up), Err(ParseIntOrPercentError::TooLarge));
    }

    #[test]
    fn a_rollout_can_always_move() {
        let zero = IntOrString::Int(0);
        let bounds = UpdateBounds::resolve(Some(&zero), Some(&zero), 3);
        assert_eq!(bounds, Ok(UpdateBounds { max_surge: 0, max_unavailable: 1 }));
        let bounds = UpdateBounds::resolve(Some(&percent("0%")), Some(&percent("10%")), 5);
        assert_eq!(bounds, Ok(UpdateBounds { max_surge: 0, max_unavailable: 1 }));
    }

    #[test]
    fn no_more_machines_may_be_missing_than_are_desired() {
        let bounds = UpdateBounds::resolve(Some(&IntOrString::Int(1)), Some(&IntOrString::Int(9)), 3);
        assert_eq!(bounds, Ok(UpdateBounds { max_surge: 1, max_unavailable: 3 }));
        let bounds = UpdateBounds::resolve(Some(&IntOrString::Int(0)), Some(&IntOrString::Int(0)), 0);
        assert_eq!(bounds, Ok(UpdateBounds { max_surge: 0, max_unavailable: 0 }));
    }

    #[test]
    fn absent_bounds_are_the_defaults() {
        assert_eq!(UpdateBounds::resolve(None, None, 3), Ok(UpdateBounds { max_surge: 1, max_unavailable: 0 }));
    }
}
