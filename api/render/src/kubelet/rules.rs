//! The validation of a KubeletConfig.

use super::{amounts, evictions};
use nodewright_api::GoDuration;
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::machine_config::{KubeletConfigSpec, MachineConfigPoolSpec};
use serde_json::{Map, Value};

/// Fields that others set, and who does. An empty value counts as absent, as in machine-config-operator, where Go
/// does not distinguish the two.
const DENIED: [(&str, &str); 6] = [
    ("cgroupDriver", "it has to be that of the container runtime"),
    ("clusterDNS", "it follows from the ControllerConfig"),
    ("clusterDomain", "it follows from the ControllerConfig"),
    ("failSwapOn", "swap is not supported"),
    ("featureGates", "they are the cluster's"),
    ("memorySwap.swapBehavior", "swap is not supported"),
];
/// What names the type of the configuration. It may be left out.
const TYPE: [(&str, &str); 2] = [("apiVersion", "kubelet.config.k8s.io/v1beta1"), ("kind", "KubeletConfiguration")];
/// The types of the kubelet's fields: `KubeletConfiguration` of kubelet.config.k8s.io/v1beta1 in Kubernetes 1.36.
const FIELDS: &str = include_str!("fields.txt");
const STATIC_PODS: &str = "staticPodPath";
const LOG_LEVELS: std::ops::RangeInclusive<i32> = 0..=10;
const MASTER: &str = "node-role.kubernetes.io/master";

/// Whether the nodes of a pool are the control plane's: by its name, or because its selector asks for their label.
pub fn is_control_plane(pool: &str, spec: &MachineConfigPoolSpec) -> bool {
    let Some(selector) = spec.node_selector.as_ref().filter(|_| !matches!(pool, "master" | "arbiter")) else {
        return matches!(pool, "master" | "arbiter");
    };
    let by_label = selector.match_labels.iter().flatten().any(|(key, _)| key == MASTER);
    let mut expressions = selector.match_expressions.iter().flatten();
    by_label || expressions.any(|it| it.key == MASTER && matches!(it.operator.as_str(), "In" | "Exists"))
}

/// Checks what the user has written.
pub(super) fn check(
    spec: &KubeletConfigSpec,
    user: &Map<String, Value>,
    is_control_plane: bool,
    root: &FieldPath,
) -> Vec<FieldError> {
    let path = root.child("kubeletConfig");
    let mut errors = types(user, &path);
    errors.extend(amounts::check(user, &path));
    errors.extend(evictions::check(user, &path));
    for (field, only) in TYPE {
        if let Some(other) = user.get(field).filter(|value| !value.is_null() && *value != only) {
            errors.push(FieldError::not_supported(path.child(field), other.clone(), &[only]));
        }
    }
    for (field, why) in DENIED {
        if at(user, field).is_some_and(|value| !is_empty(value)) {
            errors.push(FieldError::forbidden(path.child(field), why));
        }
    }
    if let Some(level) = spec.log_level.filter(|level| !LOG_LEVELS.contains(level)) {
        errors.push(FieldError::invalid(root.child("logLevel"), level, "must be from 0 to 10"));
    }
    let has_reserved = user.get("systemReserved").is_some_and(|value| !is_empty(value));
    if has_reserved && spec.auto_sizing_reserved == Some(true) {
        let why = "with spec.autoSizingReserved, nodes compute it";
        errors.push(FieldError::forbidden(path.child("systemReserved"), why));
    }
    match user.get(STATIC_PODS) {
        Some(_) if is_control_plane => {
            let why = "the control plane consists of static Pods";
            errors.push(FieldError::forbidden(path.child(STATIC_PODS), why));
        }
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(_) => {
            let why = "only an empty path is allowed, which switches static Pods off";
            errors.push(FieldError::forbidden(path.child(STATIC_PODS), why));
        }
    }
    errors
}

/// The fields of a user without those that must not change what is there: an empty value of what others set, and no path of static
/// Pods. Merged, they would erase it.
pub(super) fn effective(mut user: Map<String, Value>) -> Map<String, Value> {
    for (field, _) in DENIED {
        remove_empty(&mut user, field);
    }
    if user.get(STATIC_PODS).is_some_and(Value::is_null) {
        user.remove(STATIC_PODS);
    }
    user
}

/// Removes a field that is empty, or of which a part of the path is null.
fn remove_empty(fields: &mut Map<String, Value>, path: &str) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (fields.get_mut(first), rest) {
        (Some(Value::Object(inner)), Some(rest)) => remove_empty(inner, rest),
        (Some(value), None) if is_empty(value) => drop(fields.remove(first)),
        (Some(Value::Null), Some(_)) => drop(fields.remove(first)),
        _ => {}
    }
}

/// Checks what only shows in the result.
pub(super) fn check_merged(merged: &Map<String, Value>, root: &FieldPath) -> Result<(), Box<FieldError>> {
    amounts::check_thresholds(merged, root)?;
    evictions::check_grace_periods(merged, root)?;
    let text = |field: &str| merged.get(field).and_then(Value::as_str).unwrap_or_default();
    let (reserved, own) = (text("systemReservedCgroup"), text("systemCgroups"));
    if reserved.is_empty() || own.is_empty() || reserved == own {
        return Ok(());
    }
    let path = root.child("kubeletConfig").child("systemCgroups");
    Err(Box::new(FieldError::invalid(path, own, format!("must be systemReservedCgroup, which is {reserved:?}"))))
}

/// Values whose types the kubelet would refuse. Fields of later releases are not known here, and pass.
fn types(user: &Map<String, Value>, path: &FieldPath) -> Vec<FieldError> {
    let known = FIELDS.lines().filter_map(|line| line.split_once(' '));
    known.filter_map(|(field, kind)| wrong_type(at(user, field)?, kind, path.child(field))).collect()
}

/// Fields that the kubelet does not have in the known release. It ignores them, with a line in its log.
pub(super) fn unknown(user: &Map<String, Value>, path: &FieldPath) -> Vec<FieldPath> {
    let is_known =
        |field: &str| FIELDS.lines().any(|line| line.split_once(' ').is_some_and(|(known, _)| known == field));
    user.keys().filter(|field| !is_known(field)).map(|field| path.child(field)).collect()
}

fn wrong_type(value: &Value, kind: &str, path: FieldPath) -> Option<FieldError> {
    let (is_right, text) = match kind {
        "boolean" => (value.is_boolean(), "must be true or false"),
        "duration" => {
            let is_right = value.as_str().is_some_and(|text| text.parse::<GoDuration>().is_ok());
            (is_right, "must be a duration such as 10s or 1h30m")
        }
        "integer" => (value.is_i64() || value.is_u64(), "must be an integer"),
        "list" => (value.is_array(), "must be a list"),
        "number" => (value.is_number(), "must be a number"),
        "string" => (value.is_string(), "must be a string"),
        "strings" => {
            let is_right = value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
            (is_right, "must be a list of strings")
        }
        "texts" => {
            let is_right = value.as_object().is_some_and(|object| object.values().all(Value::is_string));
            (is_right, "must be an object whose values are strings")
        }
        _ => (value.is_object(), "must be an object"),
    };
    (!is_right && !value.is_null()).then(|| FieldError::invalid(path, value.clone(), text))
}

fn at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = fields.get(first)?;
    match rest {
        None => Some(value),
        Some(rest) => at(value.as_object()?, rest),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
