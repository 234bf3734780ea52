//! What a Machine puts on its Node: finalizer, name label, and the node template, in one write.
//!
//! The template is merged three ways. The Machine records what was applied last ([`applied`](super::applied)), so keys that the
//! template dropped are removed, and those of others stay. On the Node, the annotation with which machine-controller-manager
//! does the same is written for that program; nothing is removed because of it.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf,
};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{Machine, NodeTemplate, Taint, annotations, finalizers, labels};
use nodewright_runtime::object::{annotation, has_finalizer, is_deleting, name};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    applied::{self, AppliedKeys},
    apply_configuration::{self, LONGEST_LABEL},
};
use crate::shared::node::Node;

type Map = BTreeMap<String, String>;

/// What is applied, in the form of machine-controller-manager's annotation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Applied {
    metadata: AppliedMeta,
    spec: AppliedSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AppliedMeta {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: Map,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: Map,
    /// Go always writes this.
    #[serde(rename = "creationTimestamp", skip_serializing)]
    _created: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AppliedSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<Taint>,
}

impl Applied {
    fn of(template: &NodeTemplate) -> Self {
        Self {
            metadata: AppliedMeta {
                annotations: template.metadata.annotations.clone().unwrap_or_default(),
                labels: template.metadata.labels.clone().unwrap_or_default(),
                _created: None,
            },
            spec: AppliedSpec { taints: template.spec.taints.clone().unwrap_or_default() },
        }
    }

    /// The Node's annotation: only to see whether it has to be written.
    fn said(node: &Node) -> Option<Self> {
        serde_json::from_str(annotation(node, annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS)?).ok()
    }
}

/// What brings a Node and its Machine in step: two tested patches, empty when they are.
pub(super) struct NodeSync {
    /// Of the Node.
    pub(super) node: Patch,
    /// Of the Machine: what its Node gets, and the label with the Node's name.
    pub(super) machine: Patch,
}

/// Compares a Node with its Machine.
///
/// Nothing is put on a Node before the Machine's record has it: after a crash in between it could not be removed again. And
/// the record forgets only once the Node is in step.
pub(super) fn sync(machine: &Machine, node: &Node) -> NodeSync {
    let patch = patch(machine, node);
    let (is_in_step, is_covered) = (patch.0.is_empty(), applied::is_covered(machine));
    let record = applied::record(machine, is_in_step).filter(|_| is_in_step || !is_covered);
    let machine =
        Patch(record.into_iter().chain(apply_configuration::relabel(machine)).flat_map(|patch| patch.0).collect());
    NodeSync { node: if is_covered { patch } else { Patch::default() }, machine }
}

/// The tested patch that brings a Node in step with its Machine; empty when it is.
fn patch(machine: &Machine, node: &Node) -> Patch {
    let mut operations = Vec::new();
    if !is_deleting(node) && !has_finalizer(node, finalizers::NODE) {
        operations.extend(nodewright_runtime::finalizers::add(&node.metadata, finalizers::NODE).0);
    }
    let wanted = Applied::of(&machine.spec.node_template);
    let said = Applied::said(node);
    let before = AppliedKeys::recorded(machine).unwrap_or_default();

    let mut wanted_labels = wanted.metadata.labels.clone();
    if name(machine).len() <= LONGEST_LABEL {
        wanted_labels.insert(labels::MACHINE_NAME.to_owned(), name(machine).to_owned());
    }
    operations.extend(merge("labels", node.metadata.labels.as_ref(), &before.labels, &wanted_labels));

    let mut wanted_annotations = wanted.metadata.annotations.clone();
    if wanted != Applied::default() || said.is_some() {
        let text = serde_json::to_string(&wanted).unwrap_or_default();
        let known = said.as_ref() == Some(&wanted);
        let standing = annotation(node, annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS).map(str::to_owned);
        let text = if known { standing.unwrap_or(text) } else { text };
        wanted_annotations.insert(annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS.to_owned(), text);
    }
    let live = node.metadata.annotations.as_ref();
    operations.extend(merge("annotations", live, &before.annotations, &wanted_annotations));
    operations.extend(taints(node, &before, &wanted.spec.taints));
    Patch(operations)
}

/// Single keys need no test: each is ours, and the others are not touched.
fn merge(field: &str, live: Option<&Map>, before: &BTreeSet<String>, wanted: &Map) -> Vec<PatchOperation> {
    let path = |key: &str| PointerBuf::from_tokens(["metadata", field, key]);
    let missing = wanted.iter().filter(|(key, value)| live.and_then(|live| live.get(*key)) != Some(*value));
    let additions: Vec<_> = missing
        .map(|(key, value)| PatchOperation::Add(AddOperation { path: path(key), value: value.as_str().into() }))
        .collect();
    let mut operations = vec![];
    if !additions.is_empty() && live.is_none() {
        // Only while there is no map at all: a new map would replace one that another writer made.
        let path = PointerBuf::from_tokens(["metadata", field]);
        operations.push(PatchOperation::Test(TestOperation { path: path.clone(), value: Value::Null }));
        operations.push(PatchOperation::Add(AddOperation { path, value: json!({}) }));
    }
    operations.extend(additions);
    let dropped = before.iter().filter(|key| !wanted.contains_key(*key));
    let present = dropped.filter(|key| live.is_some_and(|live| live.contains_key(*key)));
    operations.extend(present.map(|key| PatchOperation::Remove(RemoveOperation { path: path(key) })));
    operations
}

