//! Durations in Go's syntax.
//!
//! `kube::core::Duration` does not fit. It panics on `1h-5m` and on a value that overflows, both of which a user can
//! store; it reads `""` and `--5s`, which Go refuses; and it writes `7200s` where Go writes `2h0m0s`.

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::text;

/// A duration on the wire, as `metav1.Duration` has it: `20m`, `1h2m3.5s`, `-300ms`.
///
/// [`FromStr`] reads what Go's `time.ParseDuration` reads. [`fmt::Display`] writes what Go's `Duration.String` writes:
/// `2h` becomes `2h0m0s`. Values compare by their length, not by their text.
///
/// The range is 64 bits of nanoseconds, about 292 years either way. [`FromStr`] refuses a longer duration.
/// [`Deserialize`] takes the longest instead, because an object that cannot be decoded is not reconciled at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Why a text is not a [`GoDuration`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseGoDurationError {
    /// A number is missing.
    #[error("must be a duration such as \"20m\" or \"1h30m\"")]
    Syntax,
    /// A number has no unit.
    #[error("must have a unit after each number, such as \"20m\"")]
    MissingUnit,
    /// The unit is unknown.
    #[error("must use the units h, m, s, ms, us and ns, such as \"20m\"")]
    UnknownUnit,
    /// The duration is longer than 292 years.
    #[error("must be shorter than 292 years")]
    TooLong,
}

impl GoDuration {
    /// The duration 0.
    pub const ZERO: Self = Self(0);

    /// The duration in nanoseconds.
    pub const fn nanoseconds(self) -> i64 {
        self.0
    }

    /// Whether this is the longest duration, which also stands for longer ones.
    pub const fn is_longest(self) -> bool {
        self.0 == i64::MAX || self.0 == i64::MIN
    }

    /// Whether the duration is below 0.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Converts to the standard library's type. A negative duration becomes 0.
    pub fn to_std(self) -> Duration {
        u64::try_from(self.0).map_or(Duration::ZERO, Duration::from_nanos)
    }

    /// The same as a signed duration. A negative one becomes 0.
    pub fn to_signed(self) -> SignedDuration {
        SignedDuration::from_nanos(self.0.max(0))
    }
}

impl From<Duration> for GoDuration {
    /// Converts from the standard library's type. A duration that is too long becomes the longest.
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = ParseGoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        let (mut nanoseconds, mut rest) = parse_part(unsigned)?;
        while !rest.is_empty() {
            let (part, remaining) = parse_part(rest)?;
            (nanoseconds, rest) = (nanoseconds.saturating_add(part), remaining);
        }
        let signed = if text.starts_with('-') { -nanoseconds } else { nanoseconds };
        i64::try_from(signed).map(Self).map_err(|_| ParseGoDurationError::TooLong)
    }
}

