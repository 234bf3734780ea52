//! YAML that users have written, into templates and files of nodes.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy::{self, FirstWins, LastWins};
use std::fmt;

/// Why a text is not read, or not without a warning. What is shown has the position, and nothing of the text: that may be secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    is_repeated: bool,
    /// The key that an object has twice, if that is why. It may be secret, too.
    pub(crate) key: Option<String>,
    /// Line and column.
    at: Option<(u64, u64)>,
}

impl Error {
    /// Where it is in the text; nothing if that is unknown.
    pub(crate) fn place(&self) -> String {
        self.at.map(|(line, column)| format!(", at line {line}, column {column} of it")).unwrap_or_default()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_repeated { "no YAML: a key is there twice" } else { "no YAML" };
        write!(f, "{what}{}", self.place())
    }
}

/// Reads YAML 1.1, as Kubernetes does: 0644 is octal. A text that takes very much more room than it has, by aliases of aliases, is
/// refused as well.
pub(crate) fn read(text: &str) -> Result<Value, Error> {
    parse_as_written(text, DuplicateKeyPolicy::Error)
}

/// The same for a text that may say the same thing twice. Returns the first key that it has twice as well.
pub(crate) fn read_repetitive(text: &str) -> Result<(Value, Option<Error>), Error> {
    match read(text) {
        Ok(value) => Ok((value, None)),
        Err(error) if error.is_repeated => {
            let (first, last) = (parse_as_written(text, FirstWins)?, parse_as_written(text, LastWins)?);
            if first == last { Ok((last, Some(error))) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}

fn parse_as_written(text: &str, policy: DuplicateKeyPolicy) -> Result<Value, Error> {
    let mut value = parse(text, policy)?;
    let is_open = !text.ends_with('\n') && text.lines().last().is_some_and(|line| !line.trim().is_empty());
    if is_open && text.contains(['|', '>']) {
        end_as_written(&mut value, text, policy);
    }
    Ok(value)
}

fn parse(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Value, Error> {
    let options =
        serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false, duplicate_keys: duplicate_keys };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let at = error.location().map(|at| (at.line(), at.column()));
        match error {
            serde_saphyr::Error::DuplicateMappingKey { key, .. } => Error { is_repeated: true, key, at },
            _ => Error { is_repeated: false, key: None, at },
        }
    })
}

/// Takes back the line end that the parser adds to a block at the end of a text without one. Which value that is shows when the text
/// goes on.
fn end_as_written(value: &mut Value, text: &str, policy: DuplicateKeyPolicy) {
    let Some(more) = (1..=text.len()).map(|length| "e".repeat(length)).find(|more| !text.contains(more)) else {
        return;
    };
    if let Ok(longer) = parse(&format!("{text}{more}"), policy) {
        take_back(value, &longer, &format!("{more}\n"));
    }
}

fn take_back(value: &mut Value, longer: &Value, end: &str) {
    match (value, longer) {
        (Value::String(text), Value::String(longer)) if longer.ends_with(end) => drop(text.pop()),
        (Value::Array(list), Value::Array(longer)) => {
            list.iter_mut().zip(longer).for_each(|(value, longer)| take_back(value, longer, end));
        }
        (Value::Object(fields), Value::Object(longer)) => {
            let pairs = fields.iter_mut().filter_map(|(key, value)| Some((value, longer.get(key)?)));
            pairs.for_each(|(value, longer)| take_back(value, longer, end));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_says_where_and_shows_nothing() {
        let error = read("a: 1\nb: 'hunter2\nc: 3").unwrap_err().to_string();
        assert!(error.starts_with("no YAML, at line ") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_as_such() {
        for text in ["hush: 1\nb: 2\nhush: 3", "a: {hush: 1,\n hush: 2}", "- a\n- hush: 1\n  hush: 1"] {
            let error = read(text).unwrap_err();
            assert_eq!(error.key.as_deref(), Some("hush"), "{text:?}");
            let shown = error.to_string();
            assert!(shown.starts_with("no YAML: a key is there twice, at line "), "{shown}");
            assert!(!shown.contains("hush"), "{shown}");
        }
    }

    #[test]
    fn a_repetition_says_the_same_thing() {
        for (text, value) in [
            ("a: 0644\na: 0644\nb: 1", Some(json!({"a": 420, "b": 1}))),
            ("a: {b: 1, b: 1}\na: {b: 1}", Some(json!({"a": {"b": 1}}))),
            ("a: 1\na: 1\nb: |\n  x", Some(json!({"a": 1, "b": "x"}))),
            ("a: 1\na: 2", None),
            ("a: {b: 1, b: 2}", None),
        ] {
            let read = read_repetitive(text);
            assert_eq!(read.as_ref().ok().map(|(value, _)| value), value.as_ref(), "{text:?}");
            let error = read.map_or_else(|error| error, |(_, error)| error.unwrap());
            assert!(error.key.is_some() && error.at.is_some(), "{text:?}: {error}");
        }
        assert_eq!(read_repetitive("a: 1"), Ok((json!({"a": 1}), None)));
    }

    /// Machine-config-operator's reader adds none either, and a daemon compares the files.
    #[test]
    fn a_block_has_the_line_ends_that_are_written() {
        for (text, expected) in [
            ("a: |\n  x", "x"),
            ("a: |\n  x\n", "x\n"),
            ("a: |-\n  x\n", "x"),
            ("a: |+\n  x\n\n", "x\n\n"),
            ("a: >\n  x\n  y", "x y"),
            ("a: |-\n  x", "x"),
            ("a: |\n  x\n  ", "x\n"),
            ("b: '|'\na: 'x'", "x"),
            ("b: |\n  ee\na: x", "x"),
            ("b: |\n  y\na: |\n  eee", "eee"),
        ] {
            assert_eq!(read(text).unwrap()["a"], expected, "{text:?}");
        }
    }

    #[test]
    fn a_text_that_grows_without_bounds_is_refused() {
        let long = "x".repeat(1 << 20);
        for aliases in [90, 10_000] {
            read(&format!("a: &a {long}\nb: [{}]", vec!["*a"; aliases].join(", "))).unwrap_err();
        }
        read("a: &a {b: 1}\nc: [*a, *a]").unwrap();
    }
}
