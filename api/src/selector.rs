//! Label selectors: what they match, and their text.
//!
//! Expressions are kube's. [`matches()`] compares `matchLabels` itself, because [`Selector`] would copy the selector for
//! each object that a set without owners is compared with.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, Selector, SelectorExt};
use std::collections::BTreeMap;

/// Whether a selector matches labels, as in Kubernetes: an empty selector matches everything, an absent one nothing. An
/// invalid expression matches nothing.
pub fn matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    let no_labels = BTreeMap::new();
    let labels = labels.unwrap_or(&no_labels);
    selector.is_some_and(|selector| {
        let mut expressions = selector.match_expressions.iter().flatten().cloned().map(Expression::try_from);
        selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && expressions.all(|expression| expression.is_ok_and(|expression| expression.matches(labels)))
    })
}

/// Whether a selector is absent or matches everything.
pub fn is_empty(selector: Option<&LabelSelector>) -> bool {
    selector.is_none_or(|selector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    })
}

/// The selector in the syntax of list requests, for the scale subresource. Empty for a selector that is absent, invalid,
/// or matches everything.
pub fn to_text(selector: Option<&LabelSelector>) -> String {
    let selector = selector.cloned().and_then(|selector| Selector::try_from(selector).ok());
    selector.unwrap_or_default().to_string()
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