/// Taints are one list with several writers. It is replaced as a whole, under a test of what was read.
fn taints(node: &Node, before: &AppliedKeys, wanted: &[Taint]) -> Vec<PatchOperation> {
    let live = node.taints().to_vec();
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
    let mut merged = live.clone();
    merged.retain(|taint| !before.has_taint(taint) || wanted.iter().any(|new| same(new, taint)));
    for taint in wanted {
        match merged.iter_mut().find(|known| same(known, taint)) {
            Some(known) => known.value.clone_from(&taint.value),
            None => merged.push(taint.clone()),
        }
    }
    if merged == live {
        return vec![];
    }
    let path = PointerBuf::from_tokens(["spec", "taints"]);
    // For an API server, a missing list is null.
    let value = if live.is_empty() { Value::Null } else { serde_json::to_value(&live).unwrap_or_default() };
    let test = PatchOperation::Test(TestOperation { path: path.clone(), value });
    let value = serde_json::to_value(&merged).unwrap_or_default();
    vec![test, PatchOperation::Add(AddOperation { path, value })]
}

/// The patch of its status that says that a Node is terminating; `None` when it says so.
///
/// A patch and not an apply: an apply would have to carry the version, which the kubelet and the cordon both change.
pub(super) fn terminating(node: &Node, condition: &NodeCondition) -> Option<Patch> {
    let all = node.status.conditions.as_deref();
    let known = all.unwrap_or_default().iter().position(|known| known.type_ == condition.type_);
    if known.is_some_and(|place| all.unwrap_or_default()[place].status == "True") {
        return None;
    }
    let value = serde_json::to_value(condition).ok()?;
    let conditions = ["status", "conditions"];
    let at = |last: String| PointerBuf::from_tokens(conditions.iter().map(|&token| token.to_owned()).chain([last]));
    Some(Patch(match (known, all) {
        (Some(place), _) => {
            let place = at(place.to_string());
            let path = place.concat(&PointerBuf::from_tokens(["type"]));
            let test = TestOperation { path, value: condition.type_.as_str().into() };
            vec![PatchOperation::Test(test), PatchOperation::Replace(ReplaceOperation { path: place, value })]
        }
        (None, Some(_)) => vec![PatchOperation::Add(AddOperation { path: at("-".to_owned()), value })],
        (None, None) => {
            let path = PointerBuf::from_tokens(conditions);
            let test = TestOperation { path: path.clone(), value: Value::Null };
            vec![PatchOperation::Test(test), PatchOperation::Add(AddOperation { path, value: json!([value]) })]
        }
    }))
}

