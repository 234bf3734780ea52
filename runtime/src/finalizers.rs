//! Adds and removes finalizers with JSON patches that test the values that were read.
//!
//! One manager's apply cannot remove a finalizer that another one applied, and an update of the list removes those of others.

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::patch::{self, set, test};

/// Adds a finalizer; empty if it is there already. A 422 means that the list has changed since.
pub fn add(seen: &ObjectMeta, finalizer: &str) -> Patch {
    let list = seen.finalizers.as_deref().unwrap_or_default();
    if list.iter().any(|known| known == finalizer) {
        return Patch(vec![]);
    }
    let path = ["metadata", "finalizers", "-"];
    Patch(match list {
        [] => vec![test(&path[..2], Value::Null), set(&path[..2], json!([finalizer]))],
        _ => vec![test(&path[..2], json!(list)), set(&path, finalizer.into())],
    })
}

/// Removes a finalizer; empty if it is not there. The API server refuses the patch if the finalizer has moved since.
pub fn remove(seen: &ObjectMeta, finalizer: &str) -> Patch {
    let list = seen.finalizers.as_deref().unwrap_or_default();
    let Some(place) = list.iter().position(|known| known == finalizer) else { return Patch(vec![]) };
    let path = ["metadata", "finalizers", &place.to_string()];
    Patch(vec![test(&path, finalizer.into()), patch::remove(&path)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(finalizers: &[&str]) -> ObjectMeta {
        let finalizers: Vec<String> = finalizers.iter().map(|&name| name.to_owned()).collect();
        ObjectMeta { finalizers: Some(finalizers), ..ObjectMeta::default() }
    }

    fn apply(patch: &Patch, list: &[&str]) -> Result<serde_json::Value, json_patch::PatchError> {
        let mut object = json!({"metadata": {"name": "x"}});
        if !list.is_empty() {
            object["metadata"]["finalizers"] = json!(list);
        }
        nodewright_testing::json_patch(&mut object, patch)?;
        Ok(object["metadata"]["finalizers"].clone())
    }

    #[test]
    fn adding_keeps_the_others_and_notices_a_change() {
        assert_eq!(apply(&add(&meta(&[]), "a"), &[]).unwrap(), json!(["a"]));
        assert_eq!(apply(&add(&meta(&["x"]), "a"), &["x"]).unwrap(), json!(["x", "a"]));
        assert!(apply(&add(&meta(&["x"]), "a"), &["x", "y"]).is_err());
        assert!(apply(&add(&meta(&[]), "a"), &["x"]).is_err());
        assert!(add(&meta(&["a"]), "a").0.is_empty());
    }

    #[test]
    fn removing_takes_only_its_own() {
        let patch = remove(&meta(&["x", "a"]), "a");
        assert_eq!(apply(&patch, &["x", "a"]).unwrap(), json!(["x"]));
        assert!(apply(&patch, &["a", "x"]).is_err());
        assert!(remove(&meta(&["x"]), "a").0.is_empty());
    }
}
