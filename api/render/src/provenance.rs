//! Which MachineConfig has set what.

use crate::ignition::{Config, element_key, is_open_list, key_field};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Which MachineConfigs have set the keys of a rendered spec.
///
/// A key is a path in which elements of lists have their own keys: `config.storage.files[/etc/a].mode`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    sources: Vec<String>,
    keys: BTreeMap<String, Key>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Key {
    /// Whether each adds to what is there.
    adds: bool,
    /// Indices of sources, in the order of the merge.
    set_by: Vec<usize>,
}

/// Who has set a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The key.
    pub key: &'a str,
    /// The MachineConfigs whose values are there: one, or for a list to which each adds, all.
    pub set_by: Vec<&'a str>,
    /// The MachineConfigs that had set the key before. The last one comes first.
    pub over: Vec<&'a str>,
}

impl Provenance {
    /// Provenance of nothing yet, with the names of the MachineConfigs in the order of the merge.
    pub(crate) fn new(sources: Vec<String>) -> Self {
        Self { sources, keys: BTreeMap::new() }
    }

    /// Notes that a source sets a key, over or after those before it.
    pub(crate) fn set(&mut self, key: &str, adds: bool, source: usize) {
        let key = self.keys.entry(key.to_owned()).or_default();
        key.adds = adds;
        key.set_by.push(source);
    }

    /// Notes what a source sets by its Ignition config.
    pub(crate) fn set_config(&mut self, config: &Config, source: usize) {
        each_key(config, &mut |key, adds| self.set(key, adds, source));
    }

    /// Forgets keys that are not in the result.
    pub(crate) fn keep(&mut self, config: &Config) {
        let mut kept = BTreeSet::new();
        each_key(config, &mut |key, _| {
            kept.insert(key.to_owned());
        });
        self.keys.retain(|key, _| !key.starts_with("config.") || kept.contains(key));
    }

    /// The keys at and below a path, with or without `spec.` at its beginning, in their order. An empty path has all.
    pub fn at(&self, path: &str) -> impl Iterator<Item = Origin<'_>> {
        let path = path.strip_prefix("spec").map_or(path, |rest| rest.strip_prefix('.').unwrap_or(rest)).to_owned();
        let is_below = move |key: &str| {
            key.strip_prefix(&path)
                .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.keys.iter().filter(move |(key, _)| is_below(key)).map(|(key, origin)| self.origin(key, origin))
    }

    fn origin<'a>(&'a self, key: &'a str, origin: &Key) -> Origin<'a> {
        let names = |indices: &[usize]| indices.iter().map(|index| self.sources[*index].as_str()).collect::<Vec<_>>();
        let mut over = names(&origin.set_by);
        if origin.adds {
            return Origin { key, set_by: over, over: Vec::new() };
        }
        let set_by = over.pop().into_iter().collect();
        over.reverse();
        Origin { key, set_by, over }
    }

    /// The names of those who have set what is at a path of the merged config, such as `storage.files[3].mode`, and the path
    /// with keys for indices.
    pub fn of_element(&self, config: &Config, path: &str) -> (String, Vec<&str>) {
        let key = keyed(config, path);
        // A field that is wrong because it is missing was not set by any: the element was.
        let element = key.rfind(']').map_or(key.as_str(), |end| &key[..=end]);
        let names: BTreeSet<_> = self.at(&format!("config.{element}")).flat_map(|origin| origin.set_by).collect();
        (key, names.into_iter().collect())
    }
}

/// Calls back for each key of a config, and whether it is a list to which each adds. The version is no key: it is always the
/// same.
fn each_key(config: &Config, found: &mut dyn FnMut(&str, bool)) {
    for (field, value) in config.fields() {
        keys_below(&format!("config.{field}"), field, value, &mut |key, adds| {
            if key != "config.ignition.version" {
                found(key, adds);
            }
        });
    }
}

fn keys_below(path: &str, field: &str, value: &Value, found: &mut dyn FnMut(&str, bool)) {
    match value {
        Value::Object(object) => {
            for (field, value) in object {
                keys_below(&format!("{path}.{field}"), field, value, found);
            }
        }
        Value::Array(_) if is_open_list(field) => found(path, true),
        Value::Array(elements) => {
            for element in elements {
                let key = element_key(field, element).unwrap_or_default();
                let path = format!("{path}[{key}]");
                let Some(object) = element.as_object().filter(|object| object.len() > 1) else {
                    keys_below(&path, field, element, found);
                    continue;
                };
                // What identifies an element is in the path already.
                for (field, value) in object.iter().filter(|(name, _)| key_field(field) != Some(name.as_str())) {
                    keys_below(&format!("{path}.{field}"), field, value, found);
                }
            }
        }
        _ => found(path, false),
    }
}

/// A path of a config with the keys of elements for their indices, where they have readable ones.
fn keyed(config: &Config, path: &str) -> String {
    let root = Value::Object(config.fields().clone());
    let (mut value, mut keyed) = (Some(&root), String::new());
    for part in path.split('.') {
        let (field, index) = part.split_once('[').unwrap_or((part, ""));
        value = value.and_then(|value| value.get(field));
        if !keyed.is_empty() {
            keyed.push('.');
        }
        keyed.push_str(field);
        let Ok(index) = index.trim_end_matches(']').parse::<usize>() else { continue };
        value = value.and_then(|value| value.get(index));
        let key = value.filter(|_| !is_open_list(field)).and_then(|element| element_key(field, element));
        keyed.push('[');
        keyed.push_str(&key.map_or(index.to_string(), Into::into));
        keyed.push(']');
    }
    keyed
}
