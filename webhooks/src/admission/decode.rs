//! Decodes objects. The error names the field and does not quote the content, which may be confidential.

use nodewright_api::failed_field;
use nodewright_runtime::clip::clip;
use nodewright_runtime::without_managed_fields;
use serde::de::DeserializeOwned;

use super::overlay::has_field;

/// The only field that a kind may require.
const SPEC: &str = "spec";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DecodeError {
    /// The path of the field, or empty.
    pub(super) field: String,
    pub(super) kind: DecodeErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DecodeErrorKind {
    Missing,
    /// The value has the wrong type or form.
    Invalid(String),
}

pub(super) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    let read = without_managed_fields::from_str::<T>;
    read(text).map_err(|error| {
        let spec_is_missing = || read("{}").is_err() && has_field(text, SPEC).is_ok_and(|has_field| !has_field);
        explain(text, &error, &spec_is_missing)
    })
}

/// `spec_is_missing` says whether the kind requires a spec, and the object has none.
fn explain(text: &str, error: &serde_json::Error, spec_is_missing: &dyn Fn() -> bool) -> DecodeError {
    let field = failed_field(text, error);
    if field.is_empty() && error.is_data() && spec_is_missing() {
        return DecodeError { field: SPEC.to_owned(), kind: DecodeErrorKind::Missing };
    }
    DecodeError { field: clip(field), kind: DecodeErrorKind::Invalid(describe(error)) }
}

/// The text of an error without the position and without the values that it quotes.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&position).unwrap_or(&text);
    match (text.find('"'), text.rfind('"')) {
        (Some(start), Some(end)) => clip(format!("{}{}", text[..start].trim_end(), &text[end + 1..])),
        _ => clip(text),
    }
}

#[cfg(test)]
mod tests {
    use nodewright_api::{MachineClass, MachineDeployment};

    use super::*;

    fn error(text: &str) -> (String, String) {
        let error = decode::<MachineDeployment>(text).unwrap_err();
        let DecodeErrorKind::Invalid(text) = error.kind else { panic!("{error:?}") };
        (error.field, text)
    }

    #[test]
    fn the_field_is_named_and_the_content_is_not() {
        let (field, why) = error(r#"{"metadata":{},"spec":{"replicas":"pass\"word","template":{}}}"#);
        assert_eq!(field, "spec.replicas");
        assert_eq!(why, "invalid type: string, expected i32");
        let (field, why) = error(r#"{"metadata":{"labels":{"a":["password"]}},"spec":{}}"#);
        assert!(field.starts_with("metadata.labels"), "{field}");
        assert!(!why.contains("password"), "{why}");
    }

    #[test]
    fn a_missing_spec_is_named() {
        let missing = |text: &str| decode::<MachineDeployment>(text).unwrap_err();
        let expected = DecodeError { field: "spec".to_owned(), kind: DecodeErrorKind::Missing };
        assert_eq!((missing(r#"{"metadata":{}}"#), missing("{}")), (expected.clone(), expected));
        let twice = decode::<MachineClass>(r#"{"provider":"a","provider":"b"}"#).unwrap_err();
        assert_eq!(
            (twice.field.as_str(), twice.kind),
            ("", DecodeErrorKind::Invalid("duplicate field `provider`".to_owned()))
        );
    }

    #[test]
    fn places_in_lists_are_named() {
        let text = r#"{"metadata":{},"spec":{"template":{"spec":{"nodeTemplate":{"spec":{"taints":[{"key":"a","effect":"b"},7]}}}}}}"#;
        assert_eq!(error(text).0, "spec.template.spec.nodeTemplate.spec.taints[1]");
    }

    #[test]
    fn what_is_no_object_is_said_to_be_none() {
        for text in ["7", "[]", "\"x\"", "{", ""] {
            let (field, why) = error(text);
            assert!(!why.is_empty(), "{text}: {field} {why}");
        }
    }

    #[test]
    fn depth_is_no_error_where_the_content_is_not_looked_at() {
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        let text = format!(r#"{{"metadata":{{"name":"a"}},"providerSpec":{{"a":{deep}}},"unknown":{deep}}}"#);
        assert!(decode::<MachineClass>(&text).is_ok());
        let text = format!(r#"{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{deep}}}]}},"spec":{{}}}}"#);
        assert!(decode::<MachineDeployment>(&text).is_ok(), "managedFields are not read");
        let text = format!(r#"{{"metadata":{{"name":"a","labels":{{"a":{deep}}}}},"spec":{{}}}}"#);
        let (field, why) = error(&text);
        assert!(field.starts_with("metadata.labels") && !why.is_empty(), "{field}: {why}");
    }
}
