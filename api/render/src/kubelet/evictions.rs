//! Thresholds of eviction with which the kubelet would not start: `ParseThresholdConfig` of its package `eviction`, in Kubernetes 1.36.

use nodewright_api::GoDuration;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value};

use super::amounts::is_quantity;

const SIGNALS: [&str; 9] = [
    "allocatableMemory.available",
    "containerfs.available",
    "containerfs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
];
const SOFT: &str = "evictionSoft";
const GRACE_PERIODS: &str = "evictionSoftGracePeriod";

/// What the values of a field have to be.
type Rule = (fn(&str) -> bool, &'static str);
const THRESHOLD: Rule = (is_threshold, "must be a percentage up to 100%, or a positive quantity such as 100Mi");
const RECLAIM: Rule = (is_reclaim, "must be a positive percentage, or a quantity that is not negative, such as 100Mi");
const PERIOD: Rule = (is_period, "must be a duration that is not negative, such as 1m30s");
const FIELDS: [(&str, Rule); 4] =
    [("evictionHard", THRESHOLD), ("evictionMinimumReclaim", RECLAIM), (SOFT, THRESHOLD), (GRACE_PERIODS, PERIOD)];

/// Checks the thresholds among the user's fields.
pub(super) fn check(user: &Map<String, Value>, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = vec![];
    for (field, rule) in FIELDS {
        let values = user.get(field).and_then(Value::as_object).into_iter().flatten();
        errors.extend(values.filter_map(|(signal, value)| error(signal, value, rule, &path.child(field))));
    }
    errors
}

fn error(signal: &str, value: &Value, (is_right, rule): Rule, path: &FieldPath) -> Option<FieldError> {
    if !SIGNALS.contains(&signal) {
        return Some(FieldError::not_supported(path.clone(), signal, &SIGNALS));
    }
    let text = value.as_str()?;
    (!is_right(text)).then(|| FieldError::invalid(path.key(signal), text, rule))
}

/// Checks that each soft threshold of the file has a grace period.
pub(super) fn check_grace_periods(merged: &Map<String, Value>, root: &FieldPath) -> Result<(), Box<FieldError>> {
    let values = |field: &str| merged.get(field).and_then(Value::as_object);
    let counts = |value: &Value| !matches!(value.as_str(), Some("0%" | "100%"));
    let mut soft = values(SOFT).into_iter().flatten().filter(|(_, value)| counts(value));
    let has_period = |signal: &str| values(GRACE_PERIODS).is_some_and(|periods| periods.contains_key(signal));
    let Some((signal, _)) = soft.find(|(signal, _)| !has_period(signal)) else { return Ok(()) };
    let path = root.child("kubeletConfig").child(GRACE_PERIODS).key(signal);
    Err(Box::new(FieldError::required(path, "a soft threshold needs a grace period")))
}

fn percentage(text: &str) -> Option<f32> {
    text.strip_suffix('%')?.trim_end_matches('%').parse().ok()
}

fn is_threshold(text: &str) -> bool {
    if text.ends_with('%') {
        percentage(text).is_some_and(|number| (0.0..=100.0).contains(&number))
    } else {
        is_quantity(text) && !is_zero(text)
    }
}

fn is_reclaim(text: &str) -> bool {
    if text.ends_with('%') { percentage(text).is_some_and(|number| number > 0.0) } else { is_quantity(text) }
}

fn is_period(text: &str) -> bool {
    !text.starts_with('-') && text.parse::<GoDuration>().is_ok()
}

/// Whether a quantity is zero, in any unit.
fn is_zero(quantity: &str) -> bool {
    let number = quantity.trim_start_matches('+').split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
    !number.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(field: &str, signal: &str, value: &str) -> Vec<String> {
        let fields = json!({field: {signal: value}});
        check(fields.as_object().unwrap(), &FieldPath::new("k")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn thresholds_are_percentages_or_positive_quantities() {
        for value in ["100Mi", "5%", "0%", "100%", "0.5%", "1", "1e3", "+1Gi"] {
            assert!(wrong("evictionHard", "memory.available", value).is_empty(), "{value}");
            assert!(wrong("evictionSoft", "nodefs.inodesFree", value).is_empty(), "{value}");
        }
        for value in ["lots", "", "0", "0Mi", "0.0", "-1", "101%", "-1%", "x%", "%", "10 Mi", "inf%"] {
            assert_eq!(wrong("evictionHard", "memory.available", value).len(), 1, "{value}");
        }
        assert_eq!(
            wrong("evictionHard", "memory.available", "lots"),
            [
                r#"k.evictionHard[memory.available]: Invalid value: "lots": must be a percentage up to 100%, or a positive quantity such as 100Mi"#
            ]
        );
        let text = &wrong("evictionHard", "memory", "1Gi")[0];
        assert!(
            text.starts_with(r#"k.evictionHard: Unsupported value: "memory": supported values: "allocatable"#),
            "{text}"
        );
    }

    #[test]
    fn a_reclaim_may_be_nothing_and_a_grace_period_is_a_duration() {
        for (field, right, bad) in [
            ("evictionMinimumReclaim", ["0Mi", "5%", "200%"], ["0%", "-1Mi", "much"]),
            ("evictionSoftGracePeriod", ["1m30s", "0s", "0"], ["soon", "5", "-1s"]),
        ] {
            for value in right {
                assert!(wrong(field, "pid.available", value).is_empty(), "{field} {value}");
            }
            for value in bad {
                assert_eq!(wrong(field, "pid.available", value).len(), 1, "{field} {value}");
            }
        }
    }

    #[test]
    fn a_soft_threshold_needs_a_grace_period() {
        let check = |fields: Value| check_grace_periods(fields.as_object().unwrap(), &FieldPath::new("spec"));
        let soft = json!({"memory.available": "1Gi", "nodefs.available": "0%"});
        assert!(check(json!({"evictionSoft": soft, "evictionSoftGracePeriod": {"memory.available": "1m"}})).is_ok());
        let error = check(json!({"evictionSoft": soft})).unwrap_err().to_string();
        assert!(
            error.starts_with("spec.kubeletConfig.evictionSoftGracePeriod[memory.available]: Required value"),
            "{error}"
        );
    }
}
