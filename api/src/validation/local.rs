//! Converts garde's errors to field errors.
//!
//! garde reports the name of the field in Rust, and a text. This module derives the name on the wire and Kubernetes' text, and
//! looks the value up in the object as JSON to tell a missing field from an invalid one.

use crate::field::{FieldError, FieldPath};
use serde::Serialize;
use serde_json::Value;

/// Fields whose name on the wire is not the camel case of the name in Rust.
const IRREGULAR: [(&str, &str); 2] = [("provider_id", "providerID"), ("strategy_type", "type")];

/// The errors of the single fields of a value at a path.
pub(super) fn errors<T>(value: &T, path: &FieldPath) -> Vec<FieldError>
where
    T: garde::Validate<Context = ()> + Serialize,
{
    let Err(report) = value.validate() else { return Vec::new() };
    let object = serde_json::to_value(value).unwrap_or_default();
    let text = |message| match message {
        "lower than 0" => "must be greater than or equal to 0",
        message => message,
    };
    report.iter().map(|(field, error)| field_error(&object, path, field, text(error.message()))).collect()
}

fn field_error(object: &Value, root: &FieldPath, field: &garde::Path, message: &str) -> FieldError {
    let mut path = root.clone();
    let mut value = Some(object);
    // Only the serialized form of garde's path distinguishes a field from an index.
    let steps: Vec<(String, String)> = serde_json::to_value(field).and_then(serde_json::from_value).unwrap_or_default();
    for (kind, name) in steps {
        if let ("index", Ok(index)) = (kind.as_str(), name.parse::<usize>()) {
            value = value.and_then(|value| value.get(index));
            path = path.key(index);
        } else {
            let name = wire_name(&name);
            value = value.and_then(|value| value.get(&name));
            path = path.child(&name);
        }
    }
    match value {
        None | Some(Value::Null) => FieldError::required(path, message),
        Some(Value::String(text)) if text.is_empty() => FieldError::required(path, message),
        Some(value) => FieldError::invalid(path, value.clone(), message),
    }
}

fn wire_name(name: &str) -> String {
    if let Some((_, irregular)) = IRREGULAR.iter().find(|(rust, _)| *rust == name) {
        return (*irregular).to_owned();
    }
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use garde::Validate;

    #[derive(Serialize, Validate)]
    #[serde(rename_all = "camelCase")]
    struct Outer {
        #[garde(dive)]
        inner_parts: Vec<Inner>,
    }

    #[derive(Serialize, Validate)]
    #[serde(rename_all = "camelCase")]
    struct Inner {
        #[garde(length(min = 1))]
        #[serde(skip_serializing_if = "String::is_empty")]
        full_name: String,
        #[garde(range(min = 0))]
        max_in_flight: i32,
    }

    #[test]
    fn paths_and_values_are_those_on_the_wire() {
        let outer = Outer {
            inner_parts: vec![
                Inner { full_name: "a".to_owned(), max_in_flight: 0 },
                Inner { full_name: String::new(), max_in_flight: -1 },
            ],
        };
        let texts: Vec<_> = errors(&outer, &FieldPath::new("spec")).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.innerParts[1].fullName: Required value: length is lower than 1",
                "spec.innerParts[1].maxInFlight: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }
}
