//! The validation of the metadata of all objects.

use serde_json::Value;

/// An error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) field: String,
    /// The reason in the Status's causes: `FieldValueInvalid`, `FieldValueRequired`, `FieldValueForbidden`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl FieldError {
    pub(super) fn invalid(field: &str, value: &str, why: &str) -> Self {
        Self { field: field.to_owned(), reason: "FieldValueInvalid", message: format!("Invalid value: {value}: {why}") }
    }

    pub(super) fn required(field: &str, why: &str) -> Self {
        Self { field: field.to_owned(), reason: "FieldValueRequired", message: format!("Required value: {why}") }
    }

    pub(super) fn not_supported(field: &str, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<_> = supported.iter().map(|it| format!("{it:?}")).collect();
        let supported = supported.join(", ");
        Self {
            field: field.to_owned(),
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {value:?}: supported values: {supported}"),
        }
    }

    pub(super) fn forbidden(field: &str, why: &str) -> Self {
        Self { field: field.to_owned(), reason: "FieldValueForbidden", message: format!("Forbidden: {why}") }
    }
}

const NAME_FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_FORM: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN_FORM: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The finalizers that need no domain in their name.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The errors in the finalizers of built-in kinds, which have stricter rules.
pub(super) fn finalizers(metadata: &Value) -> Vec<FieldError> {
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    let all = items(&metadata["finalizers"]).filter_map(Value::as_str).enumerate();
    let short = all.filter(|(_, name)| !name.contains('/') && !STANDARD_FINALIZERS.contains(name));
    let error =
        |(index, name)| FieldError::invalid(&format!("metadata.finalizers[{index}]"), &format!("{name:?}"), why);
    short.map(error).collect()
}

/// The errors in the metadata of an object.
pub(super) fn metadata(metadata: &Value) -> Vec<FieldError> {
    let mut errors = name(metadata["name"].as_str().unwrap_or(""));
    errors.extend(labels(&metadata["labels"]));
    for (key, _) in metadata["annotations"].as_object().into_iter().flatten() {
        errors.extend(qualified_name("metadata.annotations", key, &key.to_lowercase()));
    }
    errors.extend(owners(&metadata["ownerReferences"]));
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        errors.extend(qualified_name("metadata.finalizers", finalizer, finalizer));
    }
    errors
}

fn name(name: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required("metadata.name", "name or generateName is required")];
    }
    let mut errors = vec![];
    if name.len() > 253 {
        let why = "must be no more than 253 bytes";
        errors.push(FieldError::invalid("metadata.name", &format!("{name:?}"), why));
    }
    if !is_subdomain(name) {
        errors.push(FieldError::invalid("metadata.name", &format!("{name:?}"), SUBDOMAIN_FORM));
    }
    errors
}

fn labels(labels: &Value) -> Vec<FieldError> {
    let mut errors = vec![];
    for (key, value) in labels.as_object().into_iter().flatten() {
        errors.extend(qualified_name("metadata.labels", key, key));
        let value = value.as_str().unwrap_or("");
        let quoted = format!("{value:?}");
        if value.len() > 63 {
            errors.push(FieldError::invalid("metadata.labels", &quoted, "must be no more than 63 bytes"));
        }
        if !value.is_empty() && !is_label(value) {
            errors.push(FieldError::invalid("metadata.labels", &quoted, VALUE_FORM));
        }
    }
    errors
}

fn qualified_name(field: &str, said: &str, name: &str) -> Vec<FieldError> {
    let wrong = |why: &str| FieldError::invalid(field, &format!("{said:?}"), why);
    let parts: Vec<_> = name.split('/').collect();
    let (prefix, name) = match parts[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => {
            let why = format!(
                "a valid label key {NAME_FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            );
            return vec![wrong(&why)];
        }
    };
    let mut errors = vec![];
    match prefix {
        Some("") => errors.push(wrong("prefix part must be non-empty")),
        Some(prefix) if !is_subdomain(prefix) => errors.push(wrong(&format!("prefix part {SUBDOMAIN_FORM}"))),
        _ => {}
    }
    if name.is_empty() {
        errors.push(wrong("name part must be non-empty"));
    } else if name.len() > 63 {
        errors.push(wrong("name part must be no more than 63 bytes"));
    }
    if !is_label(name) {
        errors.push(wrong(&format!("name part {NAME_FORM}")));
    }
    errors
}

/// The error in the key of a label.
pub(super) fn label_key(key: &str) -> Option<String> {
    let error = qualified_name("", key, key).into_iter().next()?;
    error.message.split_once(&format!("{key:?}: ")).map(|(_, why)| why.to_owned())
}

fn owners(owners: &Value) -> Vec<FieldError> {
    let mut errors = vec![];
    for owner in owners.as_array().into_iter().flatten() {
        for (field, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::invalid(&format!("metadata.ownerReferences.{field}"), "\"\"", why));
            }
        }
    }
    errors
}

/// The errors of an update that changes immutable metadata.
pub(super) fn update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = vec![];
    if !old["deletionTimestamp"].is_null() {
        let known = |finalizer: &&Value| items(&old["finalizers"]).any(|earlier| earlier == *finalizer);
        let mut added: Vec<_> = items(&new["finalizers"]).filter(|it| !known(it)).map(Value::to_string).collect();
        added.sort();
        added.dedup();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if old[field] != new[field] {
            let value = if new[field].is_null() { "null".to_owned() } else { new[field].to_string() };
            errors.push(FieldError::invalid(&format!("metadata.{field}"), &value, "field is immutable"));
        }
    }
    errors
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn is_label(text: &str) -> bool {
    let ends = |character: Option<char>| character.is_some_and(|it| it.is_ascii_alphanumeric());
    let inner = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    ends(text.chars().next()) && ends(text.chars().last()) && text.chars().all(inner)
}

fn is_subdomain(text: &str) -> bool {
    let ends = |character: Option<char>| character.is_some_and(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
    text.split('.').all(|part| {
        let inner = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
        ends(part.chars().next()) && ends(part.chars().last()) && part.chars().all(inner)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_checked() {
        let good = json!({"name": "a.b-1", "labels": {"x.y/z": "", "a": "1_2"}, "finalizers": ["a.b/c"],
            "annotations": {"X.Y/z": "any thing"}});
        assert_eq!(metadata(&good), []);
        let fields = |wrong: Value| metadata(&wrong).into_iter().map(|it| it.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"name": "A"})), ["metadata.name"]);
        assert_eq!(fields(json!({})), ["metadata.name"]);
        assert_eq!(fields(json!({"name": "a", "labels": {"a": "no label!"}})), ["metadata.labels"]);
        assert_eq!(fields(json!({"name": "a", "labels": {"a/b/c": ""}})), ["metadata.labels"]);
        assert_eq!(fields(json!({"name": "a", "finalizers": ["-"]})), ["metadata.finalizers"]);
        assert_eq!(
            fields(json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a"}]})),
            ["metadata.ownerReferences.uid"]
        );
    }
}
