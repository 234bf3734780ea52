//! The field at which decoding JSON has failed, found from the position of the error. A decoder that notes its path while it
//! reads would be another decoder of each kind, and a tenth of the program.

use std::fmt::Write;

/// The path of the field at which decoding `text` failed, such as `spec.taints[1].key`. Empty for the document as a whole.
///
/// What is wrong with an object as a whole, such as a missing field, names the object. So does what a type
/// refuses after it has read the last field of an object: `serde_json` reports both behind the end of the object. A type
/// whose visitor refuses it names the field.
pub fn failed_field(text: &str, error: &serde_json::Error) -> String {
    let end = offset(text, error.line(), error.column());
    let mut open = open_at(text, end);
    // A list or an object where another type is expected is reported in front of it, anything else behind it.
    if text[end..].starts_with(['[', '{']) {
        begin_value(&mut open);
    }
    open.iter().fold(String::new(), |path, open| open.below(path))
}

/// The bytes in front of a position. An error has a line of 0 if it has no position.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let lines: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    text.floor_char_boundary(lines + column)
}

/// A list or an object that has begun and not ended.
enum Open<'a> {
    /// The key of the value that was begun last, as it is written.
    Object(Option<&'a str>),
    /// The index of the element that was begun last.
    List(Option<usize>),
}

impl Open<'_> {
    fn below(&self, mut path: String) -> String {
        match self {
            Self::Object(Some(key)) => {
                let separator = if path.is_empty() { "" } else { "." };
                let _ = write!(path, "{separator}{}", serde_json::from_str::<String>(key).unwrap_or_default());
            }
            Self::List(Some(index)) => {
                let _ = write!(path, "[{index}]");
            }
            Self::Object(None) | Self::List(None) => {}
        }
        path
    }
}

/// What is open at a position.
fn open_at(text: &str, end: usize) -> Vec<Open<'_>> {
    let (mut open, mut key, mut at) = (Vec::new(), "", 0);
    while at < end {
        let token = first_token(&text[at..]);
        at += token.len();
        match token {
            "{" | "[" => {
                begin_value(&mut open);
                open.push(if token == "{" { Open::Object(None) } else { Open::List(None) });
            }
            "}" | "]" => drop(open.pop()),
            ":" | "," => {
                if let Some(Open::Object(last)) = open.last_mut() {
                    *last = (token == ":").then_some(key);
                }
            }
            " " | "\n" | "\r" | "\t" => {}
            value_or_key => {
                begin_value(&mut open);
                key = value_or_key;
            }
        }
    }
    open
}

