//! The API server's rules of names, labels and annotations.

use super::MOST_ERRORS;
use crate::field::{FieldError, FieldPath};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Maximum length of a label value, and of the name in a key.
const LABEL_LENGTH: usize = 63;
/// Maximum length of an object's name, and of the prefix of a key.
const NAME_LENGTH: usize = 253;
pub(super) const OBJECT_NAME: &str = "must be a name of at most 253 lower-case letters, digits, '-' and '.', \
     each part between dots beginning and ending with a letter or digit";

const QUALIFIED_NAME: &str = "must be a name of at most 63 letters, digits, '-', '_' and '.', beginning and \
     ending with a letter or digit, with an optional DNS prefix and '/', such as \"example.com/name\"";

const LABEL_VALUE: &str = "must be empty, or at most 63 letters, digits, '-', '_' and '.', beginning and \
     ending with a letter or digit";

/// Whether a text is a DNS subdomain, as names of objects are.
pub(super) fn is_object_name(text: &str) -> bool {
    text.len() <= NAME_LENGTH
        && text.split('.').all(|part| {
            is_enclosed(part, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), |byte| byte == b'-')
        })
}

/// Whether a text is a key of a label, annotation or taint.
pub(super) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_object_name(prefix) && is_name_of_key(name),
        None => is_name_of_key(text),
    }
}

/// Whether a text is a value of a label or taint.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_of_key(text)
}

/// Whether an API server takes this label.
pub fn is_label(key: &str, value: &str) -> bool {
    is_qualified_name(key) && is_label_value(value)
}

fn is_name_of_key(text: &str) -> bool {
    text.len() <= LABEL_LENGTH
        && is_enclosed(text, |byte| byte.is_ascii_alphanumeric(), |byte| matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether a text begins and ends with an outer byte, and consists of outer and inner bytes.
fn is_enclosed(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|&byte| outer(byte))
        && bytes.last().is_some_and(|&byte| outer(byte))
        && bytes.iter().all(|&byte| outer(byte) || inner(byte))
}

pub(super) fn key_error(key: &str, path: &FieldPath) -> Option<FieldError> {
    (!is_qualified_name(key)).then(|| FieldError::invalid(path.clone(), key, QUALIFIED_NAME))
}

pub(super) fn label_value_error(value: &str, path: &FieldPath) -> Option<FieldError> {
    (!is_label_value(value)).then(|| FieldError::invalid(path.clone(), value, LABEL_VALUE))
}

/// The errors of the labels and annotations of a template. The API server checks them only in the object that is created.
pub(super) fn template_errors(metadata: &ObjectMeta, path: &FieldPath) -> Vec<FieldError> {
    let labels = path.child("labels");
    let annotations = path.child("annotations");
    let of_labels =
        metadata.labels.iter().flatten().flat_map(|(key, value)| {
            key_error(key, &labels).into_iter().chain(label_value_error(value, &labels.key(key)))
        });
    let of_annotations = metadata.annotations.iter().flatten().filter_map(|(key, _)| {
        // Keys of annotations may have upper-case letters in the prefix.
        let error = key_error(&key.to_lowercase(), &annotations);
        error.map(|error| error.with_value(key))
    });
    of_labels.take(MOST_ERRORS).chain(of_annotations.take(MOST_ERRORS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects() {
        for name in ["a", "a-1.b", "0", &"a".repeat(253)] {
            assert!(is_object_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a..b", ".a", "a_b", "a/b", &"a".repeat(254)] {
            assert!(!is_object_name(name), "{name}");
        }
    }

    #[test]
    fn keys() {
        for key in ["a", "Name_1.x", "example.com/name", "node.machine.sapcloud.io/preserve"] {
            assert!(is_qualified_name(key), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a b", &"a".repeat(64)] {
            assert!(!is_qualified_name(key), "{key}");
        }
    }

    #[test]
    fn values_of_labels() {
        assert!(is_label_value("") && is_label_value("a_B.1") && is_label_value(&"a".repeat(63)));
        assert!(!is_label_value("a b") && !is_label_value("_a") && !is_label_value(&"a".repeat(64)));
    }
}
