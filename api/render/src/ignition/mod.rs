//! Ignition configs: reading, raising to [`VERSION`], validating, merging.
//!
//! ```text
//! text ── parse ──▶ typed config of its version ── raise ──▶ 3.5.0 ── validate ──▶ Config ── merge ──▶ Config
//! ```
//!
//! The crate `ignition-config` has the types of each version. What is valid, and how two configs merge, is Ignition's own
//! Go code (version 2.26), which `make render-oracle` compares with this module.

mod data_url;
mod lists;
mod merge;
mod parse;
mod path;
mod typed;
mod unit;
mod url;
mod validate;

use nodewright_api::field::{FieldError, FieldPath};
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use data_url::{decode, encode, of_text};
pub(crate) use lists::{element_key, is_open_list, key_field};
pub use parse::{Parsed, parse};
pub(crate) use validate::UNIT_TYPES;

/// The version that all configs are raised to.
pub const VERSION: &str = "3.5.0";

/// The versions that are taken.
pub const TAKEN: [&str; 6] = ["3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", VERSION];

/// An Ignition config of [`VERSION`] in canonical form.
///
/// # Guarantees
///
/// * It has no `null`, and no empty object or list except as an element of a list: Ignition reads these as absent.
/// * It has no unknown fields, and each field has its type.
///
/// # Caveats
///
/// * Two valid configs may merge to one that is not: [`Config::validate`] reports that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Config(Map<String, Value>);

impl Default for Config {
    fn default() -> Self {
        Self(Map::from_iter([("ignition".to_owned(), serde_json::json!({"version": VERSION}))]))
    }
}

impl Config {
    /// The fields of the config.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The value at a JSON pointer, such as `/storage/files`.
    pub fn get(&self, pointer: &str) -> Option<&Value> {
        let mut tokens = pointer.split('/').skip(1);
        let first = self.0.get(tokens.next()?)?;
        tokens.try_fold(first, |value, token| value.get(token))
    }

    /// The elements of the list at a JSON pointer. None if there is no such list.
    pub fn list(&self, pointer: &str) -> &[Value] {
        self.get(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Merges a config over this one, as Ignition merges a child over a parent.
    #[must_use]
    pub fn merge(&self, child: &Self) -> Self {
        Self(merge::merge(&self.0, &child.0))
    }

    /// What Ignition finds wrong with a config of [`VERSION`].
    pub fn validate(&self, at: &FieldPath) -> Vec<FieldError> {
        validate::validate(self, parse::MINORS, at)
    }

    /// Changes each file.
    pub(crate) fn each_file(&mut self, mut change: impl FnMut(&mut Map<String, Value>)) {
        let files =
            self.0.get_mut("storage").and_then(|storage| storage.get_mut("files")).and_then(Value::as_array_mut);
        files.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&mut change);
        prune_object(&mut self.0);
    }
}

/// Removes what Ignition reads as absent: `null`, and empty objects and lists. Elements of lists stay.
fn prune(value: &mut Value) {
    match value {
        Value::Object(object) => prune_object(object),
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

fn prune_object(object: &mut Map<String, Value>) {
    object.values_mut().for_each(prune);
    object.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        _ => true,
    });
}
