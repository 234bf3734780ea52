//! Rules of a MachineDeployment.

use super::{Validate, annotation, local, template};
use crate::field::{FieldError, FieldPath};
use crate::int_or_percent::{self, Rounding};
use crate::{MachineDeployment, OrchestrationType, Strategy, StrategyType, annotations, labels, selector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::json;

/// Length of the suffix of a machine's name: two hyphens and two times five characters.
const NAME_SUFFIX: usize = 12;
const LONGEST_NAME: usize = 253;
/// Maximum length of a label value, such as the machine's name on its Node.
const LONGEST_LABEL: usize = 63;

impl Validate for MachineDeployment {
    fn validate(&self) -> Vec<FieldError> {
        let spec = FieldPath::new("spec");
        let mut errors: Vec<_> = name_error(self).into_iter().collect();
        errors.extend(local::errors(&self.spec, &spec));
        errors.extend(super::selector::errors(self.spec.selector.as_ref(), &self.spec.template));
        errors.extend(strategy_errors(&self.spec.strategy, self.spec.replicas, &spec.child("strategy")));
        errors.extend(template::errors(&self.spec.template));
        errors.extend(annotation_errors(self));
        errors
    }

    /// The error of a changed selector. It must still match the existing MachineSets, which have the labels of the previous
    /// template, or their machines would be orphaned.
    fn change_error(&self, old: &Self) -> Option<FieldError> {
        let (new_selector, old_selector) = (self.spec.selector.as_ref(), old.spec.selector.as_ref());
        let labels = old.spec.template.metadata.labels.as_ref();
        let is_harmless = new_selector == old_selector
            || selector::is_empty(new_selector)
            || !selector::matches(old_selector, labels)
            || selector::matches(new_selector, labels);
        let detail = "must still match the labels of the previous template, or its machines would be orphaned";
        let path = FieldPath::new("spec").child("selector");
        (!is_harmless).then(|| FieldError::invalid(path, json!(new_selector), detail))
    }

    fn change_warning(&self, old: Option<&Self>) -> Option<String> {
        replicas_warning(old.map_or(0, |old| old.spec.replicas), self.spec.replicas)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = name_warnings(self);
        let labels = self.spec.template.metadata.labels.as_ref();
        if labels.and_then(|labels| labels.get(labels::NAME)) != Some(&self.name_any()) {
            warnings.push(format!(
                "spec.template.metadata.labels: without the label {}: {} the cluster autoscaler does not find the machines",
                labels::NAME,
                self.name_any(),
            ));
        }
        if self.spec.rollback_to.is_some() {
            warnings.push("spec.rollbackTo: deprecated; restore the previous template instead".to_owned());
        }
        warnings.extend(template::warnings(&self.spec.template.spec, "spec.template.spec"));
        warnings.extend(annotation::trigger_deletion_warnings(self));
        warnings.extend(annotation::warnings(self));
        warnings.extend(annotation::health_timeouts_warning(self, &self.spec.template.spec));
        warnings
    }
}

/// A larger number of replicas gets a warning if it is more than [`MANY_TIMES`] the number before.
const MANY: i32 = 100;
const MANY_TIMES: i32 = 10;

/// Warns about a number that may have a digit too many.
pub(super) fn replicas_warning(before: i32, after: i32) -> Option<String> {
    let is_jump = after > MANY && after > before.max(0).saturating_mul(MANY_TIMES);
    is_jump.then(|| format!("spec.replicas: {after} machines are created, and there were {before}; is that meant?"))
}

/// The error of a name that is too long for the names of its machines.
fn name_error(deployment: &MachineDeployment) -> Option<FieldError> {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let limit = LONGEST_NAME - NAME_SUFFIX;
    let path = FieldPath::new("metadata").child("name");
    (name.len() > limit).then(|| FieldError::too_long(path, name, limit))
}

fn name_warnings(deployment: &MachineDeployment) -> Vec<String> {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let limit = LONGEST_LABEL - NAME_SUFFIX;
    let mut warnings = Vec::new();
    if name.len() > limit {
        warnings.push(format!(
            "metadata.name: a name of more than {limit} bytes is truncated in the names of the machines, which are labels of their Nodes"
        ));
    }
    if name.contains('.') {
        warnings.push("metadata.name: the cluster autoscaler does not find a name with a dot".to_owned());
    }
    warnings
}

fn strategy_errors(strategy: &Strategy, replicas: i32, path: &FieldPath) -> Vec<FieldError> {
    match strategy.effective_type() {
        StrategyType::RollingUpdate => strategy.rolling_update.as_ref().map_or_else(Vec::new, |update| {
            bound_errors([&update.max_surge, &update.max_unavailable], replicas, &path.child("rollingUpdate"))
        }),
        StrategyType::InPlaceUpdate => strategy.in_place_update.as_ref().map_or_else(Vec::new, |update| {
            let path = path.child("inPlaceUpdate");
            let mut errors = bound_errors([&update.max_surge, &update.max_unavailable], replicas, &path);
            if let OrchestrationType::Other(value) = &update.orchestration_type {
                let path = path.child("orchestrationType");
                errors.push(FieldError::not_supported(path, value.as_str(), &["Auto", "Manual"]));
            }
            errors
        }),
        StrategyType::Recreate | StrategyType::Unset => Vec::new(),
        StrategyType::Other(value) => {
            let supported = ["InPlaceUpdate", "Recreate", "RollingUpdate"];
            vec![FieldError::not_supported(path.child("type"), value, &supported)]
        }
    }
}

fn bound_errors(bounds: [&Option<IntOrString>; 2], replicas: i32, path: &FieldPath) -> Vec<FieldError> {
    let [max_surge, max_unavailable] = bounds;
    let error =
        |(name, value): (&str, &Option<IntOrString>)| int_or_percent_error(value.as_ref()?, replicas, path.child(name));
    [("maxUnavailable", max_unavailable), ("maxSurge", max_surge)].into_iter().filter_map(error).collect()
}

pub(super) fn int_or_percent_error(value: &IntOrString, total: i32, path: FieldPath) -> Option<FieldError> {
    let detail = match int_or_percent::resolve(value, total.max(0), Rounding::Up) {
        Ok(_) if int_or_percent::is_above_all(value) => int_or_percent::ABOVE_ALL.to_owned(),
        Ok(_) if !is_negative(value) => return None,
        Ok(_) => "must not be negative".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(FieldError::invalid(path, json!(value), detail))
}

fn is_negative(value: &IntOrString) -> bool {
    match value {
        IntOrString::Int(number) => *number < 0,
        IntOrString::String(text) => text.starts_with('-'),
    }
}

fn annotation_errors(deployment: &MachineDeployment) -> Vec<FieldError> {
    let mut errors: Vec<_> = annotation::deletion_order_error(deployment).into_iter().collect();
    if let Some(text) = deployment.annotations().get(annotations::REMEDIATION_MAX_IN_FLIGHT) {
        let path = annotation::path(annotations::REMEDIATION_MAX_IN_FLIGHT);
        let value = text.parse().map_or_else(|_| IntOrString::String(text.clone()), IntOrString::Int);
        let error = int_or_percent_error(&value, deployment.spec.replicas, path);
        errors.extend(error.map(|error| error.with_value(text)));
    }
    errors.extend(annotation::health_timeouts_error(deployment));
    errors
}
