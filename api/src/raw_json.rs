//! JSON documents that are passed on as they are.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A JSON document as text, such as a provider's configuration.
///
/// # Guarantees
///
/// * Reading it does not recurse, whatever the depth of the document.
/// * It is written as it was read, byte for byte.
/// * [`fmt::Debug`] shows the length and not the content, which may be confidential.
///
/// # Caveats
///
/// * Values compare by their text: other whitespace makes another value.
/// * [`serde_json::to_value`] fails on a document deeper than 128 levels. [`serde_json::to_string`] does not.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Checks that a text is one JSON value, and takes it.
    pub fn from_text(text: impl Into<String>) -> serde_json::Result<Self> {
        RawValue::from_string(text.into()).map(Self)
    }

    /// The document as text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the document as a type of the provider.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(self.text())
    }
}

impl Default for RawJson {
    /// The document `null`.
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for RawJson {}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawJson({} bytes)", self.text().len())
    }
}

impl From<&serde_json::Value> for RawJson {
    fn from(value: &serde_json::Value) -> Self {
        // The text of a value is always valid JSON.
        Self::from_text(value.to_string()).unwrap_or_default()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for RawJson {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RawJson".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        crate::schema::free_object(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_text_as_it_was() {
        let text = r#"{ "size":1.50, "z":null, "a":[ ] }"#;
        let raw: RawJson = serde_json::from_str(text).expect("valid");
        assert_eq!(serde_json::to_string(&raw).expect("writable"), text);
        assert_eq!(raw.text(), text);
    }

    #[test]
    fn reads_a_value_too() {
        let value = serde_json::json!({"size": "small", "zones": ["a", "b"]});
        let raw: RawJson = serde_json::from_value(value.clone()).expect("valid");
        assert_eq!(raw, RawJson::from(&value));
        assert_eq!(serde_json::to_value(&raw).expect("writable"), value);
    }

    #[test]
    fn nesting_does_not_recurse() {
        let levels = 9_000;
        let text = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        let raw: RawJson = serde_json::from_str(&text).expect("read without recursion");
        assert_eq!(raw.text().len(), text.len());
        assert!(raw.parse::<serde_json::Value>().is_err(), "the parser of values has a limit and says so");
    }

    #[test]
    fn debug_hides_the_content() {
        let raw = RawJson::from_text(r#"{"password":"secret"}"#).expect("valid");
        assert_eq!(format!("{raw:?}"), "RawJson(21 bytes)");
    }

    #[test]
    fn a_text_must_be_json() {
        assert!(RawJson::from_text("{").is_err());
    }
}