/// Reads a number and its unit. Returns the nanoseconds, and the text that follows.
fn parse_part(text: &str) -> Result<(i128, &str), ParseGoDurationError> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    if whole.is_empty() && fraction.is_empty() {
        return Err(ParseGoDurationError::Syntax);
    }
    let (unit, rest) = rest.split_at(rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len()));
    let unit = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "" => return Err(ParseGoDurationError::MissingUnit),
        _ => return Err(ParseGoDurationError::UnknownUnit),
    };
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| ParseGoDurationError::TooLong)? };
    // Fifteen digits are finer than a nanosecond of an hour (3.6e12).
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(15);
    let fraction = digits.fold(0, |number: i128, digit| number * 10 + i128::from(digit - b'0'));
    let unit = i128::from(unit);
    Ok((i128::from(whole) * unit + fraction * unit / 1_000_000_000_000_000, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [hour, minute, second] = [HOUR, MINUTE, SECOND].map(i64::unsigned_abs);
        let nanoseconds = self.0.unsigned_abs();
        if nanoseconds == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanoseconds < minute {
            return write!(f, "{:?}", Duration::from_nanos(nanoseconds));
        }
        if nanoseconds >= hour {
            write!(f, "{}h", nanoseconds / hour)?;
        }
        let seconds = format!("{}.{:09}", nanoseconds % minute / second, nanoseconds % second);
        write!(f, "{}m{}s", nanoseconds % hour / minute, seconds.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::parse(deserializer, |text| match text.parse() {
            Err(ParseGoDurationError::TooLong) if text.starts_with('-') => Ok(Self(i64::MIN)),
            Err(ParseGoDurationError::TooLong) => Ok(Self(i64::MAX)),
            Err(error) => Err(format!("invalid duration {text:?}: {error}")),
            Ok(duration) => Ok(duration),
        })
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // MCM's client fails on the whole list of objects when Go cannot parse one duration.
        json_schema!({"type": "string", "pattern": PATTERN})
    }
}

/// Go's syntax of a duration that is not negative.
const PATTERN: &str =
    r"^\+?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$";

#[cfg(test)]
mod tests {
    use super::*;

    fn nanoseconds(text: &str) -> Result<i64, ParseGoDurationError> {
        text.parse::<GoDuration>().map(GoDuration::nanoseconds)
    }

    #[test]
    fn reads_what_go_reads() {
        // From the table of Go's own test of time.ParseDuration.
        for (text, expected) in [
            ("0", 0),
            ("5s", 5 * SECOND),
            ("30s", 30 * SECOND),
            ("1478s", 1478 * SECOND),
            ("-5s", -5 * SECOND),
            ("+5s", 5 * SECOND),
            ("-0", 0),
            ("+0", 0),
            ("5.0s", 5 * SECOND),
            ("5.6s", 5 * SECOND + 600 * MILLISECOND),
            ("5.s", 5 * SECOND),
            (".5s", 500 * MILLISECOND),
            ("1.0040s", SECOND + 4 * MILLISECOND),
            ("100.00100s", 100 * SECOND + MILLISECOND),
            ("10ns", 10),
            ("11us", 11 * MICROSECOND),
            ("12\u{b5}s", 12 * MICROSECOND),
            ("12\u{3bc}s", 12 * MICROSECOND),
            ("13ms", 13 * MILLISECOND),
            ("15m", 15 * MINUTE),
            ("16h", 16 * HOUR),
            ("3h30m", 3 * HOUR + 30 * MINUTE),
            ("10.5s4m", 4 * MINUTE + 10 * SECOND + 500 * MILLISECOND),
            ("-2m3.4s", -(2 * MINUTE + 3 * SECOND + 400 * MILLISECOND)),
            ("1h2m3s4ms5us6ns", HOUR + 2 * MINUTE + 3 * SECOND + 4 * MILLISECOND + 5 * MICROSECOND + 6),
            ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14 * SECOND + 425 * MILLISECOND),
            ("0.3333333333333333333h", 20 * MINUTE),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("9223372036s775ms807us", 9_223_372_036 * SECOND + 775 * MILLISECOND + 807 * MICROSECOND),
            ("0.100000000000000000000h", 6 * MINUTE),
        ] {
            let got = nanoseconds(text);
            // Go keeps 19 digits of a fraction, we 15: both are exact to a nanosecond.
            let difference = got.clone().map(|got| i128::from(got) - i128::from(expected));
            assert!(matches!(difference, Ok(-1..=0)), "{text}: {got:?}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        use ParseGoDurationError::{MissingUnit, Syntax, TooLong, UnknownUnit};
        for (text, expected) in [
            ("", Syntax),
            ("3", MissingUnit),
            ("-", Syntax),
            ("s", Syntax),
            (".", Syntax),
            ("-.", Syntax),
            (".s", Syntax),
            ("+.s", Syntax),
            ("1d", UnknownUnit),
            ("1 h", UnknownUnit),
            ("1h 2m", UnknownUnit),
            ("1H", UnknownUnit),
            ("3000000h", TooLong),
            ("9223372036854775808ns", TooLong),
            ("9223372036854ms775us808ns", TooLong),
            ("-9223372036854775809ns", TooLong),
        ] {
            assert_eq!(nanoseconds(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn writes_as_go_writes() {
        for (nanoseconds, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (4 * MINUTE + 5 * SECOND, "4m5s"),
            (4 * MINUTE + 5 * SECOND + MILLISECOND, "4m5.001s"),
            (5 * HOUR + 6 * MINUTE + 7 * SECOND + MILLISECOND, "5h6m7.001s"),
            (8 * MINUTE + 1, "8m0.000000001s"),
            (20 * MINUTE, "20m0s"),
            (2 * HOUR, "2h0m0s"),
            (-3 * SECOND, "-3s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let text = GoDuration(nanoseconds).to_string();
            assert_eq!(text, expected);
            assert_eq!(text.parse(), Ok(GoDuration(nanoseconds)), "{text} is read back");
        }
    }

    #[test]
    fn what_is_too_long_in_an_object_is_read_as_the_longest() {
        let read = |text: &str| serde_json::from_value::<GoDuration>(text.into());
        assert_eq!(read("9999999h").unwrap(), GoDuration(i64::MAX));
        assert_eq!(read("-9999999h").unwrap(), GoDuration(i64::MIN));
        assert_eq!(read("99999999999999999999999s").unwrap(), GoDuration(i64::MAX));
        assert!(read("soon").is_err());
        assert!(read("9999999h").unwrap().is_longest() && !GoDuration(SECOND).is_longest());
    }

    #[test]
    fn a_negative_duration_is_no_time() {
        assert_eq!(GoDuration(-SECOND).to_std(), Duration::ZERO);
        assert_eq!(GoDuration(90 * SECOND).to_std(), Duration::from_secs(90));
        assert_eq!(GoDuration::from(Duration::MAX), GoDuration(i64::MAX));
    }
}
