//! Merging one config over another, by the table of [`lists`](super::lists).
//!
//! Objects merge field by field, the child's values win, and lists merge by their keys. Configs are canonical, so that what
//! is absent here is what Go's structs hold as a zero value.

use super::lists::{Key, List, Space, key_of, list};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

type Object = Map<String, Value>;

/// Merges two objects of the same type.
pub(super) fn merge(parent: &Object, child: &Object) -> Object {
    let fields: BTreeSet<_> = parent.keys().chain(child.keys()).collect();
    let merged = fields.into_iter().filter_map(|field| {
        let value = match (parent.get(field), child.get(field)) {
            (Some(Value::Object(parent)), Some(Value::Object(child))) => Value::Object(merge(parent, child)),
            (old @ (Some(Value::Array(_)) | None), new @ (Some(Value::Array(_)) | None)) => {
                merge_lists(field, elements(old), elements(new), child)?
            }
            (old, new) => new.or(old)?.clone(),
        };
        Some((field.clone(), value))
    });
    merged.collect()
}

fn elements(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Merges two lists. None if nothing is left. `child` is the object that has the child's list.
fn merge_lists(field: &str, old: &[Value], new: &[Value], child: &Object) -> Option<Value> {
    let result: Vec<_> = match list(field) {
        Some(List::Keyed(key, space)) => merge_keyed(field, key, old, new, &elsewhere(child, field, space)),
        Some(List::Append) => old.iter().chain(new).cloned().collect(),
        None => if new.is_empty() { old } else { new }.to_vec(),
    };
    (!result.is_empty()).then_some(Value::Array(result))
}

fn merge_keyed(field: &str, key: Key, old: &[Value], new: &[Value], elsewhere: &BTreeSet<Cow<'_, str>>) -> Vec<Value> {
    // Of several with one key, Ignition takes the last. Valid configs have no such thing.
    let by_key: BTreeMap<_, _> = new.iter().map(|element| (key_of(key, element), element)).collect();
    let known: BTreeSet<_> = old.iter().map(|element| key_of(key, element)).collect();
    let kept = old.iter().filter_map(|parent| match by_key.get(&key_of(key, parent)) {
        Some(child) if field == "httpHeaders" && child.get("value").is_none() => None,
        Some(child) => Some(merge_elements(parent, child)),
        None if elsewhere.contains(&key_of(key, parent)) => None,
        None => Some(parent.clone()),
    });
    let added = new.iter().filter(|element| !known.contains(&key_of(key, element))).cloned();
    kept.chain(added).collect()
}

fn merge_elements(parent: &Value, child: &Value) -> Value {
    match (parent, child) {
        (Value::Object(parent), Value::Object(child)) => Value::Object(merge(parent, child)),
        _ => child.clone(),
    }
}

/// The keys that the child has in the other lists of a space. The parent's elements with these keys are replaced.
fn elsewhere<'a>(child: &'a Object, field: &str, space: Space) -> BTreeSet<Cow<'a, str>> {
    if space == Space::Own {
        return BTreeSet::new();
    }
    let others = child.iter().filter(|(name, _)| *name != field);
    let keys = others.filter_map(|(name, value)| match list(name)? {
        List::Keyed(key, other) if other == space => Some(elements(Some(value)).iter().map(move |e| key_of(key, e))),
        _ => None,
    });
    keys.flatten().collect()
}
