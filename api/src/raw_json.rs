//! JSON documents that are passed on as they are.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::{fmt, sync::Arc};

/// A JSON document as text, such as a provider's configuration.
///
/// # Guarantees
///
/// * Reading it does not recurse, whatever the depth of the document.
/// * It is written as it was read, byte for byte.
/// * A clone shares the text.
/// * [`fmt::Debug`] shows the length and not the content, which may be confidential.
///
/// # Caveats
///
/// * Values compare by their text: other whitespace makes another value.
/// * [`serde_json::to_value`] fails on a document deeper than 128 levels. [`serde_json::to_string`] does not.
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// Checks that a text is one JSON value, and takes it.
    pub fn from_text(text: impl Into<String>) -> serde_json::Result<Self> {
        Ok(Self(RawValue::from_string(text.into())?.into()))
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
    fn default() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Box::<RawValue>::deserialize(deserializer)?.into()))
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
