//! What was put on a Node, recorded on its Machine.
//!
//! A kubelet may write its Node, and with it the annotation that says what was applied last. A controller that trusts this
//! annotation can be made to remove a quarantine taint or `kubernetes.io/hostname` (compare CVE-2025-5187). A kubelet cannot
//! write the Machine. The record there has only keys: they are enough to know what may be removed.

use std::collections::BTreeSet;

use json_patch::Patch;
use nodewright_api::{Machine, NodeTemplate, Taint, annotations as keys};
use nodewright_runtime::{annotations, object::annotation};
use serde::{Deserialize, Serialize};

/// The keys of labels and annotations, and the taints as `key:effect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AppliedKeys {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) annotations: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) labels: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    taints: BTreeSet<String>,
}

impl AppliedKeys {
    /// What a template applies.
    pub(super) fn of(template: &NodeTemplate) -> Self {
        Self {
            annotations: template.metadata.annotations.iter().flatten().map(|(key, _)| key.clone()).collect(),
            labels: template.metadata.labels.iter().flatten().map(|(key, _)| key.clone()).collect(),
            taints: template.spec.taints.iter().flatten().map(entry).collect(),
        }
    }

    /// The record; `None` for a Machine that was taken over and has none yet.
    pub(super) fn recorded(machine: &Machine) -> Option<Self> {
        serde_json::from_str(annotation(machine, keys::APPLIED_NODE_TEMPLATE)?).ok()
    }

    /// The annotation's value; `None` if there is nothing to record.
    pub(super) fn to_text(&self) -> Option<String> {
        (*self != Self::default()).then(|| serde_json::to_string(self).ok()).flatten()
    }

    /// Whether a taint was applied.
    pub(super) fn has_taint(&self, taint: &Taint) -> bool {
        self.taints.contains(&entry(taint))
    }

    fn and(mut self, other: Self) -> Self {
        self.annotations.extend(other.annotations);
        self.labels.extend(other.labels);
        self.taints.extend(other.taints);
        self
    }
}

fn entry(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// Whether the Machine's record has all that its template applies. Nothing is put on a Node before that: after a crash in
/// between it could not be removed again.
pub(super) fn is_covered(machine: &Machine) -> bool {
    let known = AppliedKeys::recorded(machine).unwrap_or_default();
    let wanted = AppliedKeys::of(&machine.spec.node_template);
    known.clone().and(wanted) == known
}

/// The patch that brings the record up to date; `None` when it is. Before the Node is in step with the Machine, the record
/// only grows; then it shrinks to what the template applies, because others may use the keys that were dropped.
pub(super) fn record(machine: &Machine, is_in_step: bool) -> Option<Patch> {
    let known = AppliedKeys::recorded(machine).unwrap_or_default();
    let wanted = AppliedKeys::of(&machine.spec.node_template);
    let next = if is_in_step { wanted } else { known.clone().and(wanted) };
    if next == known {
        return None;
    }
    let text = next.to_text();
    Some(annotations::set(&machine.metadata, keys::APPLIED_NODE_TEMPLATE, text.as_deref()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{MachineBuilder, machine};

    fn templated(template: Value) -> MachineBuilder {
        machine("m").with("/spec/nodeTemplate", template)
    }

    /// The Machine after the patch, with another template.
    fn after(machine: &Machine, is_in_step: bool, template: &Value) -> Machine {
        let mut live = serde_json::to_value(machine).unwrap();
        if let Some(patch) = record(machine, is_in_step) {
            nodewright_testing::json_patch(&mut live, &patch).unwrap();
        }
        live["spec"]["nodeTemplate"] = template.clone();
        serde_json::from_value(live).unwrap()
    }

    fn text(machine: &Machine) -> Option<&str> {
        annotation(machine, keys::APPLIED_NODE_TEMPLATE)
    }

    #[test]
    fn only_keys_are_remembered_and_an_empty_template_costs_nothing() {
        let template = json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "long"}},
            "spec": {"taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]}});
        let recorded = after(&templated(template.clone()).build(), false, &template);
        assert_eq!(text(&recorded), Some(r#"{"annotations":["b"],"labels":["a"],"taints":["t:NoSchedule"]}"#));
        assert!(is_covered(&recorded) && record(&recorded, true).is_none());
        let plain = machine("m").build();
        assert!(is_covered(&plain) && record(&plain, false).is_none() && record(&plain, true).is_none());
    }

    #[test]
    fn the_record_grows_before_the_node_changes_and_shrinks_after() {
        let (first, second) =
            (json!({"metadata": {"labels": {"a": "1"}}}), json!({"metadata": {"labels": {"b": "1"}}}));
        let changed = after(&templated(first.clone()).build(), false, &second);
        assert!(!is_covered(&changed));
        let grown = after(&changed, false, &second);
        assert_eq!(text(&grown), Some(r#"{"labels":["a","b"]}"#));
        assert!(is_covered(&grown) && record(&grown, false).is_none());
        let done = after(&grown, true, &json!({}));
        assert_eq!(text(&done), Some(r#"{"labels":["b"]}"#));
        assert_eq!(text(&after(&done, true, &json!({}))), None);
    }

    #[test]
    fn a_record_that_cannot_be_read_takes_nothing_away_and_is_replaced() {
        for garbled in ["{", r#"{"labels":"a"}"#, r#"{"metadata":{"labels":{"a":"1"}}}"#] {
            let template = json!({"metadata": {"labels": {"b": "1"}}});
            let garbled = templated(template.clone()).annotation(keys::APPLIED_NODE_TEMPLATE, garbled).build();
            assert_eq!(AppliedKeys::recorded(&garbled), None);
            assert_eq!(text(&after(&garbled, false, &template)), Some(r#"{"labels":["b"]}"#));
        }
    }

    #[test]
    fn what_another_writer_put_there_in_between_is_not_overwritten() {
        let machine = templated(json!({"metadata": {"labels": {"a": "1"}}})).build();
        let mut live = serde_json::to_value(&machine).unwrap();
        live["metadata"]["annotations"] = json!({keys::APPLIED_NODE_TEMPLATE: "{}"});
        assert!(nodewright_testing::json_patch(&mut live, &record(&machine, false).unwrap()).is_err());
    }
}
