//! Rules of a MachineConfigPool.

use super::machine_deployment::int_or_percent_error;
use super::{Validate, annotation, selector};
use crate::field::{FieldError, FieldPath};
use crate::int_or_percent;
use crate::machine_config::{MachineConfigPool, ROLE, WORKER};
use crate::selector::is_empty;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

/// The name of a pool is the value of a label: the role of the MachineConfig that a KubeletConfig makes for it.
const LONGEST_NAME: usize = 63;
/// The roles whose pools build on no other.
const OWN_ROLES: [&str; 3] = ["arbiter", "master", WORKER];
const NO_WORKER: &str = "must include the role worker, unless it selects the role master or arbiter alone by matchLabels: \
     other roles build on the MachineConfigs of worker";

impl Validate for MachineConfigPool {
    fn validate(&self) -> Vec<FieldError> {
        let spec = FieldPath::new("spec");
        let mut errors: Vec<_> = name_error(self).into_iter().collect();
        errors.extend(config_selector_errors(self.spec.machine_config_selector.as_ref(), &spec));
        let nodes = self.spec.node_selector.as_ref();
        errors.extend(nodes.into_iter().flat_map(|nodes| selector::syntax_errors(nodes, &spec.child("nodeSelector"))));
        errors.extend(max_unavailable_error(self.spec.max_unavailable.as_ref(), spec.child("maxUnavailable")));
        errors
    }

    fn warnings(&self) -> Vec<String> {
        annotation::drain_warnings(self)
    }
}

fn name_error(pool: &MachineConfigPool) -> Option<FieldError> {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let path = FieldPath::new("metadata").child("name");
    (name.len() > LONGEST_NAME).then(|| FieldError::too_long(path, name, LONGEST_NAME))
}

fn config_selector_errors(selector: Option<&LabelSelector>, spec: &FieldPath) -> Vec<FieldError> {
    let path = spec.child("machineConfigSelector");
    let Some(selector) = selector.filter(|selector| !is_empty(Some(selector))) else {
        let detail = "an empty selector would select all MachineConfigs, and selects none; select by the label \
                      machineconfiguration.openshift.io/role";
        return vec![FieldError::required(path, detail)];
    };
    let errors = selector::syntax_errors(selector, &path);
    if errors.is_empty() && !includes_worker(selector) {
        return vec![FieldError::invalid(path, json!(selector), NO_WORKER)];
    }
    errors
}

/// Whether a pool builds on the role `worker`, or is of a role of its own. As OpenShift's policy
/// `custom-machine-config-pool-selector` has it, one requirement on the role decides.
fn includes_worker(selector: &LabelSelector) -> bool {
    let label = selector.match_labels.as_ref().and_then(|labels| labels.get(ROLE));
    let mut requirements = selector.match_expressions.iter().flatten();
    label.is_some_and(|role| OWN_ROLES.contains(&role.as_str())) || requirements.any(admits_worker)
}

fn admits_worker(requirement: &LabelSelectorRequirement) -> bool {
    let has_worker = requirement.values.iter().flatten().any(|value| value == WORKER);
    requirement.key == ROLE
        && match requirement.operator.as_str() {
            "In" => has_worker,
            "NotIn" => !has_worker,
            operator => operator == "Exists",
        }
}

fn max_unavailable_error(value: Option<&IntOrString>, path: FieldPath) -> Option<FieldError> {
    let value = value?;
    if int_or_percent::is_above_all(value) {
        return Some(FieldError::invalid(path, json!(value), int_or_percent::ABOVE_ALL));
    }
    // Of any number of nodes: only the form counts.
    int_or_percent_error(value, 100, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_drain_that_a_pool_does_not_get_is_a_warning() {
        let warnings = |policy: Option<&str>, timeout: Option<&str>| {
            let pairs = [("nodewright.dev/drain-policy", policy), ("nodewright.dev/drain-timeout", timeout)];
            let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
            let mut pool = MachineConfigPool::default();
            pool.metadata.annotations = Some(pairs.collect());
            pool.warnings()
        };
        assert!(warnings(None, None).is_empty() && warnings(Some("Force"), Some("2h")).is_empty());
        for (policy, timeout, text) in [
            (Some("force"), Some("2h"), "\"force\" has no effect: drains are forced with \"Force\" alone"),
            (Some("Force"), None, "\"Force\" has no effect without nodewright.dev/drain-timeout"),
            (Some("Force"), Some("soon"), "\"soon\" has no effect: it "),
            (Some("Force"), Some("0s"), "\"0s\" has no effect: it must be greater than 0s"),
            (None, Some("2h"), "\"2h\" has no effect without nodewright.dev/drain-policy=Force"),
        ] {
            let found = warnings(policy, timeout);
            assert!(found.len() == 1 && found[0].contains(text), "{found:?}");
        }
    }
}
