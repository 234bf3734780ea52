//! Objects that may be anything: read, or refused with the name of the field.

use kube::core::Status;
use nodewright_runtime::lean;
use serde::de::DeserializeOwned;

use super::refusal;
use crate::configurations::Subject;

/// Why an object cannot be read. Quotes nothing of its content, which may be confidential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undecodable {
    /// Where, as far as it is known; else empty.
    field: String,
    problem: String,
    is_missing: bool,
}

impl Undecodable {
    fn of(field: String, text: &str) -> Self {
        let problem = without_content(text);
        // The parser names the object that lacks a field, and the field in its text.
        match problem.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
            None => Self { field, problem, is_missing: false },
            Some(missing) => {
                let field = if field.is_empty() { missing.to_owned() } else { format!("{field}.{missing}") };
                Self { field, problem, is_missing: true }
            }
        }
    }

    pub(super) fn into_status(self, subject: Subject, name: &str) -> Status {
        refusal::undecodable(subject, name, &self.field, &self.problem, self.is_missing)
    }
}

/// Reads an object.
pub(super) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, Undecodable> {
    lean::from_str(text).map_err(|error| explain::<T>(text, &error))
}

/// Reads it again, slower, to learn which field it was.
fn explain<T: DeserializeOwned>(text: &str, first: &serde_json::Error) -> Undecodable {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => Undecodable::of(String::new(), &first.to_string()),
        Err(error) => {
            let field = error.path().to_string();
            let field = if field == "." { String::new() } else { refusal::clip(&field) };
            Undecodable::of(field, &error.inner().to_string())
        }
    }
}

/// The text of a parser's error without what it quotes, and without its place in a text that nobody has.
fn without_content(text: &str) -> String {
    let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
    let clipped = match (text.find('"'), text.rfind('"')) {
        (Some(start), Some(end)) => format!("{}{}", text[..start].trim_end(), &text[end + 1..]),
        _ => text.to_owned(),
    };
    refusal::clip(&clipped)
}

#[cfg(test)]
mod tests {
    use nodewright_api::{MachineClass, MachineDeployment};

    use super::*;

    fn error(text: &str) -> (String, String) {
        let error = decode::<MachineDeployment>(text).unwrap_err();
        (error.field, error.problem)
    }

    #[test]
    fn the_field_is_named_and_the_content_is_not() {
        let (field, problem) = error(r#"{"metadata":{},"spec":{"replicas":"pass\"word","template":{}}}"#);
        assert_eq!(field, "spec.replicas");
        assert_eq!(problem, "invalid type: string, expected i32");
        let (field, problem) = error(r#"{"metadata":{"labels":{"a":["password"]}},"spec":{}}"#);
        assert!(field.starts_with("metadata.labels"), "{field}");
        assert!(!problem.contains("password"), "{problem}");
    }

    #[test]
    fn places_in_lists_are_named() {
        let text = r#"{"metadata":{},"spec":{"template":{"spec":{"nodeTemplate":{"spec":{"taints":[{"key":"a","effect":"b"},7]}}}}}}"#;
        assert_eq!(error(text).0, "spec.template.spec.nodeTemplate.spec.taints[1]");
    }

    #[test]
    fn what_is_no_object_is_said_to_be_none() {
        for text in ["7", "[]", "\"x\"", "{", ""] {
            let (field, problem) = error(text);
            assert!(!problem.is_empty(), "{text}: {field} {problem}");
        }
    }

    #[test]
    fn depth_is_no_problem_where_the_content_is_not_looked_at() {
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        let text = format!(r#"{{"metadata":{{"name":"a"}},"providerSpec":{{"a":{deep}}},"unknown":{deep}}}"#);
        assert!(decode::<MachineClass>(&text).is_ok());
        let text = format!(r#"{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{deep}}}]}},"spec":{{}}}}"#);
        assert!(decode::<MachineDeployment>(&text).is_ok(), "managedFields are not read");
        let text = format!(r#"{{"metadata":{{"name":"a","labels":{{"a":{deep}}}}},"spec":{{}}}}"#);
        let (field, problem) = error(&text);
        assert!(field.starts_with("metadata.labels") && !problem.is_empty(), "{field}: {problem}");
    }
}
