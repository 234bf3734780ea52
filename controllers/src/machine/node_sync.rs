//! What a Machine puts on its Node: finalizer, name label, and the node template, in one write.
//!
//! The template is merged three ways: the Machine records the keys that were applied last, so those that the template dropped
//! are removed, and those of others stay. machine-controller-manager's annotation on the Node is written for that program and
//! never trusted: a kubelet may write its Node, and could have a quarantine taint or `kubernetes.io/hostname` removed (compare
//! CVE-2025-5187).

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{Patch, PatchOperation};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{
    Machine, Taint, annotations, finalizers, labels,
    stored::{APPLIED_NODE_TEMPLATE, AppliedKeys, CORDONED, LAST_APPLIED, LastApplied},
    taints as taint_keys,
};
use nodewright_runtime::{
    annotations::set_label,
    object::{annotation, has_finalizer, is_deleting, name},
};
use serde_json::Value;

use crate::shared::{
    node::{self, Node, is_no_schedule},
    ownership::noted_node,
    patch,
};

/// The most bytes of a label's value.
pub(super) const LONGEST_LABEL: usize = 63;

type Map = BTreeMap<String, String>;

/// Patches, empty when Node and Machine are in step.
pub(super) struct NodeSync {
    pub(super) node: Patch,
    /// Of the Machine: what its Node gets, and the label with the Node's name.
    pub(super) machine: Patch,
}

/// What a Node gets from the provider of its VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CloudMarks {
    /// The providerID of a Node that has none.
    pub(super) provider_id: Option<String>,
    /// Labels. Those of the node template take precedence.
    pub(super) labels: Map,
    /// Whether the taint of an uninitialized Node goes.
    pub(super) is_initialized: bool,
    /// The class whose lists have the VM, as [`class_of_node`](crate::shared::node_claims::class_of_node) says. It is written with what
    /// else changes.
    pub(super) class: Option<String>,
    /// Whether the taint of a stopped VM is set; `None` leaves it as it is.
    pub(super) is_stopped: Option<bool>,
}

/// Nothing is put on a Node before the Machine's record has it: after a crash in between it could not be removed again.
pub(super) fn sync(machine: &Machine, node: &Node, marks: &CloudMarks) -> NodeSync {
    let record = Record::of(machine);
    let patch = node_patch(machine, node, marks, &record.known);
    let (is_in_step, is_covered) = (patch.0.is_empty(), record.is_covered());
    let record = record.updated(machine, is_in_step);
    let machine = Patch(record.into_iter().chain(relabel(machine)).flat_map(|patch| patch.0).collect());
    NodeSync { node: if is_covered { patch } else { Patch::default() }, machine }
}

/// Sets the label `node` to the name that the provider gave the Node, if somebody changed it: the cluster autoscaler reads it.
fn relabel(machine: &Machine) -> Option<Patch> {
    let wanted = noted_node(machine).filter(|name| name.len() <= LONGEST_LABEL)?;
    machine.metadata.labels.as_ref()?;
    Some(set_label(&machine.metadata, labels::NODE, Some(wanted)))
}

