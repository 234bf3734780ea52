//! Reading a document by the types of Ignition's configs.

use ignition_config::v3_5;
use nodewright_api::failed_field;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::Value;

/// Reads a document of [`super::VERSION`], notes fields that it does not have, and names the field of an error.
pub(super) fn typed(document: &Value, at: &FieldPath) -> Result<(v3_5::Config, Vec<FieldPath>), Box<FieldError>> {
    let mut unused = Vec::new();
    // From text, as an error then has a position.
    let text = document.to_string();
    let mut json = serde_json::Deserializer::from_str(&text);
    let result = serde_ignored::deserialize(&mut json, |path| unused.push(path_below(at, &path)));
    let value = result.map_err(|error| {
        let field = failed_field(&text, &error);
        let path = if field.is_empty() { at.clone() } else { at.child(&field) };
        // Neither the value nor the text of the error, which has the value in it: it may be the content of a file.
        let error = error.to_string();
        let error = error.rsplit_once(" at line ").map_or(error.as_str(), |(error, _)| error);
        Box::new(FieldError::confidential(path, &Value::Null, wrong_type(error)))
    })?;
    Ok((value, unused))
}

pub(super) fn path_below(at: &FieldPath, path: &serde_ignored::Path<'_>) -> FieldPath {
    use serde_ignored::Path::{Map, NewtypeStruct, NewtypeVariant, Root, Seq, Some};
    match path {
        Root => at.clone(),
        Seq { parent, index } => path_below(at, parent).key(index),
        Map { parent, key } => path_below(at, parent).child(key),
        Some { parent } | NewtypeStruct { parent } | NewtypeVariant { parent } => path_below(at, parent),
    }
}

/// The message of serde about a type, without the value and in words of JSON.
fn wrong_type(error: &str) -> String {
    let expected = error.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
    match expected {
        "i64" => "must be an integer".to_owned(),
        "a sequence" => "must be a list".to_owned(),
        expected if expected.starts_with("struct ") => "must be an object".to_owned(),
        "" => "must have the fields of an Ignition config".to_owned(),
        expected => format!("must be {expected}"),
    }
}
