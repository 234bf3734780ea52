//! Rules of selectors. kube has none that name the field.

use super::MOST_ERRORS;
use crate::field::{FieldError, FieldPath};
use crate::machine::MachineTemplate;
use crate::selector;
use crate::validation::metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::json;

const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// The errors of `spec.selector`. It must match the template, or the controller would release and recreate its machines
/// forever.
pub(super) fn errors(selector: Option<&LabelSelector>, template: &MachineTemplate) -> Vec<FieldError> {
    let path = FieldPath::new("spec").child("selector");
    let Some(selector) = selector else {
        return vec![FieldError::required(path, "must select the machines by the labels of the template")];
    };
    if selector::is_empty(Some(selector)) {
        let detail = "must not be empty: an empty selector would select every machine of the namespace";
        return vec![FieldError::invalid(path, json!({}), detail)];
    }
    let errors = syntax_errors(selector, &path);
    if !errors.is_empty() {
        return errors;
    }
    let labels = template.metadata.labels.as_ref();
    if selector::matches(Some(selector), labels) {
        return Vec::new();
    }
    let path = FieldPath::new("spec").child("template").child("metadata").child("labels");
    vec![FieldError::invalid(path, json!(labels), "must match spec.selector")]
}

/// The errors of a selector that an API server would not take in one of its own kinds.
pub(super) fn syntax_errors(selector: &LabelSelector, path: &FieldPath) -> Vec<FieldError> {
    let labels = path.child("matchLabels");
    let of_labels = selector.match_labels.iter().flatten().flat_map(|(key, value)| {
        metadata::key_error(key, &labels).into_iter().chain(metadata::label_value_error(value, &labels.key(key)))
    });
    let requirements = selector.match_expressions.iter().flatten().enumerate();
    let of_requirements = requirements
        .flat_map(|(index, requirement)| requirement_errors(requirement, &path.child("matchExpressions").key(index)));
    of_labels.take(MOST_ERRORS).chain(of_requirements.take(MOST_ERRORS)).collect()
}

fn requirement_errors(requirement: &LabelSelectorRequirement, path: &FieldPath) -> Vec<FieldError> {
    let mut errors: Vec<_> = metadata::key_error(&requirement.key, &path.child("key")).into_iter().collect();
    let operator = requirement.operator.as_str();
    let values = requirement.values.as_deref().unwrap_or_default();
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(path.child("values"), detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(path.child("values"), detail));
        }
        operator if OPERATORS.contains(&operator) => {}
        _ => errors.push(FieldError::not_supported(path.child("operator"), operator, &OPERATORS)),
    }
    let values_path = path.child("values");
    errors.extend(
        values
            .iter()
            .enumerate()
            .filter_map(|(index, value)| metadata::label_value_error(value, &values_path.key(index)))
            .take(MOST_ERRORS),
    );
    errors
}
