//! Who owns which field: server-side apply without schemas.
//!
//! Lists are owned as a whole, but for those of `metadata` that every schema keys: finalizers are a set, owner
//! references are keyed by UID. As in MCM's CRDs, conditions of custom resources are one atomic list; those of core
//! kinds are keyed by type.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::Status;
use serde_json::{Map, Value};

use super::refusal;
use super::route::{Part, Resource};

/// A way into an object. An item of a keyed list or of a set is named by what identifies it.
pub(super) type Path = Vec<String>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    part: Part,
    applies: bool,
}

/// The fields of one object by manager.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(BTreeMap<Manager, BTreeSet<Path>>);

/// Fields of `metadata` that nobody owns.
const SYSTEM_FIELDS: [&str; 9] = [
    "name",
    "namespace",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// How the items of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListKind {
    Atomic,
    Set,
    Keyed(&'static str),
}

fn list_kind(resource: &Resource, path: &[String]) -> ListKind {
    let names: Vec<_> = path.iter().map(String::as_str).collect();
    match names[..] {
        ["metadata", "finalizers"] => ListKind::Set,
        ["metadata", "ownerReferences"] => ListKind::Keyed("uid"),
        ["status", "conditions"] if !resource.is_custom() => ListKind::Keyed("type"),
        _ => ListKind::Atomic,
    }
}

/// The name of a list's item within paths.
fn item_name(kind: ListKind, item: &Value) -> String {
    match kind {
        ListKind::Keyed(key) => format!("[{key}={}]", item[key]),
        _ => format!("[={item}]"),
    }
}

impl Owners {
    /// Records that a manager changed an object by anything but an apply.
    pub(super) fn update(&mut self, resource: &Resource, manager: &str, part: Part, old: &Value, new: &Value) {
        let (old, new) = (leaves(resource, part, old), leaves(resource, part, new));
        let changed = new.iter().filter(|(path, value)| old.get(*path) != Some(*value));
        let changed: BTreeSet<Path> = changed.map(|(path, _)| path.clone()).collect();
        let gone: BTreeSet<&Path> = old.keys().filter(|path| !new.contains_key(*path)).collect();
        for paths in self.0.values_mut() {
            paths.retain(|path| !changed.contains(path) && !gone.contains(path));
        }
        if !changed.is_empty() {
            let manager = Manager { name: manager.to_owned(), part, applies: false };
            self.0.entry(manager).or_default().extend(changed);
        }
        self.0.retain(|_, paths| !paths.is_empty());
    }

    /// The object after an apply: what is said is set, what this manager said before and nobody else says is
    /// removed. Refused where others own a field with another value, unless forced.
    pub(super) fn apply(
        &mut self,
        resource: &Resource,
        manager: &str,
        part: Part,
        live: &Value,
        said: &Value,
        force: bool,
    ) -> Result<Value, Box<Status>> {
        let manager = Manager { name: manager.to_owned(), part, applies: true };
        let (before, now) = (leaves(resource, part, live), leaves(resource, part, said));
        let conflicts = self.conflicts(&manager, &before, &now);
        if !conflicts.is_empty() && !force {
            return Err(refusal::field_conflicts(&conflicts));
        }
        for (other, paths) in &mut self.0 {
            if *other != manager {
                // Equal values are shared; unequal ones change hands.
                paths.retain(|path| now.get(path).is_none_or(|value| before.get(path) == Some(value)));
            }
        }
        let earlier = self.0.insert(manager.clone(), now.keys().cloned().collect()).unwrap_or_default();
        let mut object = live.clone();
        for path in earlier.iter().filter(|path| !now.contains_key(*path)) {
            let shared = self.0.iter().any(|(other, paths)| *other != manager && paths.contains(path));
            if !shared {
                remove(resource, &mut object, path);
            }
        }
        merge(resource, part, &mut object, said);
        self.0.retain(|_, paths| !paths.is_empty());
        Ok(object)
    }

    /// Fields that others own and that would change, with their owners.
    fn conflicts(
        &self,
        manager: &Manager,
        before: &BTreeMap<Path, Value>,
        now: &BTreeMap<Path, Value>,
    ) -> Vec<(String, String)> {
        let others = self.0.iter().filter(|(other, _)| *other != manager);
        let owned = others.flat_map(|(other, paths)| paths.iter().map(move |path| (other, path)));
        let changed = owned.filter(|(_, path)| now.get(*path).is_some_and(|value| before.get(*path) != Some(value)));
        changed.map(|(other, path)| (other.name.clone(), format!(".{}", path.join(".")))).collect()
    }
}

/// All that can be owned in a part of an object, with its value.
fn leaves(resource: &Resource, part: Part, object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let belongs = match part {
            Part::Main => !matches!(key.as_str(), "apiVersion" | "kind" | "status"),
            Part::Status => key == "status",
        };
        if belongs {
            collect(resource, vec![key.clone()], value, &mut found);
        }
    }
    found.retain(|path, _| {
        !matches!(&path[..], [top, field, ..] if top == "metadata" && SYSTEM_FIELDS.contains(&field.as_str()))
    });
    found
}

