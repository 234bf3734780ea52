//! The first difference between two renderings, in words.

use super::oracle::Made;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn difference(ours: &BTreeMap<String, Made>, theirs: &BTreeMap<String, Made>) -> Option<String> {
    let (names, known): (Vec<_>, Vec<_>) = (ours.keys().collect(), theirs.keys().collect());
    if names != known {
        return Some(format!("MachineConfigs: Nodewright {names:?}, machine-config-operator {known:?}"));
    }
    ours.iter().zip(theirs.values()).find_map(|((name, ours), theirs)| {
        if ours.role != theirs.role {
            return Some(format!("{name}: role: Nodewright {}, machine-config-operator {}", ours.role, theirs.role));
        }
        of_values(name, &ours.spec, &theirs.spec)
    })
}

/// The first value that differs.
fn of_values(at: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
            let of =
                |fields: &serde_json::Map<String, Value>, name: &str| fields.get(name).cloned().unwrap_or_default();
            names.into_iter().find_map(|name| of_values(&format!("{at}.{name}"), &of(ours, name), &of(theirs, name)))
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => ours
            .iter()
            .zip(theirs)
            .enumerate()
            .find_map(|(index, (ours, theirs))| of_values(&format!("{at}[{index}]"), ours, theirs)),
        (ours, theirs) if ours == theirs => None,
        (ours, theirs) => Some(format!(
            "{at}\n  Nodewright              {}\n  machine-config-operator {}",
            shown(ours, theirs),
            shown(theirs, ours)
        )),
    }
}

/// A value; of a text what follows shortly before the first difference.
fn shown(value: &Value, other: &Value) -> String {
    let (Some(text), Some(other)) = (value.as_str(), other.as_str()) else { return keys(value) };
    let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(60);
    let part: String = text.chars().skip(from).take(200).collect();
    format!("{} bytes, from {from} on: {part:?}", text.len())
}

/// Of a list of files or units, their paths or names.
fn keys(value: &Value) -> String {
    let key = |element: &Value| element.get("path").or_else(|| element.get("name")).cloned();
    match value.as_array().and_then(|list| list.iter().map(key).collect::<Option<Vec<_>>>()) {
        Some(keys) => Value::Array(keys).to_string(),
        None => value.to_string(),
    }
}
