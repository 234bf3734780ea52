//! JSON patches that fail if what they change has changed since it was read.

use std::collections::BTreeMap;

use json_patch::{Patch, PatchOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

pub(crate) use nodewright_runtime::patch::{remove, replace, same_version, set, test};

/// Sets annotations, and tests that each still has the value that was read. Empty if all are as wanted.
pub(crate) fn annotate(seen: &ObjectMeta, wanted: &BTreeMap<&str, String>) -> Patch {
    let known = seen.annotations.as_ref().filter(|all| !all.is_empty());
    let Some(known) = known else {
        // There is no annotation to test. The version test ensures that there is none to overwrite either.
        let add = set(&["metadata", "annotations"], json!(wanted));
        return Patch(if wanted.is_empty() { vec![] } else { vec![same_version(seen), add] });
    };
    let operations = wanted.iter().filter(|(key, value)| known.get(**key) != Some(*value)).flat_map(|(key, value)| {
        let path = ["metadata", "annotations", *key];
        match known.get(*key) {
            Some(before) => [test(&path, before.as_str().into()), replace(&path, value.as_str().into())],
            None => [same_version(seen), set(&path, value.as_str().into())],
        }
    });
    Patch(operations.collect())
}

/// Sets single keys of a map of the metadata. They need no test: each is ours, and the others are not touched.
pub(crate) fn merge(
    field: &str,
    live: Option<&BTreeMap<String, String>>,
    wanted: &BTreeMap<String, String>,
) -> Vec<PatchOperation> {
    let missing = wanted.iter().filter(|(key, value)| live.and_then(|live| live.get(*key)) != Some(*value));
    let additions: Vec<_> = missing.map(|(key, value)| set(&["metadata", field, key], value.as_str().into())).collect();
    let mut operations = vec![];
    if !additions.is_empty() && live.is_none() {
        // Only while there is no map at all: a new map would replace one that another writer made.
        let path = ["metadata", field];
        operations.extend([test(&path, serde_json::Value::Null), set(&path, json!({}))]);
    }
    operations.extend(additions);
    operations
}

/// Removes annotations, and tests that each still has the value that was read. Empty if there is none of them.
pub(crate) fn unannotate<'a>(seen: &ObjectMeta, keys: impl IntoIterator<Item = &'a str>) -> Vec<PatchOperation> {
    let known = |key| Some((key, seen.annotations.as_ref()?.get(key)?));
    let removal = |(key, value): (&str, &String)| {
        let path = ["metadata", "annotations", key];
        [test(&path, value.as_str().into()), remove(&path)]
    };
    keys.into_iter().filter_map(known).flat_map(removal).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn patched(patch: &Patch, mut object: Value) -> Result<Value, json_patch::PatchError> {
        nodewright_testing::json_patch(&mut object, patch).map(|()| object["metadata"]["annotations"].clone())
    }

    #[test]
    fn annotations_are_set_beside_others_and_only_as_read() {
        let wanted = BTreeMap::from([("a/b", "1".to_owned()), ("c", "2".to_owned())]);
        let live = json!({"metadata": {"resourceVersion": "7", "annotations": {"a/b": "0", "x": "y"}}});
        let patch = annotate(&meta(live["metadata"].clone()), &wanted);
        assert_eq!(patched(&patch, live.clone()).unwrap(), json!({"a/b": "1", "c": "2", "x": "y"}));
        let mut other = live;
        other["metadata"]["annotations"]["a/b"] = "5".into();
        assert!(patched(&patch, other).is_err());
    }

    #[test]
    fn the_first_annotation_makes_the_map() {
        let wanted = BTreeMap::from([("a", "1".to_owned())]);
        let live = json!({"metadata": {"resourceVersion": "7"}});
        let patch = annotate(&meta(live["metadata"].clone()), &wanted);
        assert_eq!(patched(&patch, live).unwrap(), json!({"a": "1"}));
        assert!(patched(&patch, json!({"metadata": {"resourceVersion": "8"}})).is_err());
    }

    #[test]
    fn nothing_to_do_is_an_empty_patch() {
        let seen = meta(json!({"annotations": {"a": "1"}}));
        assert!(annotate(&seen, &BTreeMap::from([("a", "1".to_owned())])).0.is_empty());
        assert!(annotate(&ObjectMeta::default(), &BTreeMap::new()).0.is_empty());
    }
}
