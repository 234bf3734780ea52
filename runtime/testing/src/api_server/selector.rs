//! Label and field selectors.

use serde_json::Value;

use super::checks;
use super::refusal;
use super::route::{Resource, Route};
use super::store::Refused;

/// The selection of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    namespace: String,
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    pub(super) fn of(route: &Route) -> Result<Self, Refused> {
        let mut fields = parse_fields(&route.resource, route.get("fieldSelector"))?;
        // A watch of one object by its path is a watch by its name.
        fields.extend(route.name.iter().map(|name| ("metadata.name".to_owned(), true, name.clone())));
        let labels = parse_labels(route.get("labelSelector"))?;
        Ok(Self { namespace: route.namespace.clone(), labels, fields })
    }

    /// Selects all objects of the same namespace.
    pub(super) fn whole_place(&self) -> Self {
        Self { namespace: self.namespace.clone(), ..Self::default() }
    }

    /// Whether it selects all objects of the namespace.
    pub(super) fn takes_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("");
        (self.namespace.is_empty() || self.namespace == namespace)
            && self.labels.iter().all(|requirement| requirement.matches(&object["metadata"]["labels"]))
            && self.fields.iter().all(|(path, equal, value)| (field(object, path) == value) == *equal)
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Self::Exists(key) => label(key).is_some(),
            Self::Absent(key) => label(key).is_none(),
            Self::In(key, values) => label(key).is_some_and(|label| values.iter().any(|value| value == label)),
            Self::NotIn(key, values) => label(key).is_none_or(|label| values.iter().all(|value| value != label)),
        }
    }
}

/// Whether a `LabelSelector` matches labels. An empty one matches all, an absent one matches none.
pub(super) fn matches_labels(selector: &Value, labels: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    let equal = equal.map(|(key, value)| Requirement::In(key.clone(), vec![text(value)]));
    let more = selector["matchExpressions"].as_array().into_iter().flatten().map(|expression| {
        let (key, values) = (text(&expression["key"]), expression["values"].as_array().into_iter().flatten());
        let values = values.map(text).collect();
        match expression["operator"].as_str() {
            Some("NotIn") => Requirement::NotIn(key, values),
            Some("Exists") => Requirement::Exists(key),
            Some("DoesNotExist") => Requirement::Absent(key),
            _ => Requirement::In(key, values),
        }
    });
    selector.is_object() && equal.chain(more).all(|requirement| requirement.matches(labels))
}

/// A field by its path; empty if absent, as for field selectors.
fn field<'a>(object: &'a Value, path: &str) -> &'a str {
    path.split('.').fold(object, |value, key| &value[key]).as_str().unwrap_or("")
}

/// The fields of a kind that field selectors support, besides name and namespace.
fn known_fields(resource: &Resource) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &["spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "secrets") => &["type"],
        ("", "namespaces") => &["status.phase"],
        ("" | "events.k8s.io", "events") => &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        _ => &[],
    }
}

fn parse_fields(resource: &Resource, text: &str) -> Result<Vec<(String, bool, String)>, Refused> {
    let terms = text.split(',').filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let unknown = || refusal::bad_request(&format!("invalid selector: '{text}'; can't understand '{term}'"));
            let (path, equal, value) = split_equation(term).ok_or_else(unknown)?;
            let more = known_fields(resource);
            if matches!(path.as_str(), "metadata.name" | "metadata.namespace") || more.contains(&path.as_str()) {
                return Ok((path, equal, value));
            }
            // Kinds with additional fields have another message.
            let message = if resource.is_custom() || !more.is_empty() {
                format!("field label not supported: {path}")
            } else {
                format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            };
            Err(refusal::bad_request(&message))
        })
        .collect()
}

/// `a=b`, `a==b` or `a!=b`.
fn split_equation(term: &str) -> Option<(String, bool, String)> {
    if let Some((key, value)) = term.split_once("!=") {
        return Some((key.trim().to_owned(), false, value.trim().to_owned()));
    }
    let (key, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((key.trim().to_owned(), true, value.trim().to_owned()))
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Refused> {
    if text.trim_end().ends_with(',') {
        return Err(refusal::bad_request("found '', expected: identifier after ','"));
    }
    split_terms(text).into_iter().map(|term| parse_label(term.trim())).collect()
}

fn parse_label(term: &str) -> Result<Requirement, Refused> {
    let wrong = |found: &str, expected: &str| {
        refusal::bad_request(&format!("unable to parse requirement: found '{found}' expected: {expected}"))
    };
    let words: Vec<_> = term.split_whitespace().collect();
    if let [key, operator @ ("in" | "notin"), ..] = words[..] {
        let list = term.split_once(operator).map_or("", |(_, list)| list.trim());
        let Some(list) = list.strip_prefix('(').and_then(|list| list.strip_suffix(')')) else {
            return Err(wrong(words.get(2).unwrap_or(&""), "'('"));
        };
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let key = checked(key)?;
        return Ok(if operator == "in" { Requirement::In(key, values) } else { Requirement::NotIn(key, values) });
    }
    if let Some((key, is_equal, value)) = split_equation(term) {
        if let Some((_, rest)) = value.split_once(char::is_whitespace) {
            let found = rest.trim().trim_end_matches(|it: char| !it.is_ascii_alphanumeric());
            return Err(refusal::bad_request(&format!("found '{found}', expected: ',' or 'end of string'")));
        }
        let (key, values) = (checked(&key)?, vec![value]);
        return Ok(if is_equal { Requirement::In(key, values) } else { Requirement::NotIn(key, values) });
    }
    match term.strip_prefix('!') {
        Some(key) => Ok(Requirement::Absent(checked(key.trim())?)),
        None => Ok(Requirement::Exists(checked(term)?)),
    }
}

fn checked(text: &str) -> Result<String, Refused> {
    match checks::label_key(text) {
        None => Ok(text.to_owned()),
        Some(why) => {
            let message = format!("unable to parse requirement: <nil>: Invalid value: {text:?}: {why}");
            Err(refusal::bad_request(&message))
        }
    }
}

/// Splits at commas outside of brackets.
fn split_terms(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let terms = text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    terms.filter(|term| !term.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods() -> Resource {
        Resource { group: String::new(), version: "v1".into(), plural: "pods".into() }
    }

    fn matches(labels: &str, fields: &str) -> bool {
        let object = json!({
            "metadata": { "name": "a", "namespace": "n", "labels": { "pool": "blue", "app": "x" } },
            "spec": { "nodeName": "node-1" },
        });
        let selector = Selector {
            namespace: String::new(),
            labels: parse_labels(labels).unwrap(),
            fields: parse_fields(&pods(), fields).unwrap(),
        };
        selector.matches(&object)
    }

    #[test]
    fn labels_select() {
        for yes in ["pool=blue", "pool==blue,app", "pool in (red, blue)", "!zone", "pool!=red", "zone notin (a,b)", ""]
        {
            assert!(matches(yes, ""), "{yes}");
        }
        for no in ["pool=red", "zone", "!app", "pool notin (blue)", "app,zone in (a)"] {
            assert!(!matches(no, ""), "{no}");
        }
    }

    #[test]
    fn fields_select() {
        assert!(matches("", "metadata.name=a,spec.nodeName=node-1"));
        assert!(!matches("", "spec.nodeName!=node-1"));
        assert!(matches("", "status.phase!=Failed"));
        assert!(parse_fields(&pods(), "spec.unknown=a").is_err());
    }
}