fn collect(resource: &Resource, path: Path, value: &Value, found: &mut BTreeMap<Path, Value>) {
    let below = |name: String| path.iter().cloned().chain([name]).collect::<Path>();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                collect(resource, below(key.clone()), value, found);
            }
        }
        Value::Array(items) => match list_kind(resource, &path) {
            ListKind::Atomic => drop(found.insert(path, value.clone())),
            kind => {
                for item in items {
                    collect(resource, below(item_name(kind, item)), item, found);
                }
            }
        },
        _ => drop(found.insert(path, value.clone())),
    }
}

/// Sets what is said in what is there.
fn merge(resource: &Resource, part: Part, object: &mut Value, said: &Value) {
    for (key, value) in said.as_object().into_iter().flatten() {
        let belongs = match part {
            Part::Main => key != "status",
            Part::Status => key == "status",
        };
        if belongs {
            merge_value(resource, &mut vec![key.clone()], &mut object[key.as_str()], value);
        }
    }
}

fn merge_value(resource: &Resource, path: &mut Path, target: &mut Value, said: &Value) {
    match said {
        Value::Object(fields) if !fields.is_empty() => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            for (key, value) in fields {
                path.push(key.clone());
                merge_value(resource, path, &mut target[key.as_str()], value);
                path.pop();
            }
        }
        Value::Array(items) => match (list_kind(resource, path), target.as_array_mut()) {
            (kind, Some(target)) if kind != ListKind::Atomic => merge_items(resource, path, kind, target, items),
            _ => *target = said.clone(),
        },
        _ => *target = said.clone(),
    }
}

fn merge_items(resource: &Resource, path: &mut Path, kind: ListKind, target: &mut Vec<Value>, said: &[Value]) {
    for item in said {
        let name = item_name(kind, item);
        match target.iter_mut().find(|present| item_name(kind, present) == name) {
            Some(present) => {
                path.push(name);
                merge_value(resource, path, present, item);
                path.pop();
            }
            None => target.push(item.clone()),
        }
    }
}

/// Removes a field or an item, and what becomes empty by that.
fn remove(resource: &Resource, object: &mut Value, path: &[String]) {
    remove_below(resource, object, path, 0);
}

