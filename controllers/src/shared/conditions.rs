//! Conditions of a status, of the form that classes and the kinds of node configuration share.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{ConditionStatus, MachineClassCondition as Condition};
use nodewright_runtime::clip::clip;

/// Status, reason and message of a condition.
pub(crate) type Finding<'a> = (ConditionStatus, &'a str, String);

/// A condition with a finding. While its status is the known one, the time of its transition stays.
pub(crate) fn condition(
    known: &[Condition],
    now: Timestamp,
    kind: &str,
    (status, reason, message): Finding<'_>,
) -> Condition {
    let same = known.iter().find(|known| known.condition_type == kind && known.status == status);
    let since = same.and_then(|known| known.last_transition_time.clone());
    // Times on the wire have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        condition_type: kind.to_owned(),
        status,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message: clip(&message),
    }
}

/// The condition of this type, if it is True.
pub(crate) fn holding<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|it| it.condition_type == kind && it.status == ConditionStatus::True)
}

/// Sets a condition in its place, or at the end. Conditions of other types stay as they are.
pub(crate) fn set(conditions: &mut Vec<Condition>, now: Timestamp, kind: &str, finding: Finding<'_>) {
    let condition = condition(conditions, now, kind, finding);
    match conditions.iter_mut().find(|known| known.condition_type == kind) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_the_status_in_whole_seconds() {
        let mut conditions = vec![];
        let mut write = |now: Timestamp, kind: &str, status: ConditionStatus, text: &str| {
            set(&mut conditions, now, kind, (status, "Reason", text.to_owned()));
            let time = |it: &Condition| it.last_transition_time.as_ref().unwrap().0.as_second();
            conditions.iter().map(|it| (it.condition_type.clone(), time(it), it.message.clone())).collect::<Vec<_>>()
        };
        let row = |kind: &str, time: i64, text: &str| (kind.to_owned(), time, text.to_owned());
        let begun = Timestamp::from_millisecond(1_900).unwrap();
        assert_eq!(write(begun, "A", ConditionStatus::True, "one"), [row("A", 1, "one")]);
        assert_eq!(write(at(2), "B", ConditionStatus::True, ""), [row("A", 1, "one"), row("B", 2, "")]);
        assert_eq!(write(at(3), "A", ConditionStatus::True, "two"), [row("A", 1, "two"), row("B", 2, "")]);
        assert_eq!(write(at(4), "A", ConditionStatus::False, ""), [row("A", 4, ""), row("B", 2, "")]);
        assert_eq!(conditions[0].last_transition_time, Some(Time(at(4))));
    }
}
