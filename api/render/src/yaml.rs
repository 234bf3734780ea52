//! YAML that users have written, into templates and files of nodes.

use serde_json::Value;

/// Reads YAML 1.1, as Kubernetes does: 0644 is octal. The error has the position, and nothing of the text: it may be secret.
/// A text that takes very much more room than it has, by aliases of aliases, is refused as well.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| match error.location() {
        Some(at) => format!("no YAML, at line {}, column {} of it", at.line(), at.column()),
        None => "no YAML".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_and_shows_nothing() {
        let error = read("a: 1\nb: 'hunter2\nc: 3").unwrap_err();
        assert!(error.starts_with("no YAML, at line ") && !error.contains("hunter2"), "{error}");
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
