//! Comparing, merging and pruning objects by their shape.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::{Set, field};
use super::shape::{Form, Shape};

/// The fields that a write changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) added: Set,
    pub(super) modified: Set,
    pub(super) removed: Set,
}

impl Changes {
    pub(super) fn without(&self, fields: &Set) -> Self {
        Self {
            added: self.added.without(fields),
            modified: self.modified.without(fields),
            removed: self.removed.without(fields),
        }
    }
}

/// All fields of an object.
pub(super) fn fields_of(shape: &Shape, value: &Value) -> Set {
    let mut set = Set::default();
    collect(shape, value, &mut vec![], &mut set);
    set
}

fn collect(shape: &Shape, value: &Value, path: &mut Vec<String>, set: &mut Set) {
    match (shape.form(value), value) {
        (Form::Map, Value::Object(fields)) => {
            for (key, value) in fields {
                let (below, is_named) = shape.field(key);
                path.push(field(key));
                collect(below, value, path, set);
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if is_empty || !is_named {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (Form::List, Value::Array(items)) => {
            for item in items {
                path.push(shape.element(item));
                collect(shape.item(), item, path, set);
                set.insert(path);
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}

/// The difference between two objects.
pub(super) fn compare(shape: &Shape, old: &Value, new: &Value) -> Changes {
    let mut changes = Changes::default();
    compare_at(shape, Some(old), Some(new), &mut vec![], &mut changes);
    changes
}

fn compare_at(shape: &Shape, old: Option<&Value>, new: Option<&Value>, path: &mut Vec<String>, changes: &mut Changes) {
    if old == new {
        return;
    }
    let form = |value: Option<&Value>| value.map_or(Form::Leaf, |value| shape.form(value));
    let is_leaf = match (old, new) {
        (Some(old), Some(new)) => {
            let form = shape.form(new);
            form == Form::Leaf || form != shape.form(old) || is_empty(old) && is_empty(new)
        }
        _ => form(old.or(new)) == Form::Leaf || old.or(new).is_none_or(is_empty),
    };
    if !is_leaf {
        descend(shape, old, new, path, changes);
    }
    match (old, new) {
        (None, _) => changes.added.insert(path),
        (_, None) => changes.removed.insert(path),
        _ if is_leaf => changes.modified.insert(path),
        _ => {}
    }
}

fn descend(shape: &Shape, old: Option<&Value>, new: Option<&Value>, path: &mut Vec<String>, changes: &mut Changes) {
    if old.or(new).is_some_and(Value::is_object) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let keys: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
        for key in keys {
            let (old, new) = (old.and_then(|fields| fields.get(key)), new.and_then(|fields| fields.get(key)));
            path.push(field(key));
            compare_at(shape.field(key).0, old, new, path, changes);
            path.pop();
        }
    } else {
        let (old, new) = (by_element(shape, old), by_element(shape, new));
        let elements: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for element in elements {
            path.push(element.clone());
            compare_at(shape.item(), old.get(element).copied(), new.get(element).copied(), path, changes);
            path.pop();
        }
    }
}

/// The items of a list by their keys.
fn by_element<'a>(shape: &Shape, list: Option<&'a Value>) -> BTreeMap<String, &'a Value> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.map(|item| (shape.element(item), item)).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The live object with the applied fields.
pub(super) fn merge(shape: &Shape, live: &Value, said: &Value) -> Value {
    let form = shape.form(said);
    if form != shape.form(live) || is_empty(live) && is_empty(said) {
        return said.clone();
    }
    match (form, live, said) {
        (Form::Map, Value::Object(live), Value::Object(said)) => {
            let mut merged = live.clone();
            for (key, said) in said {
                let value = live.get(key).map_or_else(|| said.clone(), |live| merge(shape.field(key).0, live, said));
                merged.insert(key.clone(), value);
            }
            Value::Object(merged)
        }
        (Form::List, Value::Array(live), Value::Array(said)) => merge_items(shape, live, said),
        _ => said.clone(),
    }
}

/// The items of both lists: common items in the applied order, all others at their place.
fn merge_items(shape: &Shape, live: &[Value], said: &[Value]) -> Value {
    let left: Vec<_> = live.iter().map(|item| shape.element(item)).collect();
    let right: Vec<_> = said.iter().map(|item| shape.element(item)).collect();
    let merged = |index: usize| {
        let there = left.iter().position(|element| *element == right[index]);
        there.map_or_else(|| said[index].clone(), |there| merge(shape.item(), &live[there], &said[index]))
    };
    let mut shared = right.iter().filter(|element| left.contains(element));
    let mut next_shared = shared.next();
    let (mut items, mut l, mut r) = (vec![], 0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            if left[l] == right[r] {
                items.push(merged(r));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if right.contains(&left[l]) && next_shared.is_some_and(|next| *next != left[l]) {
                // The applied list has this item later.
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            if !right.contains(&left[l]) {
                items.push(live[l].clone());
                l += 1;
                continue;
            }
            if right[..r].contains(&left[l]) {
                l += 1;
            }
        }
        if r < right.len() {
            items.push(merged(r));
            if next_shared == Some(&right[r]) {
                next_shared = shared.next();
            }
            r += 1;
        }
    }
    Value::Array(items)
}

/// An object without some fields. A container that loses all its fields stays, empty, unless it is removed itself.
pub(super) fn remove(shape: &Shape, value: &Value, fields: &Set) -> Value {
    match (shape.form(value), value) {
        (Form::Map, Value::Object(map)) => {
            let kept = map.iter().filter(|(key, _)| !fields.has(&field(key)));
            let kept = kept.map(|(key, value)| {
                let below = fields.below(&field(key));
                let value = below.map_or_else(|| value.clone(), |below| remove(shape.field(key).0, value, below));
                (key.clone(), value)
            });
            Value::Object(kept.collect())
        }
        (Form::List, Value::Array(items)) => {
            let kept = items.iter().filter_map(|item| {
                let element = shape.element(item);
                let below = fields.below(&element);
                let item = || below.map_or_else(|| item.clone(), |below| remove(shape.item(), item, below));
                (!fields.has(&element)).then(item)
            });
            Value::Array(kept.collect())
        }
        // An atomic value is not pruned.
        _ => value.clone(),
    }
}

/// The set with its parent fields that have known names: their owner is the same.
pub(super) fn with_named(shape: &Shape, set: &Set) -> Set {
    let named = |element: &str| element.strip_prefix("f:").map(|key| shape.field(key)).is_some_and(|(_, named)| named);
    set.map(named, |element, below| {
        let shape = element.strip_prefix("f:").map_or_else(|| shape.item(), |key| shape.field(key).0);
        with_named(shape, below)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::shape::builtin;
    use super::*;

    #[test]
    fn what_a_write_changes_is_found() {
        let shape = builtin("Pod");
        let old = json!({"metadata": {"labels": {"a": "1", "b": "1"}, "finalizers": ["x"]}});
        let new = json!({"metadata": {"labels": {"a": "2"}, "finalizers": ["x", "y"]}, "spec": {"nodeName": "n"}});
        let changes = compare(&shape, &old, &new);
        assert_eq!(changes.modified.paths(), [".metadata.labels.a"]);
        assert_eq!(changes.removed.paths(), [".metadata.labels.b"]);
        assert_eq!(changes.added.paths(), [".spec", ".metadata.finalizers[=\"y\"]", ".spec.nodeName"]);
    }

    #[test]
    fn keyed_items_are_merged_and_the_rest_replaced() {
        let shape = builtin("Node");
        let live = json!({"spec": {"taints": [{"key": "a"}]}, "status": {"conditions": [{"type": "A", "x": 1}, {"type": "B"}]}});
        let said = json!({"spec": {"taints": [{"key": "b"}]}, "status": {"conditions": [{"type": "C"}, {"type": "A", "y": 2}]}});
        let merged = merge(&shape, &live, &said);
        assert_eq!(merged["spec"]["taints"], json!([{"key": "b"}]));
        let expected = json!([{"type": "C"}, {"type": "A", "x": 1, "y": 2}, {"type": "B"}]);
        assert_eq!(merged["status"]["conditions"], expected);
    }

    #[test]
    fn what_is_removed_leaves_an_empty_container() {
        let shape = builtin("ConfigMap");
        let live = json!({"metadata": {"labels": {"a": "1"}}, "data": {"x": "1", "y": "2"}});
        let set = Set::of(&[&["metadata", "labels", "a"], &["data", "x"]]);
        assert_eq!(remove(&shape, &live, &set), json!({"metadata": {"labels": {}}, "data": {"y": "2"}}));
    }
}
