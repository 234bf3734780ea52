//! Sets and removes annotations and labels with JSON patches that test the values that were read.

use std::collections::BTreeMap;

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::patch::{remove, set as add, test};

/// Sets or removes an annotation; empty if it has that value already. A 422 means that the value has changed since.
pub fn set(seen: &ObjectMeta, key: &str, value: Option<&str>) -> Patch {
    set_in("annotations", seen.annotations.as_ref(), key, value)
}

/// The same for a label.
pub fn set_label(seen: &ObjectMeta, key: &str, value: Option<&str>) -> Patch {
    set_in("labels", seen.labels.as_ref(), key, value)
}

fn set_in(field: &str, seen: Option<&BTreeMap<String, String>>, key: &str, value: Option<&str>) -> Patch {
    let standing = seen.and_then(|all| all.get(key)).map(String::as_str);
    if standing == value {
        return Patch(vec![]);
    }
    let path = ["metadata", field, key];
    let mut operations = match seen {
        None => vec![test(&path[..2], Value::Null), add(&path[..2], json!({}))],
        Some(_) => vec![test(&path, standing.into())],
    };
    operations.push(value.map_or_else(|| remove(&path), |value| add(&path, value.into())));
    Patch(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_stay_and_a_change_is_noticed() {
        let table = [
            (json!(null), Some("1"), Some(json!({"a/b": "1"}))),
            (json!({"x": "y"}), Some("1"), Some(json!({"a/b": "1", "x": "y"}))),
            (json!({"a/b": "0", "x": "y"}), Some("1"), Some(json!({"a/b": "1", "x": "y"}))),
            (json!({"a/b": "0", "x": "y"}), None, Some(json!({"x": "y"}))),
            (json!({"a/b": "1"}), Some("1"), None),
            (json!(null), None, None),
        ];
        for (before, value, expected) in table {
            let mut object = json!({"metadata": {"name": "n", "annotations": before}});
            let seen: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
            let patch = set(&seen, "a/b", value);
            assert_eq!(patch.0.is_empty(), expected.is_none());
            let mut changed = json!({"metadata": {"name": "n", "annotations": {"a/b": "2"}}});
            assert!(patch.0.is_empty() || nodewright_testing::json_patch(&mut changed, &patch).is_err());
            nodewright_testing::json_patch(&mut object, &patch).unwrap();
            assert_eq!(object["metadata"]["annotations"], expected.unwrap_or(before));
        }
    }
}
