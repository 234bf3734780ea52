//! Texts that are not copied while they are decoded.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// A text that is read where it stands, unless it has escapes: a [`Cow`] alone is always copied.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Reads a text by `parse`.
///
/// An error of `parse` has the position of the text, by which [`failed_field`](crate::failed_field) finds the field. An error
/// after [`Text::deserialize`](Text) would have the position of what follows, which may be the end of the object.
pub(crate) fn parse<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    struct Parse<F>(F);

    impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Parse<F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<R: Error>(self, text: &str) -> Result<T, R> {
            (self.0)(text).map_err(R::custom)
        }
    }

    deserializer.deserialize_str(Parse(parse))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::from_str;

    use super::*;
    use crate::{GoDuration, failed_field, lenient};

    #[test]
    fn only_escapes_are_copied() {
        let read = |text| from_str::<Text<'_>>(text).unwrap().0;
        assert!(matches!(read(r#""20m""#), Cow::Borrowed("20m")));
        assert!(matches!(read(r#""\u0032""#), Cow::Owned(text) if text == "2"));
    }

    #[test]
    fn an_error_names_the_field_even_if_it_is_the_last() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "only decoding matters")]
        struct Timed(
            #[serde(deserialize_with = "lenient::time")] Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
        );

        let text = r#"{"a":{"b":"soon"}}"#;
        let error = from_str::<BTreeMap<String, BTreeMap<String, GoDuration>>>(text).unwrap_err();
        assert_eq!(failed_field(text, &error), "a.b");
        let error = from_str::<BTreeMap<String, BTreeMap<String, Timed>>>(text).unwrap_err();
        assert_eq!(failed_field(text, &error), "a.b");
    }
}