/// The patch that cordons a Node; `None` when it is.
pub(super) fn cordon(node: &Node) -> Option<Patch> {
    let cordoned = node.spec.unschedulable.unwrap_or_default();
    let path = PointerBuf::from_tokens(["spec", "unschedulable"]);
    (!cordoned).then(|| Patch(vec![PatchOperation::Add(AddOperation { path, value: true.into() })]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn synced(machine: &Machine, live: Value) -> Value {
        let mut live = live;
        let patch = patch(machine, &node(live.clone()));
        nodewright_testing::json_patch(&mut live, &patch).unwrap();
        assert!(super::patch(machine, &node(live.clone())).0.is_empty(), "a second patch has nothing to do");
        live
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "n", "uid": "u"}, "spec": {}})
    }

    #[test]
    fn a_new_node_gets_finalizer_label_and_template_in_one_patch() {
        let machine = machine("m")
            .with(
                "/spec/nodeTemplate",
                json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}},
                "spec": {"taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]}}),
            )
            .build();
        let live = synced(&machine, bare());
        assert_eq!(live["metadata"]["finalizers"], json!([finalizers::NODE]));
        assert_eq!(live["metadata"]["labels"], json!({"a": "1", labels::MACHINE_NAME: "m"}));
        assert_eq!(live["metadata"]["annotations"]["b"], "2");
        assert_eq!(live["spec"]["taints"], json!([{"key": "t", "value": "v", "effect": "NoSchedule"}]));
    }

    #[test]
    fn without_a_template_no_annotation_is_written() {
        let live = synced(&machine("m").build(), bare());
        assert_eq!(live["metadata"].get("annotations"), None);
    }

    #[test]
    fn what_the_template_drops_goes_and_what_others_put_stays() {
        let before = machine("m")
            .with(
                "/spec/nodeTemplate",
                json!({"metadata": {"labels": {"a": "1", "keep": "1"}},
                "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}}),
            )
            .build();
        let mut live = synced(&before, bare());
        live["metadata"]["labels"]["users"] = "x".into();
        live["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "kubelets", "effect": "NoExecute"}));
        let after = machine("m")
            .with("/spec/nodeTemplate", json!({"metadata": {"labels": {"keep": "2"}}}))
            .annotation(annotations::APPLIED_NODE_TEMPLATE, r#"{"labels":["a","keep"],"taints":["t:NoSchedule"]}"#)
            .build();
        let live = synced(&after, live);
        assert_eq!(live["metadata"]["labels"], json!({"keep": "2", "users": "x", labels::MACHINE_NAME: "m"}));
        assert_eq!(live["spec"]["taints"], json!([{"key": "kubelets", "effect": "NoExecute"}]));
    }

    #[test]
    fn a_taint_that_somebody_adds_in_between_makes_the_patch_fail() {
        let machine = machine("m")
            .with("/spec/nodeTemplate", json!({"spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}}))
            .build();
        let mut live = bare();
        live["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
        let patch = patch(&machine, &node(live.clone()));
        live["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "b", "effect": "NoSchedule"}));
        assert!(nodewright_testing::json_patch(&mut live, &patch).is_err());
    }

    #[test]
    fn a_taint_with_a_time_that_jiff_lacks_is_written_back_as_it_was_read() {
        let machine = machine("m")
            .with("/spec/nodeTemplate", json!({"spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}}))
            .build();
        let far = json!({"key": "a", "effect": "NoExecute", "timeAdded": "9999-12-31T23:59:59Z"});
        let odd = json!({"key": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00.5+01:00"});
        let mut live = bare();
        live["spec"]["taints"] = json!([far, odd]);
        let live = synced(&machine, live);
        assert_eq!(live["spec"]["taints"], json!([far, odd, {"key": "t", "effect": "NoSchedule"}]));
    }

    #[test]
    fn a_map_that_somebody_makes_in_between_is_not_replaced() {
        let mut live = bare();
        let patch = patch(&machine("m").build(), &node(live.clone()));
        live["metadata"]["labels"] = json!({"kubelets": "1"});
        assert!(nodewright_testing::json_patch(&mut live, &patch).is_err());
        assert_eq!(live["metadata"]["labels"], json!({"kubelets": "1"}));
    }

    #[test]
    fn a_node_says_once_that_it_goes() {
        let condition: NodeCondition =
            serde_json::from_value(json!({"type": "Terminating", "status": "True"})).unwrap();
        for before in [
            json!(null),
            json!([]),
            json!([{"type": "Ready", "status": "True"}]),
            json!([{"type": "Terminating", "status": "False"}]),
        ] {
            let mut live = bare();
            live["status"] = json!({"conditions": before});
            let patch = terminating(&node(live.clone()), &condition).unwrap();
            nodewright_testing::json_patch(&mut live, &patch).unwrap();
            assert!(terminating(&node(live), &condition).is_none());
        }
    }

    #[test]
    fn the_word_of_the_node_takes_nothing_away() {
        let forged = r#"{"metadata":{"creationTimestamp":null,"labels":{"kubernetes.io/hostname":"n","foreign":"1"},
            "annotations":{"note":"1"}},"spec":{"taints":[{"key":"quarantine","effect":"NoExecute"}]}}"#;
        let mut live = bare();
        live["metadata"]["labels"] = json!({"kubernetes.io/hostname": "n", "foreign": "1"});
        live["metadata"]["annotations"] =
            json!({"note": "1", annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS: forged});
        live["spec"]["taints"] = json!([{"key": "quarantine", "effect": "NoExecute"}]);
        let live = synced(&machine("m").build(), live);
        assert_eq!(
            live["metadata"]["labels"],
            json!({"kubernetes.io/hostname": "n", "foreign": "1", labels::MACHINE_NAME: "m"})
        );
        assert_eq!(live["metadata"]["annotations"]["note"], "1");
        assert_eq!(live["spec"]["taints"], json!([{"key": "quarantine", "effect": "NoExecute"}]));
        let said = live["metadata"]["annotations"][annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS].as_str();
        assert_eq!(said, Some(r#"{"metadata":{},"spec":{}}"#), "machine-controller-manager would believe it");
    }

    #[test]
    fn the_text_of_machine_controller_manager_is_not_rewritten() {
        let template = json!({"metadata": {"labels": {"a": "1"}}});
        let text = r#"{"metadata":{"creationTimestamp":null,"labels":{"a":"1"}},"spec":{}}"#;
        let mut live = bare();
        live["metadata"]["labels"] = json!({"a": "1"});
        live["metadata"]["annotations"] = json!({annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS: text});
        let live = synced(&machine("m").with("/spec/nodeTemplate", template).build(), live);
        assert_eq!(live["metadata"]["annotations"][annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS], text);
    }
}
