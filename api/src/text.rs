//! Texts that are not copied while they are decoded.

use std::borrow::Cow;

use serde::Deserialize;

/// A text that is read where it stands, unless it has escapes: a [`Cow`] alone is always copied.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

#[test]
fn only_escapes_are_copied() {
    let read = |text| serde_json::from_str::<Text<'_>>(text).unwrap().0;
    assert!(matches!(read(r#""20m""#), Cow::Borrowed("20m")));
    assert!(matches!(read(r#""\u0032""#), Cow::Owned(text) if text == "2"));
}
