//! Decodes JSON that is there as bytes.

use serde::{Deserialize, de::Error};
use serde_json::value::RawValue;

/// As [`serde_json::from_slice`]. That would be another decoder of each kind, beside the one of [`serde_json::from_str`], and
/// make the program larger.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_str(text(bytes)?)
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, serde_json::Error> {
    std::str::from_utf8(bytes).map_err(|error| {
        let positioned = serde_json::from_slice::<&RawValue>(bytes).err();
        positioned.unwrap_or_else(|| serde_json::Error::custom(error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_a_syntax_error_with_a_position() {
        assert_eq!(from_slice::<Vec<&str>>(br#"["a","b"]"#).unwrap(), ["a", "b"]);
        let error = from_slice::<Vec<&str>>(b"[\"a\",\"\xff\"]").unwrap_err();
        assert!(error.is_syntax() && error.line() == 1, "{error}");
    }
}
