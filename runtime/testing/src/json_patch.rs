//! JSON patches as an API server applies them.

use json_patch::{Patch, PatchError, PatchOperation};
use serde_json::Value;

/// Applies a patch as an API server does where RFC 6902 differs or says nothing:
///
/// * A test for null also passes for an absent value, if its parent exists: clients use it to test that a list is absent.
/// * A replacement of an absent key adds it.
pub fn json_patch(object: &mut Value, patch: &Patch) -> Result<(), PatchError> {
    let mut patched = object.clone();
    for operation in &patch.0 {
        match operation {
            PatchOperation::Test(test) if test.value.is_null() && is_free(&patched, test.path.as_str()) => {}
            PatchOperation::Replace(replace) if is_free(&patched, replace.path.as_str()) => {
                let add = json_patch::AddOperation { path: replace.path.clone(), value: replace.value.clone() };
                ::json_patch::patch(&mut patched, &[PatchOperation::Add(add)])?;
            }
            operation => ::json_patch::patch(&mut patched, std::slice::from_ref(operation))?,
        }
    }
    *object = patched;
    Ok(())
}

/// Whether a path names an absent key of an existing map.
fn is_free(object: &Value, path: &str) -> bool {
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
    parent.is_some_and(Value::is_object) && object.pointer(path).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(operation: &Value) -> Option<Value> {
        let mut object = json!({"labels": {"a": "1"}, "list": ["x"]});
        let patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch(&mut object, &patch).ok().map(|()| object)
    }

    #[test]
    fn what_is_not_there_is_null_and_can_be_replaced() {
        let op = |op: &str, path: &str, value: Value| patched(&json!({"op": op, "path": path, "value": value}));
        assert!(op("test", "/other", Value::Null).is_some());
        assert!(op("test", "/labels/b", Value::Null).is_some());
        assert!(op("test", "/labels/a", Value::Null).is_none());
        assert!(op("test", "/other/b", Value::Null).is_none(), "not even the parent is there");
        assert_eq!(op("replace", "/labels/b", "2".into()).unwrap()["labels"]["b"], "2");
        assert!(op("replace", "/other/b", "2".into()).is_none());
        assert!(op("replace", "/list/1", "y".into()).is_none());
    }
}
