//! Fragments that are about the same file or unit.

use super::fragment::located;
use super::{MOST_FRAGMENTS, TemplateError};
use crate::ignition::{Config, VERSION, key_field, parse};
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What templates render to, each with the template.
pub(super) type Fragments<'a> = Vec<(&'a str, Value)>;

/// A list of an Ignition config.
#[derive(Clone, Copy)]
pub(super) enum List {
    Files,
    Units,
}

impl List {
    /// What the path of an error begins with.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Files => "spec.config.storage.files[",
            Self::Units => "spec.config.systemd.units[",
        }
    }

    fn pointer(self) -> &'static str {
        match self {
            Self::Files => "/storage/files",
            Self::Units => "/systemd/units",
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Units => "units",
        }
    }

    fn config(self, element: &Value) -> Value {
        let ignition = json!({"version": VERSION});
        match self {
            Self::Files => json!({"ignition": ignition, "storage": {"files": [element]}}),
            Self::Units => json!({"ignition": ignition, "systemd": {"units": [element]}}),
        }
    }

    /// Merges fragments about one file or unit at the place of the first of them, a later one over an earlier one, as Ignition
    /// merges configs. What is wrong with the result is said of the last one.
    pub(super) fn unite<'a>(self, fragments: Fragments<'a>, name: &str) -> Result<Fragments<'a>, Vec<TemplateError>> {
        let key = key_field(self.field()).unwrap_or_default();
        let (mut united, mut places) = (Vec::<Fragments<'a>>::new(), BTreeMap::<String, usize>::new());
        for fragment in fragments {
            let place = fragment.1[key].as_str().map(|key| *places.entry(key.to_owned()).or_insert(united.len()));
            match place.and_then(|place| united.get_mut(place)) {
                Some(others) => others.push(fragment),
                None => united.push(vec![fragment]),
            }
        }
        united.into_iter().map(|fragments| self.merge(fragments, name)).collect()
    }

    fn merge<'a>(self, mut fragments: Fragments<'a>, name: &str) -> Result<(&'a str, Value), Vec<TemplateError>> {
        let last = match fragments.pop() {
            Some(alone) if fragments.is_empty() => return Ok(alone),
            Some(last) => last,
            None => return Ok(("", Value::Null)),
        };
        let template = last.0;
        if fragments.len() >= MOST_FRAGMENTS {
            let text = format!("is one of more than {MOST_FRAGMENTS} templates for the same file or unit");
            return Err(vec![TemplateError::of_file(template, text)]);
        }
        fragments.push(last);
        let mut merged: Option<Config> = None;
        for fragment in &fragments {
            let config = self.read(fragment, name)?;
            merged = Some(merged.map_or(config.clone(), |merged| merged.merge(&config)));
        }
        let element = merged.and_then(|merged| merged.list(self.pointer()).first().cloned());
        Ok((template, element.unwrap_or_default()))
    }

    fn read(self, fragment: &(&str, Value), name: &str) -> Result<Config, Vec<TemplateError>> {
        let fragments = std::slice::from_ref(fragment);
        let located = |error: FieldError| located(error, &[(self.prefix(), fragments)], name);
        let read = parse(&self.config(&fragment.1).to_string(), &FieldPath::new("spec").child("config"));
        read.map(|parsed| parsed.config).map_err(|errors| errors.into_iter().map(located).collect())
    }
}
