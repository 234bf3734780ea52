//! Conditions: setting one without moving its time, and making one of many.
//!
//! Kinds differ in what their conditions look like on the wire, so each says how its own are read and stamped
//! ([`Shape`]); the rules are the same for all.
//!
//! # Guarantees
//!
//! - The transition time moves when the status changes, and never otherwise.
//! - A condition that says the same as before is left as it is, times included: the object does not change.
//! - Conditions keep their places; a new one comes last.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// How the conditions of one kind are read and stamped. To be implemented by a type of one's own, as the condition's
/// type may belong to a crate that knows nothing of this one.
pub trait Shape {
    /// A condition of that kind.
    type Condition: Clone;

    /// Its type, such as `Ready`.
    fn type_of(condition: &Self::Condition) -> &str;
    /// Its status: `True`, `False` or `Unknown`.
    fn status(condition: &Self::Condition) -> &str;
    /// Why, in one word.
    fn reason(condition: &Self::Condition) -> &str;
    /// Why, in a sentence.
    fn message(condition: &Self::Condition) -> &str;
    /// When its status last changed, if that is known.
    fn transition(condition: &Self::Condition) -> Option<Timestamp>;
    /// Sets when its status changed and, where the kind has a field for it, when it was written.
    fn stamp(condition: &mut Self::Condition, transition: Timestamp, written: Timestamp);
}

/// The condition of a type, if there is one.
pub fn find<'a, S: Shape>(conditions: &'a [S::Condition], kind: &str) -> Option<&'a S::Condition> {
    conditions.iter().find(|condition| S::type_of(condition) == kind)
}

/// Sets a condition. Returns whether that changes anything; the times of `wanted` are not looked at.
pub fn set<S: Shape>(conditions: &mut Vec<S::Condition>, mut wanted: S::Condition, now: Timestamp) -> bool {
    let present = conditions.iter_mut().find(|condition| S::type_of(condition) == S::type_of(&wanted));
    let Some(present) = present else {
        S::stamp(&mut wanted, now, now);
        conditions.push(wanted);
        return true;
    };
    let same_status = S::status(present) == S::status(&wanted);
    if same_status && S::reason(present) == S::reason(&wanted) && S::message(present) == S::message(&wanted) {
        return false;
    }
    let since = S::transition(present).filter(|_| same_status).unwrap_or(now);
    S::stamp(&mut wanted, since, now);
    *present = wanted;
    true
}

/// Removes a condition. Returns whether it was there.
pub fn remove<S: Shape>(conditions: &mut Vec<S::Condition>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| S::type_of(condition) != kind);
    conditions.len() != before
}

/// The whole list as its only writer wants it: in the order of `wanted`, with the times that stand where nothing
/// changed. What is not wanted is gone.
pub fn replace<S: Shape>(
    seen: &[S::Condition],
    wanted: impl IntoIterator<Item = S::Condition>,
    now: Timestamp,
) -> Vec<S::Condition> {
    let mut result = vec![];
    for condition in wanted {
        let mut one: Vec<_> = find::<S>(seen, S::type_of(&condition)).cloned().into_iter().collect();
        set::<S>(&mut one, condition, now);
        result.append(&mut one);
    }
    result
}

/// What many have to say, in one reason and one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The most urgent reason.
    pub reason: String,
    /// Each reason with how many have it and the message of the first, the most urgent first.
    pub message: String,
}

/// Sums up reasons and messages of many, such as of all machines of a set that wait. None when there are none.
///
/// `urgency` says how urgent a reason is; of equally urgent ones, what more have comes first, then what comes first
/// in the alphabet. The result does not depend on the order of `reasons` but for the message that stands for many.
pub fn summarize<'a>(
    reasons: impl IntoIterator<Item = (&'a str, &'a str)>,
    urgency: impl Fn(&str) -> u32,
) -> Option<Summary> {
    let mut by_reason = BTreeMap::<&str, (usize, &str)>::new();
    for (reason, message) in reasons {
        by_reason.entry(reason).or_insert((0, message)).0 += 1;
    }
    let mut ordered: Vec<_> = by_reason.into_iter().collect();
    ordered.sort_by_key(|(reason, (count, _))| (std::cmp::Reverse((urgency(reason), *count)), *reason));
    let reason = ordered.first()?.0.to_owned();
    let parts = ordered.iter().map(|(reason, (count, message))| match (count, message.is_empty()) {
        (count, true) => format!("{count} {reason}"),
        (count, false) => format!("{count} {reason}: {message}"),
    });
    Some(Summary { reason, message: parts.collect::<Vec<_>>().join("; ") })
}

/// The conditions that Kubernetes recommends for all kinds.
#[derive(Clone, Copy, Debug)]
pub struct Standard;