fn begin_value(open: &mut [Open<'_>]) {
    if let Some(Open::List(index)) = open.last_mut() {
        *index = Some(index.map_or(0, |index| index + 1));
    }
}

/// A character of JSON's own, a string, or anything else up to one of these.
fn first_token(text: &str) -> &str {
    const OWN: [char; 10] = ['{', '}', '[', ']', ':', ',', ' ', '\n', '\r', '\t'];
    if text.starts_with(OWN) {
        return &text[..1];
    }
    let Some(string) = text.strip_prefix('"') else {
        return &text[..text.find(OWN).unwrap_or(text.len())];
    };
    let mut is_escaped = false;
    let close = string.find(|c| {
        let closes = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        closes
    });
    &text[..close.map_or(text.len(), |close| close + 2)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, de::Error};

    use super::*;

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only decoding matters")]
    #[serde(rename_all = "camelCase")]
    struct Object {
        name: String,
        #[serde(default)]
        number: Option<i32>,
        #[serde(default)]
        numbers: Vec<Vec<u8>>,
        #[serde(default)]
        policy: Option<Policy>,
        #[serde(default)]
        labels: BTreeMap<String, String>,
        #[serde(default, deserialize_with = "even")]
        even: u8,
        #[serde(default)]
        short: Vec<Short>,
        #[serde(default)]
        pair: Option<(u8, u8)>,
        #[serde(default)]
        parts: Vec<Object>,
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only decoding matters")]
    enum Policy {
        Never,
        After(u8),
    }

    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    struct Short;

    impl TryFrom<String> for Short {
        type Error = &'static str;

        fn try_from(text: String) -> Result<Self, &'static str> {
            if text.len() < 3 { Ok(Self) } else { Err("must be short") }
        }
    }

    fn even<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        let number = u8::deserialize(deserializer)?;
        if number % 2 == 0 { Ok(number) } else { Err(D::Error::custom("must be even")) }
    }

    fn failed(text: &str) -> String {
        failed_field(text, &serde_json::from_str::<Object>(text).err().expect(text))
    }

    #[track_caller]
    fn assert_all(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            assert_eq!(failed(text), *expected, "{text}");
            // With white space wherever there may be some.
            let value: serde_json::Value = serde_json::from_str(text).expect(text);
            assert_eq!(failed(&format!("\n\t{value:#} ")), *expected, "{value:#}");
        }
    }

    #[test]
    fn a_value_of_a_wrong_type() {
        assert_all(&[
            (r#"{"name":7}"#, "name"),
            (r#"{"name":"a","number":"7","pair":null}"#, "number"),
            (r#"{"name":"a","number":"\\\"],{","pair":null}"#, "number"),
            (r#"{"name":"a","number":99999999999}"#, "number"),
            (r#"{"name":"a","number":true}"#, "number"),
            (r#"{"name":"a","number":[7]}"#, "number"),
            (r#"{"name":"a","number":{"b":7}}"#, "number"),
            (r#"{"name":null}"#, "name"),
            (r#"{"name":"a","numbers":{}}"#, "numbers"),
            (r#""text""#, ""),
            ("7", ""),
        ]);
    }

    #[test]
    fn elements_have_their_index() {
        assert_all(&[
            (r#"{"name":"a","numbers":[[1],[],[2,"3",4]]}"#, "numbers[2][1]"),
            (r#"{"name":"a","numbers":[[1],[2,300]]}"#, "numbers[1][1]"),
            (r#"{"name":"a","numbers":[[1,[]]]}"#, "numbers[0][1]"),
            (r#"{"name":"a","numbers":[[{}]]}"#, "numbers[0][0]"),
            (r#"{"name":"a","numbers":[[1],2]}"#, "numbers[1]"),
            (
                r#"{"name":"a","parts":[{"name":"b"},{"name":"c","parts":[{"name":"d"},{"name":{}}]}]}"#,
                "parts[1].parts[1].name",
            ),
            (r#"{"name":"a","pair":[1]}"#, "pair"),
            (r#"{"name":"a","pair":[1,2,3]}"#, "pair[2]"),
        ]);
    }

    #[test]
    fn keys_are_unescaped() {
        assert_all(&[
            (r#"{"name":"a","labels":{"a.b/c":"d","e\"\\\u00e9":7}}"#, "labels.e\"\\é"),
            (r#"{"name":"a","labels":{"ü":"ö","é":[]}}"#, "labels.é"),
            (r#"{"unknown":{"a":[{"b":"}"}]},"name":"a","num\u0062er":""}"#, "number"),
        ]);
    }

    #[test]
    fn what_is_missing_or_there_twice_names_the_object() {
        assert_all(&[
            ("{}", ""),
            (r#"{"number":1,"unknown":[1]}"#, ""),
            (r#"{"name":"a","parts":[{"name":"b"},{}]}"#, "parts[1]"),
            (r#"{"name":"a","parts":[{"number":1}],"unknown":1}"#, "parts[0]"),
        ]);
        assert_eq!(failed(r#"{"name":"a","name":"b"}"#), "");
        assert_eq!(failed(r#"{"name":"a","parts":[{"name":"a","name":"b"}]}"#), "parts[0]");
    }

    #[test]
    fn variants_of_an_enum() {
        assert!(serde_json::from_str::<Object>(r#"{"name":"a","policy":"Never"}"#).is_ok());
        assert_all(&[
            (r#"{"name":"a","policy":"Always","short":[]}"#, "policy"),
            (r#"{"name":"a","policy":{"After":"b"}}"#, "policy.After"),
            (r#"{"name":"a","policy":7}"#, "policy"),
        ]);
    }

    #[test]
    fn what_a_type_refuses_after_it_was_read() {
        assert_all(&[
            (r#"{"even":3,"name":"a"}"#, "even"),
            (r#"{"name":"a","short":["a","long","b"]}"#, "short[1]"),
            (r#"{"name":"a","parts":[{"name":"b","short":["long"]}],"pair":null}"#, "parts[0].short"),
        ]);
        // It might as well be the object: there is no telling.
        assert_eq!(failed(r#"{"name":"a","parts":[{"name":"b","even":3}]}"#), "parts[0]");
    }

    #[test]
    fn text_that_ends_too_early_or_is_no_json() {
        for (text, expected) in [
            ("", ""),
            ("{", ""),
            (r#"{"name":"#, "name"),
            (r#"{"name":"a"#, "name"),
            (r#"{"name":"a\"#, "name"),
            (r#"{"name":"a","numbers":[[1],[2"#, "numbers[1][0]"),
            (r#"{"name":"a","numbers":[[1],x]}"#, "numbers[1]"),
            (r#"{"name":"a"} x"#, ""),
            ("{\"name\":\"\u{1}\"}", "name"),
            (r#"{"name":"a","unk"#, ""),
            (r#"{"name":"a"]"#, ""),
            ("]", ""),
        ] {
            assert_eq!(failed(text), expected, "{text}");
        }
        let error = serde_json::from_value::<Object>(serde_json::json!({"name": 7})).err().expect("an error");
        assert_eq!(failed_field(r#"{"name":7}"#, &error), "", "it has no position");
    }
}
