//! JSON documents that are carried, not understood.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A JSON document kept as the text that it was: a provider's own configuration.
///
/// # Guarantees
///
/// * Reading it from text does not recurse, however deep the document is nested.
/// * It is written as it was read, byte for byte: numbers keep their digits, objects their order.
/// * [`fmt::Debug`] shows its length and never its content, which may be confidential.
///
/// # Caveats
///
/// Equality is that of the text: the same document with other blanks is another value. Turning it into
/// a [`serde_json::Value`] (also by [`serde_json::to_value`] of an object that holds it) fails when it
/// is nested deeper than 128 levels; [`serde_json::to_string`] does not.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Takes a text that is one JSON value.
    pub fn from_text(text: impl Into<String>) -> serde_json::Result<Self> {
        RawValue::from_string(text.into()).map(Self)
    }

    /// The document as text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Whether the document is an object.
    pub fn is_object(&self) -> bool {
        self.text().trim_start().starts_with('{')
    }

    /// Whether nothing is said: `null`, or an object without fields.
    pub fn is_empty(&self) -> bool {
        let text = self.text().trim();
        text == "null" || text.strip_prefix('{').is_some_and(|rest| rest.trim_start() == "}")
    }

    /// Reads the document as a type of the provider.
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
        // The text of a value is always valid, so that the fallback is never taken.
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
    fn knows_objects_and_emptiness() {
        let raw = |text: &str| RawJson::from_text(text).expect("valid");
        assert!(raw("{ }").is_empty() && raw("null").is_empty() && RawJson::default().is_empty());
        assert!(!raw(r#"{"a":1}"#).is_empty() && raw(r#"{"a":1}"#).is_object());
        assert!(!raw("[]").is_object() && !raw("[]").is_empty());
        assert!(RawJson::from_text("{").is_err());
    }
}