impl Shape for Standard {
    type Condition = Condition;

    fn type_of(condition: &Condition) -> &str {
        &condition.type_
    }

    fn status(condition: &Condition) -> &str {
        &condition.status
    }

    fn reason(condition: &Condition) -> &str {
        &condition.reason
    }

    fn message(condition: &Condition) -> &str {
        &condition.message
    }

    fn transition(condition: &Condition) -> Option<Timestamp> {
        Some(condition.last_transition_time.0)
    }

    fn stamp(condition: &mut Condition, transition: Timestamp, _: Timestamp) {
        condition.last_transition_time = Time(transition);
    }
}

/// The conditions of Nodes.
#[derive(Clone, Copy, Debug)]
pub struct OfNode;

impl Shape for OfNode {
    type Condition = NodeCondition;

    fn type_of(condition: &NodeCondition) -> &str {
        &condition.type_
    }

    fn status(condition: &NodeCondition) -> &str {
        &condition.status
    }

    fn reason(condition: &NodeCondition) -> &str {
        condition.reason.as_deref().unwrap_or_default()
    }

    fn message(condition: &NodeCondition) -> &str {
        condition.message.as_deref().unwrap_or_default()
    }

    fn transition(condition: &NodeCondition) -> Option<Timestamp> {
        condition.last_transition_time.as_ref().map(|time| time.0)
    }

    fn stamp(condition: &mut NodeCondition, transition: Timestamp, written: Timestamp) {
        condition.last_transition_time = Some(Time(transition));
        condition.last_heartbeat_time = Some(Time(written));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str) -> NodeCondition {
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            ..NodeCondition::default()
        }
    }

    fn times(condition: &NodeCondition) -> (i64, i64) {
        let second = |time: &Option<Time>| time.as_ref().unwrap().0.as_second();
        (second(&condition.last_transition_time), second(&condition.last_heartbeat_time))
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = vec![];
        assert!(set::<OfNode>(&mut conditions, condition("Ready", "False", "Booting"), at(10)));
        assert!(set::<OfNode>(&mut conditions, condition("Other", "True", "Well"), at(11)));
        assert!(!set::<OfNode>(&mut conditions, condition("Ready", "False", "Booting"), at(20)));
        assert_eq!(times(&conditions[0]), (10, 10), "what says the same is left alone");
        assert!(set::<OfNode>(&mut conditions, condition("Ready", "False", "Joining"), at(30)));
        assert_eq!(times(&conditions[0]), (10, 30));
        assert!(set::<OfNode>(&mut conditions, condition("Ready", "True", "Joined"), at(40)));
        assert_eq!(times(&conditions[0]), (40, 40));
        assert_eq!(find::<OfNode>(&conditions, "Other").map(times), Some((11, 11)));
        assert!(remove::<OfNode>(&mut conditions, "Ready") && !remove::<OfNode>(&mut conditions, "Ready"));
    }

    #[test]
    fn a_list_is_replaced_in_the_order_that_is_wanted() {
        let mut seen = vec![];
        for kind in ["B", "A", "Gone"] {
            set::<OfNode>(&mut seen, condition(kind, "True", "Well"), at(10));
        }
        let wanted = [condition("A", "True", "Well"), condition("B", "False", "Ill"), condition("C", "True", "Well")];
        let list = replace::<OfNode>(&seen, wanted.clone(), at(20));
        let found: Vec<_> = list.iter().map(|condition| (condition.type_.as_str(), times(condition).0)).collect();
        assert_eq!(found, [("A", 10), ("B", 20), ("C", 20)]);
        assert_eq!(replace::<OfNode>(&list, wanted, at(30)), list, "again the same: nothing to write");
    }

    #[test]
    fn standard_conditions_work_alike() {
        let ready = |status: &str| Condition {
            type_: "Ready".into(),
            status: status.into(),
            reason: "R".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(at(0)),
        };
        let mut conditions = vec![];
        set::<Standard>(&mut conditions, ready("True"), at(5));
        assert!(!set::<Standard>(&mut conditions, ready("True"), at(6)));
        assert_eq!(conditions[0].last_transition_time.0, at(5));
    }

    #[test]
    fn many_are_summed_up_with_the_most_urgent_first() {
        let urgency = |reason: &str| if reason == "Failed" { 2 } else { 1 };
        let reasons = [("Joining", "a joins"), ("Joining", "b joins"), ("Failed", "c: quota"), ("Booting", "")];
        let summary = summarize(reasons, urgency).unwrap();
        assert_eq!(summary.reason, "Failed");
        assert_eq!(summary.message, "1 Failed: c: quota; 2 Joining: a joins; 1 Booting");
        assert_eq!(summarize([], urgency), None);
    }
}
