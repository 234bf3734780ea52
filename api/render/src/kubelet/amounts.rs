//! Numbers and quantities with which the kubelet would not start: its validation (`pkg/kubelet/apis/config/validation`) and its
//! reading of what is reserved (`parseResourceList`), in Kubernetes 1.36.

use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value};

const MOST: i64 = i32::MAX as i64;
/// The least and the greatest number of a field. Zero stands for the default where the kubelet's Go type has no pointer.
const RANGES: [(&str, i64, i64); 22] = [
    ("containerLogMaxFiles", 2, MOST),
    ("containerLogMaxWorkers", 1, MOST),
    ("eventBurst", 0, MOST),
    ("eventRecordQPS", 0, MOST),
    ("healthzPort", 0, 65_535),
    ("imageGCHighThresholdPercent", 0, 100),
    ("imageGCLowThresholdPercent", 0, 100),
    ("iptablesDropBit", 0, 31),
    ("iptablesMasqueradeBit", 0, 31),
    ("kubeAPIBurst", 0, MOST),
    ("kubeAPIQPS", 0, MOST),
    ("maxOpenFiles", 0, i64::MAX),
    ("maxParallelImagePulls", 1, MOST),
    ("maxPods", 0, MOST),
    ("nodeLeaseDurationSeconds", 0, MOST),
    ("nodeStatusMaxImages", -1, MOST),
    ("oomScoreAdj", -1_000, 1_000),
    ("podsPerCore", 0, MOST),
    ("port", 0, 65_535),
    ("readOnlyPort", 0, 65_535),
    ("registryBurst", 0, MOST),
    ("registryPullQPS", 0, MOST),
];
const FACTOR: &str = "memoryThrottlingFactor";
/// What may be reserved, and for whom.
const RESERVED: [&str; 2] = ["kubeReserved", "systemReserved"];
const RESERVABLE: [&str; 4] = ["cpu", "ephemeral-storage", "memory", "pid"];

/// Checks the numbers and quantities among the user's fields.
pub(super) fn check(user: &Map<String, Value>, path: &FieldPath) -> Vec<FieldError> {
    let number = |field: &str| user.get(field).filter(|value| value.is_i64() || value.is_u64());
    let out_of_range = RANGES.iter().filter_map(|(field, least, most)| {
        let value = number(field)?;
        let is_right = value.as_i64().is_some_and(|value| (*least..=*most).contains(&value));
        (!is_right).then(|| FieldError::invalid(path.child(field), value.clone(), range(*least, *most)))
    });
    let mut errors: Vec<_> = out_of_range.collect();
    let factor = user.get(FACTOR).filter(|value| value.is_number());
    if let Some(value) = factor.filter(|value| !value.as_f64().is_some_and(|value| value > 0.0 && value <= 1.0)) {
        errors.push(FieldError::invalid(path.child(FACTOR), value.clone(), "must be greater than 0 and at most 1"));
    }
    for field in RESERVED {
        let amounts = user.get(field).and_then(Value::as_object).into_iter().flatten();
        errors.extend(amounts.filter_map(|(name, amount)| reserved(name, amount, &path.child(field))));
    }
    errors
}

/// The thresholds between which images are collected, and their defaults.
const IMAGES: [(&str, i64); 2] = [("imageGCLowThresholdPercent", 80), ("imageGCHighThresholdPercent", 85)];

/// Checks a file and the user's fields together.
pub(super) fn check_thresholds(merged: &Map<String, Value>, root: &FieldPath) -> Result<(), Box<FieldError>> {
    let [low, high] = IMAGES.map(|(field, default)| merged.get(field).and_then(Value::as_i64).unwrap_or(default));
    if low < high {
        return Ok(());
    }
    let path = root.child("kubeletConfig").child(IMAGES[0].0);
    Err(Box::new(FieldError::invalid(path, low, format!("must be less than {}, which is {high}", IMAGES[1].0))))
}

fn range(least: i64, most: i64) -> String {
    if most >= MOST { format!("must be at least {least}") } else { format!("must be from {least} to {most}") }
}

