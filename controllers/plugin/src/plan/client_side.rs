//! The apply of kubectl without `--server-side`, of which API servers know nothing: what it applied before is in an annotation.

use nodewright_api::annotations::KUBECTL_LAST_APPLIED_CONFIGURATION as LAST_APPLIED;
use serde_json::{Map, Value};

/// The manager of kubectl's server-side applies. The first one after client-side ones takes their fields over, so that those that a
/// file omits go as well.
pub(super) const KUBECTL: &str = "kubectl";

/// The merge patch by which kubectl applies an object of `namespace` that it has applied on the client's side before; `None` if
/// it has been applied on the server's side since.
pub(super) fn patch(live: &Value, object: &Value, namespace: Option<&str>) -> Option<Value> {
    let fields = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    let is_apply = |entry: &Value| entry["operation"] == "Apply" && entry["manager"] == KUBECTL;
    if fields.into_iter().flatten().any(is_apply) {
        return None;
    }
    let last = live.pointer("/metadata/annotations")?.get(LAST_APPLIED)?.as_str()?;
    let last = serde_json::from_str(last).ok()?;
    let mut patch = object.clone();
    let metadata = patch.get_mut("metadata")?.as_object_mut()?;
    // What kubectl adds: it always has an annotation of its own.
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    if let Some(namespace) = namespace {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    remove_omitted(&mut patch, &last);
    Some(patch)
}

/// Lets the fields go that were applied before, and are not any more.
fn remove_omitted(patch: &mut Value, last: &Value) {
    let (Value::Object(patch), Value::Object(last)) = (patch, last) else { return };
    for (key, before) in last {
        match patch.get_mut(key) {
            Some(now) => remove_omitted(now, before),
            None => drop(patch.insert(key.clone(), Value::Null)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn live(last: &Value, managers: &Value) -> Value {
        json!({"metadata": {"annotations": {LAST_APPLIED: last.to_string()}, "managedFields": managers}})
    }

    #[test]
    fn fields_that_were_applied_before_go_and_metadata_stays() {
        let last = json!({"kind": "K", "metadata": {"name": "a", "namespace": "n", "annotations": {}},
            "spec": {"gone": 1, "inner": {"gone": 1, "kept": 1}, "list": [1, 2]}});
        let object = json!({"kind": "K", "metadata": {"name": "a"}, "spec": {"inner": {"kept": 2}, "list": [1]}});
        let expected = json!({"kind": "K", "metadata": {"name": "a", "namespace": "n", "annotations": {}},
            "spec": {"gone": null, "inner": {"gone": null, "kept": 2}, "list": [1]}});
        let managers = json!([{"manager": "kubectl-client-side-apply", "operation": "Update"}]);
        assert_eq!(patch(&live(&last, &managers), &object, Some("n")), Some(expected));
    }

    #[test]
    fn other_applies_are_the_api_servers() {
        let object = json!({"metadata": {"name": "a"}});
        let by_server = json!([{"manager": KUBECTL, "operation": "Apply"}]);
        for live in [live(&object, &by_server), json!({"metadata": {"name": "a"}})] {
            assert_eq!(patch(&live, &object, None), None, "{live}");
        }
    }
}