/// `before`: what was copied to the Node.
fn node_patch(machine: &Machine, node: &Node, marks: &CloudMarks, before: &AppliedKeys) -> Patch {
    let mut operations = Vec::new();
    if let Some(id) = &marks.provider_id {
        let path = ["spec", "providerID"];
        operations.extend([patch::test(&path, Value::Null), patch::set(&path, id.as_str().into())]);
    }
    if !is_deleting(node) && !has_finalizer(node, finalizers::NODE) {
        operations.extend(nodewright_runtime::finalizers::add(&node.metadata, finalizers::NODE).0);
    }
    let template = &machine.spec.node_template;

    let mut wanted_labels = marks.labels.clone();
    wanted_labels.extend(template.metadata.labels.clone().unwrap_or_default());
    if name(machine).len() <= LONGEST_LABEL {
        wanted_labels.insert(labels::MACHINE_NAME.to_owned(), name(machine).to_owned());
    }
    operations.extend(merge("labels", node.metadata.labels.as_ref(), &before.labels, &wanted_labels));

    let mut wanted_annotations = template.metadata.annotations.clone().unwrap_or_default();
    let (wanted, last) = (LastApplied::new(template), LAST_APPLIED.of(node));
    if wanted != LastApplied::default() || last.is_some() {
        // Another program may have written the same in another form.
        let standing = annotation(node, LAST_APPLIED.key).filter(|_| last.as_ref() == Some(&wanted));
        let text = standing.map_or_else(|| wanted.to_string(), str::to_owned);
        wanted_annotations.insert(LAST_APPLIED.key.to_owned(), text);
    }
    let live = node.metadata.annotations.as_ref();
    operations.extend(merge("annotations", live, &before.annotations, &wanted_annotations));
    operations.extend(taints(node, before, template.spec.taints.as_deref().unwrap_or_default(), marks));
    // The class is worth no write of its own: each Node is written when it joins.
    if let (false, Some(class)) = (operations.is_empty(), &marks.class) {
        let wanted = Map::from([(annotations::MACHINE_CLASS.to_owned(), class.clone())]);
        let live = live.or_else(|| (!wanted_annotations.is_empty()).then_some(&wanted_annotations));
        operations.extend(merge("annotations", live, &BTreeSet::new(), &wanted));
    }
    Patch(operations)
}

fn merge(field: &str, live: Option<&Map>, before: &BTreeSet<String>, wanted: &Map) -> Vec<PatchOperation> {
    let mut operations = patch::merge(field, live, wanted);
    let dropped = before.iter().filter(|key| !wanted.contains_key(*key));
    let present = dropped.filter(|key| live.is_some_and(|live| live.contains_key(*key)));
    operations.extend(present.map(|key| patch::remove(&["metadata", field, key])));
    operations
}

fn taints(node: &Node, before: &AppliedKeys, wanted: &[Taint], marks: &CloudMarks) -> Vec<PatchOperation> {
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
    if marks.is_initialized {
        merged.retain(|taint| !is_no_schedule(taint, taint_keys::UNINITIALIZED));
    }
    match marks.is_stopped {
        Some(true) if !merged.iter().any(|taint| is_no_schedule(taint, taint_keys::SHUTDOWN)) => merged.push(stopped()),
        Some(false) => merged.retain(|taint| !is_no_schedule(taint, taint_keys::SHUTDOWN)),
        _ => {}
    }
    node::set_taints(node, &merged)
}

fn stopped() -> Taint {
    Taint { key: taint_keys::SHUTDOWN.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }
}

/// The patch that says in its status that a Node is terminating.
pub(super) fn terminating(node: &Node, condition: &NodeCondition) -> Option<Patch> {
    (!node.is_terminating()).then(|| Patch(node::set_condition(node, condition)))
}

/// The patch that keeps new Pods and new connections of load balancers off a Node that goes, and marks that it was this controller that
/// cordoned it: a Node that a user had cordoned before stays without the mark.
pub(super) fn cordon(node: &Node) -> Option<Patch> {
    let mut operations = vec![];
    if !node.is_cordoned() {
        operations.push(patch::set(&["spec", "unschedulable"], true.into()));
        let (key, text) = CORDONED.written(&true);
        operations.extend(nodewright_runtime::annotations::set(&node.metadata, key, Some(&text)).0);
    }
    let live = node.metadata.labels.as_ref();
    if live.is_none_or(|live| !live.contains_key(labels::EXCLUDE_FROM_LOAD_BALANCERS)) {
        let excluded = Map::from([(labels::EXCLUDE_FROM_LOAD_BALANCERS.to_owned(), String::new())]);
        operations.extend(merge("labels", live, &BTreeSet::new(), &excluded));
    }
    (!operations.is_empty()).then_some(Patch(operations))
}