fn reserved(name: &str, amount: &Value, path: &FieldPath) -> Option<FieldError> {
    if !RESERVABLE.contains(&name) {
        return Some(FieldError::not_supported(path.clone(), name, &RESERVABLE));
    }
    let text = amount.as_str()?;
    let rule = "must be a quantity that is not negative, such as 500m or 1Gi";
    (!is_quantity(text)).then(|| FieldError::invalid(path.child(name), text, rule))
}

/// Whether a text is a quantity of Kubernetes, and not negative: a number with a unit or an exponent.
pub(super) fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let is_number = number.matches('.').count() <= 1 && number.bytes().any(|byte| byte.is_ascii_digit());
    is_number && (UNITS.contains(&unit) || is_exponent(unit))
}

const UNITS: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

fn is_exponent(unit: &str) -> bool {
    let digits = unit.strip_prefix(['e', 'E']).map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(fields: &Value) -> Vec<String> {
        let found = check(fields.as_object().unwrap(), &FieldPath::new("k"));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn numbers_have_the_ranges_of_the_kubelet() {
        let right = json!({"maxPods": 0, "oomScoreAdj": -999, "nodeStatusMaxImages": -1, "healthzPort": 0, "kubeAPIQPS": 50,
            "maxOpenFiles": 10_000_000_000_u64, "podPidsLimit": -1, "maxParallelImagePulls": null, "port": "wrong type", "memoryThrottlingFactor": 1,
            "containerLogMaxFiles": 2});
        assert_eq!(errors(&right), Vec::<String>::new());
        let wrong = json!({"maxPods": -5, "oomScoreAdj": 1001, "maxParallelImagePulls": 0, "readOnlyPort": 65_536,
            "registryBurst": u64::MAX, "memoryThrottlingFactor": 0.0, "containerLogMaxFiles": 1});
        assert_eq!(
            errors(&wrong),
            [
                "k.containerLogMaxFiles: Invalid value: 1: must be at least 2",
                "k.maxParallelImagePulls: Invalid value: 0: must be at least 1",
                "k.maxPods: Invalid value: -5: must be at least 0",
                "k.oomScoreAdj: Invalid value: 1001: must be from -1000 to 1000",
                "k.readOnlyPort: Invalid value: 65536: must be from 0 to 65535",
                "k.registryBurst: Invalid value: 18446744073709551615: must be at least 0",
                "k.memoryThrottlingFactor: Invalid value: 0.0: must be greater than 0 and at most 1",
            ]
        );
    }

    #[test]
    fn images_are_collected_between_two_thresholds() {
        let check = |fields: &Value| {
            let found = check_thresholds(fields.as_object().unwrap(), &FieldPath::new("spec"));
            found.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(check(&json!({})), "");
        assert_eq!(check(&json!({"imageGCHighThresholdPercent": 81})), "");
        let text = "spec.kubeletConfig.imageGCLowThresholdPercent: Invalid value: 80: must be less than \
                    imageGCHighThresholdPercent, which is 50";
        assert_eq!(check(&json!({"imageGCHighThresholdPercent": 50})), text);
        assert_ne!(check(&json!({"imageGCLowThresholdPercent": 85})), "");
    }

    #[test]
    fn what_is_reserved_are_quantities_of_four_resources() {
        let right = json!({"systemReserved": {"cpu": "500m", "memory": "1Gi", "pid": "1000"}, "kubeReserved": {}});
        assert_eq!(errors(&right), Vec::<String>::new());
        let wrong = json!({"systemReserved": {"cpu": "lots", "memory": "-1Gi"}, "kubeReserved": {"gpu": "1"}});
        let rule = "must be a quantity that is not negative, such as 500m or 1Gi";
        assert_eq!(
            errors(&wrong),
            [
                r#"k.kubeReserved: Unsupported value: "gpu": supported values: "cpu", "ephemeral-storage", "memory", "pid""#,
                &format!(r#"k.systemReserved.cpu: Invalid value: "lots": {rule}"#),
                &format!(r#"k.systemReserved.memory: Invalid value: "-1Gi": {rule}"#),
            ]
        );
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for text in ["0", "1", "0.5", ".5", "5.", "+1", "1k", "1Ki", "1E", "1e3", "1E-3", "12e+6", "100n"] {
            assert!(is_quantity(text), "{text}");
        }
        for text in ["", ".", "1.2.3", "1K", "1ki", "1 Gi", "1GiB", "e3", "1e", "1e+", "-1", "1m1", "lots", "10%"] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
