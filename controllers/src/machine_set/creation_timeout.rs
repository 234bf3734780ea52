//! The creation timeout of new Machines whose predecessors did not join in time.
//!
//! A provider may be slower than the timeout of a deployment, for hours or for good: then each Machine is deleted just before it
//! joins, and its replacement is no faster. If the setting permits it, each round of replacements
//! ([`creation_backoff`](crate::shared::creation_backoff)) has twice the time of the one before.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{GoDuration, MachineSet, annotations, stored::CREATION_ROUND};
use nodewright_runtime::object::annotation;

use crate::shared::fleet::CreationTimeouts;

/// How long the last round counts: a provider that was slow may be so again.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// The creation timeout of Machines that are created now; `None` if it is that of their spec. A timeout that users have set for the
/// set in its annotation does not grow.
pub(super) fn grown(set: &MachineSet, timeouts: CreationTimeouts, now: Timestamp) -> Option<GoDuration> {
    if annotation(set, annotations::EFFECTIVE_CREATION_TIMEOUT).is_some() {
        return None;
    }
    let round = CREATION_ROUND.of(set)?;
    let is_recent = round.begun.0.saturating_add(REMEMBERED).is_ok_and(|end| end > now);
    let own = set.spec.template.spec.creation_timeout.map_or(timeouts.default, GoDuration::to_signed);
    let factor = 2_i32.checked_pow(round.rounds).unwrap_or(i32::MAX);
    let grown = own.checked_mul(factor).unwrap_or(SignedDuration::MAX).min(timeouts.longest);
    (is_recent && grown > own).then(|| GoDuration::from(grown.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, machine_set};

    #[test]
    fn it_doubles_with_each_round_up_to_the_limit() {
        let timeout = |round: Option<&str>, own: Option<&str>, effective: Option<&str>, longest: i64| {
            let mut set = machine_set("set", 2, Some("k7f;"));
            let all = set.metadata.annotations.get_or_insert_default();
            all.extend(round.map(|it| (annotations::CREATION_BACKOFF.to_owned(), format!("{it}Z"))));
            all.extend(effective.map(|it| (annotations::EFFECTIVE_CREATION_TIMEOUT.to_owned(), it.to_owned())));
            set.spec.template.spec.creation_timeout = own.map(|own| own.parse().unwrap());
            let default = SignedDuration::from_mins(20);
            let timeouts = CreationTimeouts { default, longest: SignedDuration::from_mins(longest) };
            grown(&set, timeouts, NOW.parse().unwrap()).map(|timeout| timeout.to_string())
        };
        let first = Some("1;2;2026-06-01T11:30:00");
        let table = [
            (None, None, None, 120, None),
            (first, None, None, 120, Some("40m0s")),
            (first, Some("5m"), None, 120, Some("10m0s")),
            (Some("2;4;2026-06-01T11:30:00"), Some("5m"), None, 120, Some("20m0s")),
            (Some("9;4;2026-06-01T11:30:00"), Some("5m"), None, 120, Some("2h0m0s")),
            (Some("4000000000;4;2026-06-01T11:30:00"), Some("5m"), None, 120, Some("2h0m0s")),
            (Some("1;4;2026-05-31T12:00:01"), None, None, 120, Some("40m0s")),
            (Some("1;4;2026-05-31T12:00:00"), None, None, 120, None),
            (first, Some("3h"), None, 120, None),
            (first, None, Some("30m"), 120, None),
            (first, None, None, 0, None),
        ];
        for (round, own, effective, longest, expected) in table {
            assert_eq!(timeout(round, own, effective, longest).as_deref(), expected, "{round:?} {own:?} {effective:?}");
        }
    }
}
