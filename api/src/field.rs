//! Errors of fields, in the form of Kubernetes' `field.Error`.

use serde_json::Value;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The path of a field, such as `spec.template.spec.nodeTemplate.spec.taints[0].key`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    /// The path of a field of the object.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The path of a field below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// The path of an entry of this map, or of an element of this list.
    #[must_use]
    pub fn key(&self, key: impl fmt::Display) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A kind of error, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    reason: &'static str,
    text: &'static str,
    shows_value: bool,
}

const REQUIRED: Kind = Kind { reason: "FieldValueRequired", text: "Required value", shows_value: false };
const INVALID: Kind = Kind { reason: "FieldValueInvalid", text: "Invalid value", shows_value: true };
const NOT_SUPPORTED: Kind = Kind { reason: "FieldValueNotSupported", text: "Unsupported value", shows_value: true };
const FORBIDDEN: Kind = Kind { reason: "FieldValueForbidden", text: "Forbidden", shows_value: false };
const DUPLICATE: Kind = Kind { reason: "FieldValueDuplicate", text: "Duplicate value", shows_value: true };
const TOO_LONG: Kind = Kind { reason: "FieldValueTooLong", text: "Too long", shows_value: false };

/// An error of a field, such as `spec.replicas: Invalid value: -1: must be greater than or equal to 0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// The field.
    pub path: FieldPath,
    kind: Kind,
    /// The value, or null.
    pub value: Value,
    is_confidential: bool,
    /// Details for users.
    pub detail: String,
}

impl FieldError {
    fn new(path: FieldPath, kind: Kind, value: Value, detail: impl Into<String>) -> Self {
        Self { path, kind, value, is_confidential: false, detail: detail.into() }
    }

    /// The field is missing.
    pub fn required(path: FieldPath, detail: impl Into<String>) -> Self {
        Self::new(path, REQUIRED, Value::Null, detail)
    }

    /// The value is invalid.
    pub fn invalid(path: FieldPath, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(path, INVALID, value.into(), detail)
    }

    /// The value is invalid and confidential. The error keeps only a hash of it.
    pub fn confidential(path: FieldPath, value: &Value, detail: impl Into<String>) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self { is_confidential: true, ..Self::invalid(path, hasher.finish(), detail) }
    }

    /// The value is not supported.
    pub fn not_supported(path: FieldPath, value: impl Into<Value>, supported: &[&str]) -> Self {
        let supported: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        Self::new(path, NOT_SUPPORTED, value.into(), detail)
    }

    /// The field must not be set, or not be changed.
    pub fn forbidden(path: FieldPath, detail: impl Into<String>) -> Self {
        Self::new(path, FORBIDDEN, Value::Null, detail)
    }

    /// The list has the value twice.
    pub fn duplicate(path: FieldPath, value: impl Into<Value>) -> Self {
        Self::new(path, DUPLICATE, value.into(), "")
    }

    /// The value has more than `limit` bytes.
    pub fn too_long(path: FieldPath, value: impl Into<Value>, limit: usize) -> Self {
        let detail = format!("may not be more than {limit} bytes");
        Self::new(path, TOO_LONG, value.into(), detail)
    }

    /// The same error without the value, which may be confidential.
    #[must_use]
    pub fn without_value(self) -> Self {
        Self { value: Value::Null, is_confidential: true, ..self }
    }

    /// The same error with the value that the user wrote.
    pub(crate) fn with_value(self, value: &str) -> Self {
        Self { value: value.into(), ..self }
    }

    /// The `reason` of a cause in a `Status`.
    pub fn reason(&self) -> &'static str {
        self.kind.reason
    }

    /// The text without the path: the `message` of a cause in a `Status`.
    pub fn body(&self) -> String {
        let mut body = self.kind.text.to_owned();
        if self.kind.shows_value && !self.is_confidential {
            body.push_str(": ");
            body.push_str(&self.value.to_string());
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl std::error::Error for FieldError {}

/// All errors in one line. Several are in brackets, as in Kubernetes.
pub fn summary(errors: &[FieldError]) -> String {
    match errors {
        [error] => error.to_string(),
        errors => {
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confidential_is_compared_and_not_shown() {
        let error =
            |value: &str| FieldError::confidential(FieldPath::new("providerSpec"), &value.into(), "must be short");
        assert_eq!(error("hunter2").to_string(), "providerSpec: Invalid value: must be short");
        assert!(!format!("{:?}", error("hunter2")).contains("hunter2"));
        assert!(error("hunter2") == error("hunter2") && error("hunter2") != error("hunter3"));
        let path = FieldPath::new("mode");
        for shown in [
            FieldError::invalid(path.clone(), "hunter2", "a rule"),
            FieldError::not_supported(path.clone(), "hunter2", &["a"]),
            FieldError::duplicate(path, "hunter2"),
        ] {
            assert!(!format!("{:?}", shown.without_value()).contains("hunter2"));
        }
    }

    #[test]
    fn reads_like_the_errors_of_kubernetes() {
        let path = FieldPath::new("spec").child("taints").key(2).child("key");
        for (error, expected) in [
            (FieldError::required(path.clone(), ""), "spec.taints[2].key: Required value"),
            (
                FieldError::invalid(path.clone(), "x y", "must not contain blanks"),
                r#"spec.taints[2].key: Invalid value: "x y": must not contain blanks"#,
            ),
            (FieldError::invalid(path.clone(), -1, ""), "spec.taints[2].key: Invalid value: -1"),
            (
                FieldError::not_supported(path.clone(), "x", &["a", "b"]),
                r#"spec.taints[2].key: Unsupported value: "x": supported values: "a", "b""#,
            ),
            (FieldError::forbidden(path.clone(), "may not change"), "spec.taints[2].key: Forbidden: may not change"),
            (FieldError::duplicate(path.clone(), "x"), r#"spec.taints[2].key: Duplicate value: "x""#),
            (
                FieldError::too_long(path.clone(), "long", 3),
                "spec.taints[2].key: Too long: may not be more than 3 bytes",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_summary_has_brackets_around_several() {
        let error = FieldError::required(FieldPath::new("spec").child("labels").key("a/b"), "");
        assert_eq!(summary(std::slice::from_ref(&error)), "spec.labels[a/b]: Required value");
        let two = [error.clone(), error];
        assert_eq!(summary(&two), "[spec.labels[a/b]: Required value, spec.labels[a/b]: Required value]");
    }
}
