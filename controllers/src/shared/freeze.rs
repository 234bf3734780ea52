//! The label of a freeze: a MachineSet that has too many machines, and its MachineDeployment, bear it, and the set creates none
//! until there are fewer. machine-controller-manager has the same label, and its freezes end here after a take-over.

use std::collections::BTreeMap;

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodewright_api::{annotations, labels};
use serde_json::json;

use super::patch;

/// Adds the label of a freeze. Empty if the object bears it.
pub(crate) fn freeze(seen: &ObjectMeta) -> Patch {
    let labels = seen.labels.as_ref().filter(|all| !all.is_empty());
    let add = match labels.map(|all| all.get(labels::FREEZE)) {
        Some(Some(value)) if value == labels::FREEZE_VALUE => return Patch::default(),
        Some(_) => patch::set(&["metadata", "labels", labels::FREEZE], labels::FREEZE_VALUE.into()),
        None => patch::set(&["metadata", "labels"], json!({labels::FREEZE: labels::FREEZE_VALUE})),
    };
    Patch(vec![patch::same_version(seen), add])
}

/// Asks for the end of the freeze in the name of a user.
pub(crate) fn ask_to_unfreeze(seen: &ObjectMeta) -> Patch {
    patch::annotate(seen, &BTreeMap::from([(annotations::UNFREEZE, "true".to_owned())]))
}

/// Whether a user has asked for the end of the freeze.
pub(crate) fn is_unfreeze_wanted(seen: &ObjectMeta) -> bool {
    seen.annotations.as_ref().is_some_and(|all| all.contains_key(annotations::UNFREEZE))
}

/// Removes the label of the freeze, and the annotation of a user who asked for its end. Empty if there is neither.
pub(crate) fn unfreeze(seen: &ObjectMeta) -> Patch {
    let label = seen.labels.as_ref().and_then(|all| all.get(labels::FREEZE)).filter(|it| *it == labels::FREEZE_VALUE);
    let label = label.map(|_| patch::remove(&["metadata", "labels", labels::FREEZE]));
    let wanted = is_unfreeze_wanted(seen);
    let annotation = wanted.then(|| patch::remove(&["metadata", "annotations", annotations::UNFREEZE]));
    let removals: Vec<_> = label.into_iter().chain(annotation).collect();
    if removals.is_empty() {
        return Patch(removals);
    }
    Patch([vec![patch::same_version(seen)], removals].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn unfrozen(metadata: &Value) -> Value {
        let seen: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
        let mut object = json!({"metadata": metadata});
        nodewright_testing::json_patch(&mut object, &unfreeze(&seen)).unwrap();
        object["metadata"].take()
    }

    #[test]
    fn label_and_request_go_together_and_nothing_else() {
        let key = annotations::UNFREEZE;
        let frozen = json!({
            "resourceVersion": "7", "labels": {"freeze": "True", "a": "b"}, "annotations": {key: "now", "c": "d"},
        });
        let expected = json!({"resourceVersion": "7", "labels": {"a": "b"}, "annotations": {"c": "d"}});
        assert_eq!(unfrozen(&frozen), expected);
        let only_label = json!({"resourceVersion": "7", "labels": {"freeze": "True"}});
        assert_eq!(unfrozen(&only_label), json!({"resourceVersion": "7", "labels": {}}));
    }

    #[test]
    fn what_is_not_frozen_stays_as_it_is() {
        for labels in [json!({"freeze": "False"}), json!({})] {
            let seen: ObjectMeta = serde_json::from_value(json!({"labels": labels})).unwrap();
            assert!(unfreeze(&seen).0.is_empty());
        }
    }
}
