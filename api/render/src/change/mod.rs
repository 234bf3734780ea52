//! What differs between two rendered configurations, whether a node can get from one to the other in place, and what that
//! costs it.

mod cost;
mod in_place;

pub use cost::{Action, Cost, FilePolicy, Policy, cost};
pub use in_place::{Waiver, irreconcilable};

use crate::ignition::{Config, element_key, is_open_list};
use crate::spec::RenderedSpec;
use serde_json::Value;
use std::collections::BTreeMap;

/// How a key differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the new configuration has it.
    Added,
    /// Only the old configuration has it.
    Removed,
    /// Both have it, with different values.
    Changed,
}

/// A difference between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs, as a path with the keys of elements: `config.storage.files[/etc/a]`, `kernelArguments`.
    pub key: String,
    /// How it differs.
    pub kind: Kind,
}

/// The differences between two configurations, in the order of their keys. Files, units, users and the like are one key each.
pub fn differences(old: &RenderedSpec, new: &RenderedSpec) -> Vec<Difference> {
    let (old, new) = (parts(old), parts(new));
    let mut found = Vec::new();
    for (key, value) in &old {
        match new.get(key) {
            None => found.push(Difference { key: key.clone(), kind: Kind::Removed }),
            Some(other) if other != value => found.push(Difference { key: key.clone(), kind: Kind::Changed }),
            Some(_) => {}
        }
    }
    let added = new.keys().filter(|key| !old.contains_key(*key));
    found.extend(added.map(|key| Difference { key: key.clone(), kind: Kind::Added }));
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

/// The parts of a configuration by their keys.
fn parts(spec: &RenderedSpec) -> BTreeMap<String, Value> {
    let mut parts = BTreeMap::new();
    let Ok(Value::Object(fields)) = serde_json::to_value(spec) else { return parts };
    parts.extend(fields.into_iter().filter(|(field, _)| field != "config"));
    parts_of_config(&spec.config, &mut parts);
    parts
}

/// The parts of a config: elements of its keyed lists, and all else by section.
fn parts_of_config(config: &Config, parts: &mut BTreeMap<String, Value>) {
    for (section, value) in config.fields() {
        let Some(section_fields) = value.as_object() else { continue };
        for (field, value) in section_fields {
            let path = format!("config.{section}.{field}");
            match value {
                Value::Array(elements) if !is_open_list(field) => {
                    for element in elements {
                        let key = element_key(field, element).unwrap_or_default();
                        parts.insert(format!("{path}[{key}]"), element.clone());
                    }
                }
                value => drop(parts.insert(path, value.clone())),
            }
        }
    }
}