/// The Machine's record of what was copied to its Node.
struct Record {
    known: AppliedKeys,
    /// What it is to be.
    wanted: AppliedKeys,
}

impl Record {
    fn of(machine: &Machine) -> Self {
        let known = APPLIED_NODE_TEMPLATE.of(machine).unwrap_or_default();
        Self { known, wanted: AppliedKeys::new(&machine.spec.node_template) }
    }

    fn is_covered(&self) -> bool {
        self.known.covers(&self.wanted)
    }

    /// Brings it up to date: it only grows before the Node is in step, and shrinks then.
    fn updated(self, machine: &Machine, is_in_step: bool) -> Option<Patch> {
        if self.wanted == self.known || !is_in_step && self.is_covered() {
            return None;
        }
        let next = if is_in_step { self.wanted } else { self.known.and(self.wanted) };
        let text = next.to_text();
        let key = annotations::APPLIED_NODE_TEMPLATE;
        Some(nodewright_runtime::annotations::set(&machine.metadata, key, text.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{MachineBuilder, machine};

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn patched(machine: &Machine, node: &Node) -> Patch {
        node_patch(machine, node, &CloudMarks::default(), &Record::of(machine).known)
    }

    fn is_covered(machine: &Machine) -> bool {
        Record::of(machine).is_covered()
    }

    fn record(machine: &Machine, is_in_step: bool) -> Option<Patch> {
        Record::of(machine).updated(machine, is_in_step)
    }

    fn synced(machine: &Machine, live: Value) -> Value {
        let mut live = live;
        let patch = patched(machine, &node(live.clone()));
        nodewright_testing::json_patch(&mut live, &patch).unwrap();
        assert!(patched(machine, &node(live.clone())).0.is_empty(), "a second patch has nothing to do");
        live
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "n", "uid": "u"}, "spec": {}})
    }

    #[test]
    fn a_cordon_is_marked_unless_somebody_else_was_first() {
        let mut live = bare();
        let patch = cordon(&node(live.clone())).unwrap();
        nodewright_testing::json_patch(&mut live, &patch).unwrap();
        assert_eq!(
            (&live["spec"]["unschedulable"], &live["metadata"]["annotations"]["nodewright.dev/cordoned"]),
            (&json!(true), &json!("true"))
        );
        assert_eq!(live["metadata"]["labels"], json!({labels::EXCLUDE_FROM_LOAD_BALANCERS: ""}));
        assert!(cordon(&node(live)).is_none());
        let mut theirs = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
        let patch = cordon(&node(theirs.clone())).unwrap();
        nodewright_testing::json_patch(&mut theirs, &patch).unwrap();
        assert_eq!(theirs["metadata"].get("annotations"), None, "a user has cordoned it");
        assert_eq!(theirs["metadata"]["labels"], json!({labels::EXCLUDE_FROM_LOAD_BALANCERS: ""}));
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
        let patch = patched(&machine, &node(live.clone()));
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
        let patch = patched(&machine("m").build(), &node(live.clone()));
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
        annotation(machine, annotations::APPLIED_NODE_TEMPLATE)
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
            let garbled = templated(template.clone()).annotation(annotations::APPLIED_NODE_TEMPLATE, garbled).build();
            assert_eq!(APPLIED_NODE_TEMPLATE.of(&garbled), None);
            assert_eq!(text(&after(&garbled, false, &template)), Some(r#"{"labels":["b"]}"#));
        }
    }

    #[test]
    fn what_another_writer_put_there_in_between_is_not_overwritten() {
        let machine = templated(json!({"metadata": {"labels": {"a": "1"}}})).build();
        let mut live = serde_json::to_value(&machine).unwrap();
        live["metadata"]["annotations"] = json!({annotations::APPLIED_NODE_TEMPLATE: "{}"});
        assert!(nodewright_testing::json_patch(&mut live, &record(&machine, false).unwrap()).is_err());
    }
}
