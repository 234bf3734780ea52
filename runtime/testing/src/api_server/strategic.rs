//! Strategic merge patches: merge patches that merge lists of built-in kinds by the keys of their items.

use serde_json::{Map, Value};

use super::fields::Shape;

const DIRECTIVE: &str = "$patch";
const DELETED: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";
const RETAIN: &str = "$retainKeys";

/// Applies a patch to an object.
pub(super) fn merge(shape: &Shape, live: &Value, patch: &Value) -> Value {
    match (live, patch) {
        (_, Value::Object(patch)) if patch.get(DIRECTIVE) == Some(&"replace".into()) => without_directives(patch),
        (Value::Object(live), Value::Object(patch)) => Value::Object(merge_fields(shape, live, patch)),
        (_, Value::Object(patch)) => Value::Object(merge_fields(shape, &Map::new(), patch)),
        (Value::Array(live), Value::Array(patch)) => match shape {
            Shape::Set => merge_set(live, patch),
            Shape::Keyed(..) => merge_items(shape, live, patch),
            _ => Value::Array(patch.clone()),
        },
        _ => patch.clone(),
    }
}

fn without_directives(patch: &Map<String, Value>) -> Value {
    Value::Object(patch.iter().filter(|(key, _)| !key.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect())
}

fn merge_fields(shape: &Shape, live: &Map<String, Value>, patch: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = live.clone();
    if let Some(kept) = patch.get(RETAIN).and_then(Value::as_array) {
        merged.retain(|key, _| kept.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETED) {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(items) = merged.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with('$') {
            // The order directives of lists are ignored.
            debug_assert!(key.starts_with(ORDER) || key == DIRECTIVE || key == RETAIN, "{key}");
        } else if value.is_null() {
            merged.remove(key);
        } else {
            let below = shape.at(key);
            let value =
                merged.get(key).map_or_else(|| merge(below, &Value::Null, value), |live| merge(below, live, value));
            merged.insert(key.clone(), value);
        }
    }
    merged
}

fn merge_set(live: &[Value], patch: &[Value]) -> Value {
    let mut patched: Vec<_> = patch.to_vec();
    patched.dedup();
    let rest = live.iter().filter(|item| !patch.contains(item)).cloned().collect();
    Value::Array(interleave(rest, patched, live, |item| item))
}

fn merge_items(shape: &Shape, live: &[Value], patch: &[Value]) -> Value {
    let plain = || patch.iter().filter(|item| item.get(DIRECTIVE).is_none());
    if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
        return Value::Array(plain().cloned().collect());
    }
    // Only the first of the list's keys counts, even if there are more.
    let key = shape.keys().and_then(|keys| keys.first()).map_or("", String::as_str);
    let is = |item: &Value, other: &Value| item[key] == other[key];
    let patched = plain().map(|item| {
        let there = live.iter().find(|live| is(live, item)).unwrap_or(&Value::Null);
        merge(shape.of_items(), there, item)
    });
    let rest = live.iter().filter(|live| patch.iter().all(|item| !is(live, item))).cloned();
    Value::Array(interleave(rest.collect(), patched.collect(), live, |item| &item[key]))
}

/// Patched items keep their order; each other item comes before the first patched item that followed it.
fn interleave(rest: Vec<Value>, patched: Vec<Value>, live: &[Value], key: impl Fn(&Value) -> &Value) -> Vec<Value> {
    let place = |item: &Value| live.iter().position(|live| key(live) == key(item));
    let (mut rest, mut patched) = (rest.into_iter().peekable(), patched.into_iter().peekable());
    let mut all = vec![];
    loop {
        let rest_is_next = match (rest.peek(), patched.peek()) {
            (None, None) => return all,
            (Some(rest), Some(patched)) => matches!((place(rest), place(patched)), (Some(l), Some(r)) if l < r),
            (next, _) => next.is_some(),
        };
        all.extend(if rest_is_next { rest.next() } else { patched.next() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fields::shape::builtin;
    use super::*;

    #[test]
    fn lists_are_merged_by_key() {
        let live = json!({"status": {"phase": "A", "conditions": [{"type": "A", "status": "True"}, {"type": "B"}],
            "images": [1, 2]}});
        let patch = json!({"status": {"phase": null, "images": [3],
            "conditions": [{"type": "A", "reason": "x"}, {"type": "B", "$patch": "delete"}, {"type": "C"}]}});
        let expected = json!({"status": {"images": [3],
            "conditions": [{"type": "A", "status": "True", "reason": "x"}, {"type": "C"}]}});
        assert_eq!(merge(&builtin("Node"), &live, &patch), expected);
    }

    #[test]
    fn sets_grow_and_shrink_by_directive() {
        let live = json!({"metadata": {"finalizers": ["a", "b"]}});
        let grown = merge(&builtin("Node"), &live, &json!({"metadata": {"finalizers": ["b", "c"]}}));
        assert_eq!(grown["metadata"]["finalizers"], json!(["a", "b", "c"]));
        let gone = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        assert_eq!(merge(&builtin("Node"), &live, &gone)["metadata"]["finalizers"], json!(["b"]));
    }
}
