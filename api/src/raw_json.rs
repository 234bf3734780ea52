//! JSON documents that are passed on as they are.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
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
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
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
