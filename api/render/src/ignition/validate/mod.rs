//! What Ignition finds wrong with a config. Rules have the names and the order that Ignition's sources give them, a file for
//! each section of a config.
//!
//! A config is checked by the rules of the version that it is written in. As each version only takes more than the one before,
//! each rule names the version that introduced it.

mod disks;
mod nodes;
mod resources;
mod systemd;

pub(crate) use systemd::TYPES as UNIT_TYPES;

use super::Config;
use super::lists::{Key, List, Space, key_of, list};
use super::typed::typed;
use ignition_config::v3_5;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Checks a config that was written in version 3.`minor`.
pub(super) fn validate(config: &Config, minor: usize, at: &FieldPath) -> Vec<FieldError> {
    let mut check = Check { minor, errors: Vec::new() };
    check.duplicates(config.fields(), at);
    match typed(&Value::Object(config.fields().clone()), at) {
        Ok((config, _)) => check.config(&config, at),
        // A config is made from this type, so that it reads back.
        Err(error) => check.errors.push(*error),
    }
    check.errors
}

/// The rules of a version, and what they have found.
struct Check {
    minor: usize,
    errors: Vec<FieldError>,
}

impl Check {
    /// Notes that a value breaks a rule.
    fn invalid(&mut self, path: FieldPath, value: impl Into<Value>, rule: &str) {
        self.errors.push(FieldError::invalid(path, value, rule));
    }

    /// Notes that a value breaks a rule, and does not show the value.
    fn confidential(&mut self, path: FieldPath, value: &str, rule: &str) {
        self.errors.push(FieldError::confidential(path, &value.into(), rule));
    }

    fn config(&mut self, config: &v3_5::Config, at: &FieldPath) {
        self.ignition(&config.ignition, &at.child("ignition"));
        if let Some(storage) = &config.storage {
            let at = at.child("storage");
            self.disks(storage, &at);
            self.nodes(storage, &at);
        }
        if let Some(systemd) = &config.systemd {
            self.units(systemd, &at.child("systemd"));
            self.paths_of_units(systemd, config.storage.as_ref(), &at.child("storage"));
        }
    }

    /// Each key may be there once, in all lists of its space.
    fn duplicates(&mut self, object: &Map<String, Value>, at: &FieldPath) {
        let mut seen = BTreeSet::new();
        for (field, value) in object {
            let path = at.child(field);
            match (value, list(field)) {
                (Value::Object(object), _) => self.duplicates(object, &path),
                (Value::Array(elements), Some(List::Keyed(key, space))) => {
                    let scope = if space == Space::Own { field } else { "" };
                    for (index, element) in elements.iter().enumerate() {
                        let key_text = key_of(key, element);
                        if !seen.insert((scope, key_text.clone())) {
                            self.errors.push(duplicate(&path.key(index), key, &key_text));
                        }
                    }
                    self.elements(elements, &path);
                }
                (Value::Array(elements), _) => self.elements(elements, &path),
                _ => {}
            }
        }
    }

    fn elements(&mut self, elements: &[Value], at: &FieldPath) {
        for (index, element) in elements.iter().enumerate() {
            if let Value::Object(object) = element {
                self.duplicates(object, &at.key(index));
            }
        }
    }
}

fn duplicate(path: &FieldPath, key: Key, text: &str) -> FieldError {
    match key {
        // The key of a resource is its source, which may be the content itself.
        Key::Field("source") => FieldError::confidential(path.clone(), &text.into(), "must not have a source twice"),
        // Keys that log in, kernel arguments, or a URL that may have a password.
        Key::Text | Key::Field("url") => FieldError::duplicate(path.clone(), text).without_value(),
        _ => FieldError::duplicate(path.clone(), text),
    }
}

/// The elements of a list that may be absent.
fn all<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map_or(&[], Vec::as_slice)
}

/// Whether a text is there, and not empty.
fn is_set(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}