fn remove_below(resource: &Resource, value: &mut Value, path: &[String], depth: usize) {
    let Some(name) = path.get(depth) else { return };
    let last = depth + 1 == path.len();
    match value {
        Value::Object(fields) => {
            if let Some(child) = fields.get_mut(name) {
                if !last {
                    remove_below(resource, child, path, depth + 1);
                }
                if last || is_empty(child) {
                    fields.remove(name);
                }
            }
        }
        Value::Array(items) => {
            let kind = list_kind(resource, &path[..depth]);
            if let Some(index) = items.iter().position(|item| item_name(kind, item) == *name) {
                if !last {
                    remove_below(resource, &mut items[index], path, depth + 1);
                }
                if last || is_empty(&items[index]) {
                    items.remove(index);
                }
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machines() -> Resource {
        let [group, version, plural] = ["machine.sapcloud.io", "v1alpha1", "machines"].map(str::to_owned);
        Resource { group, version, plural }
    }

    fn apply(owners: &mut Owners, manager: &str, live: &Value, said: &Value) -> Result<Value, Box<Status>> {
        owners.apply(&machines(), manager, Part::Main, live, said, false)
    }

    #[test]
    fn what_is_no_longer_said_is_removed_unless_another_says_it() {
        let mut owners = Owners::default();
        let said = json!({ "metadata": { "labels": { "a": "1", "b": "2" } }, "spec": { "x": 1, "list": [1, 2] } });
        let live = apply(&mut owners, "one", &json!({}), &said).unwrap();
        let live = apply(&mut owners, "two", &live, &json!({ "spec": { "x": 1 } })).unwrap();
        let live = apply(&mut owners, "one", &live, &json!({ "metadata": { "labels": { "a": "1" } } })).unwrap();
        assert_eq!(live, json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "x": 1 } }));
        let live = apply(&mut owners, "two", &live, &json!({})).unwrap();
        assert_eq!(live, json!({ "metadata": { "labels": { "a": "1" } } }), "empty parents go too");
    }

    #[test]
    fn a_field_of_another_is_a_conflict_unless_forced() {
        let mut owners = Owners::default();
        let live = apply(&mut owners, "one", &json!({}), &json!({ "spec": { "x": 1 } })).unwrap();
        let refused = apply(&mut owners, "two", &live, &json!({ "spec": { "x": 2 } })).unwrap_err();
        assert_eq!(refused.code, 409);
        assert_eq!(refused.details.unwrap().causes[0].field, ".spec.x");
        let said = json!({ "spec": { "x": 2 } });
        let live = owners.apply(&machines(), "two", Part::Main, &live, &said, true).unwrap();
        let live = apply(&mut owners, "one", &live, &json!({})).unwrap();
        assert_eq!(live, json!({ "spec": { "x": 2 } }), "the first has lost it and removes nothing");
    }

    #[test]
    fn after_an_update_a_later_apply_leaves_what_it_does_not_mention() {
        let mut owners = Owners::default();
        let said = json!({ "spec": { "x": 1, "y": 1 } });
        let live = apply(&mut owners, "one", &json!({}), &said).unwrap();
        let updated = json!({ "spec": { "x": 1, "y": 5 } });
        owners.update(&machines(), "other", Part::Main, &live, &updated);
        let live = apply(&mut owners, "one", &updated, &json!({ "spec": { "x": 1 } })).unwrap();
        assert_eq!(live, updated);
    }

    #[test]
    fn finalizers_are_a_set_and_owners_are_keyed() {
        let mut owners = Owners::default();
        let live = json!({ "metadata": {
            "finalizers": ["theirs"],
            "ownerReferences": [{ "uid": "1", "name": "set" }],
        }});
        let said = json!({ "metadata": {
            "finalizers": ["ours"],
            "ownerReferences": [{ "uid": "1", "controller": true }],
        }});
        let live = apply(&mut owners, "one", &live, &said).unwrap();
        assert_eq!(live["metadata"]["finalizers"], json!(["theirs", "ours"]));
        assert_eq!(live["metadata"]["ownerReferences"], json!([{ "uid": "1", "name": "set", "controller": true }]));
        let live = apply(&mut owners, "one", &live, &json!({})).unwrap();
        assert_eq!(live["metadata"]["finalizers"], json!(["theirs"]));
    }
}
