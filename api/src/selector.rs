//! Label selectors: what they match, and how they are written as text.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::BTreeMap;

/// Whether a selector matches these labels, as Kubernetes decides it: an empty selector matches
/// everything, an absent one nothing. A requirement that is not valid matches nothing.
pub fn matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    let Some(selector) = selector else { return false };
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let labels_match = selector.match_labels.iter().flatten().all(|(key, value)| get(key) == Some(value));
    labels_match
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| requirement_matches(requirement, get(&requirement.key)))
}

fn requirement_matches(requirement: &LabelSelectorRequirement, value: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => !value.is_some_and(|value| values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// Whether a selector is absent or matches everything. Neither can own anything.
pub fn is_empty(selector: Option<&LabelSelector>) -> bool {
    selector.is_none_or(|selector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    })
}

/// The selector as text, as a list request takes it and the scale subresource shows it; empty for one
/// that is absent or matches everything.
pub fn to_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return String::new() };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(requirement_to_text);
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

fn requirement_to_text(requirement: &LabelSelectorRequirement) -> String {
    let key = &requirement.key;
    let mut values = requirement.values.clone().unwrap_or_default();
    values.sort_unstable();
    let values = values.join(",");
    match requirement.operator.as_str() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "DoesNotExist" => format!("!{key}"),
        _ => key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn selector(value: Value) -> LabelSelector {
        serde_json::from_value(value).expect("a selector")
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_and_expressions_must_all_match() {
        let selector = selector(json!({
            "matchLabels": {"pool": "a"},
            "matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["1", "2"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }));
        let matches = |pairs: &[(&str, &str)]| matches(Some(&selector), Some(&labels(pairs)));
        assert!(matches(&[("pool", "a"), ("zone", "2"), ("more", "x")]));
        assert!(!matches(&[("pool", "b"), ("zone", "2")]));
        assert!(!matches(&[("pool", "a"), ("zone", "3")]));
        assert!(!matches(&[("pool", "a"), ("zone", "1"), ("old", "")]));
        assert!(!matches(&[]));
    }

    #[test]
    fn not_in_matches_an_absent_label() {
        let not_in = selector(json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["1"]}]}));
        assert!(matches(Some(&not_in), None));
        assert!(!matches(Some(&not_in), Some(&labels(&[("zone", "1")]))));
    }

    #[test]
    fn absent_matches_nothing_and_empty_everything() {
        let empty = LabelSelector::default();
        assert!(matches(Some(&empty), None) && is_empty(Some(&empty)));
        assert!(!matches(None, Some(&labels(&[("a", "b")]))) && is_empty(None));
        let unknown = selector(json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}));
        assert!(!matches(Some(&unknown), Some(&labels(&[("a", "b")]))));
    }

    #[test]
    fn text_is_what_a_list_request_takes() {
        let selector = selector(json!({
            "matchLabels": {"a": "1"},
            "matchExpressions": [
                {"key": "b", "operator": "In", "values": ["z", "y"]},
                {"key": "c", "operator": "NotIn", "values": ["x"]},
                {"key": "d", "operator": "Exists"},
                {"key": "e", "operator": "DoesNotExist"},
            ],
        }));
        assert_eq!(to_text(Some(&selector)), "a=1,b in (y,z),c notin (x),d,!e");
        assert_eq!(to_text(None), "");
    }
}
