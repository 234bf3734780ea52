//! The validation rules (`x-kubernetes-validations`) of custom resources.
//!
//! Only one form of CEL is supported: a field that is immutable once it is set. A schema with another rule is refused, so
//! that no test relies on a rule that is not checked.

use serde_json::Value;

use super::checks::FieldError;

/// A field that is immutable once it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Immutable {
    /// The object that contains it, as a JSON pointer.
    parent: String,
    field: String,
    message: String,
}

impl Immutable {
    fn is_broken(&self, old: &Value, new: &Value) -> bool {
        let (Some(old), Some(new)) = (old.pointer(&self.parent), new.pointer(&self.parent)) else { return false };
        let is_set = old.get(&self.field).is_some_and(|value| *value != "");
        is_set && old.get(&self.field) != new.get(&self.field)
    }

    fn error(&self) -> FieldError {
        let parent = self.parent.trim_start_matches('/').replace('/', ".");
        FieldError {
            field: format!("{parent}.{}", self.field),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {}", self.message),
        }
    }
}

/// The rules of a schema and its nested schemas.
pub(super) fn of_schema(schema: &Value) -> Vec<Immutable> {
    let mut found = vec![];
    collect(schema, "", &mut found);
    found
}

fn collect(schema: &Value, at: &str, found: &mut Vec<Immutable>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.push(immutable(rule, at));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect(property, &format!("{at}/{name}"), found);
    }
}

fn immutable(rule: &Value, at: &str) -> Immutable {
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    let field = text("fieldPath").trim_start_matches('.');
    let expected = format!(
        "!has(oldSelf.{field}) || oldSelf.{field} == '' || (has(self.{field}) && self.{field} == oldSelf.{field})"
    );
    assert_eq!(text("rule"), expected, "the rule at {at:?} is not understood");
    Immutable { parent: at.to_owned(), field: field.to_owned(), message: text("message").to_owned() }
}

/// The errors of a write by the rules, besides the other `errors`. Other errors of certain kinds skip all rules.
pub(super) fn check(rules: &[Immutable], errors: &[FieldError], change: Option<(&Value, &Value)>) -> Vec<FieldError> {
    let is_blocking = |error: &FieldError| matches!(error.reason, "FieldValueRequired" | "FieldValueNotSupported");
    if !rules.is_empty() && errors.iter().any(is_blocking) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors \
            to complete validation";
        return vec![FieldError::invalid("<nil>", "null", why)];
    }
    let Some((old, new)) = change else { return vec![] };
    rules.iter().filter(|rule| rule.is_broken(old, new)).map(Immutable::error).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_immutable_once_it_is_set() {
        let rule = "!has(oldSelf.id) || oldSelf.id == '' || (has(self.id) && self.id == oldSelf.id)";
        let rules = of_schema(&json!({"properties": {"spec": {"x-kubernetes-validations":
            [{"fieldPath": ".id", "message": "is immutable", "rule": rule}]}}}));
        let spec = |spec: Value| json!({"spec": spec});
        let said = |old: Value, new: Value| check(&rules, &[], Some((&spec(old), &spec(new)))).len();
        assert_eq!(said(json!({}), json!({"id": "a"})), 0);
        assert_eq!(said(json!({"id": ""}), json!({"id": "a"})), 0);
        assert_eq!(said(json!({"id": "a"}), json!({"id": "a"})), 0);
        assert_eq!(said(json!({"id": "a"}), json!({"id": "b"})), 1);
        assert_eq!(said(json!({"id": "a"}), json!({})), 1);
        let nameless = [FieldError::required("metadata.name", "name or generateName is required")];
        assert_eq!(check(&rules, &nameless, None)[0].field, "<nil>");
        assert_eq!(check(&[], &nameless, None), []);
    }
}
