//! The fields of a Node that the controllers read.

use std::collections::BTreeMap;

use json_patch::PatchOperation;
use k8s_openapi::{
    api::core::v1::NodeCondition,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use nodewright_api::{RawJson, Taint, annotations, conditions, lenient, taints, text::Text};
use nodewright_runtime::{cache::Change, object::annotation};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::patch;

/// The annotations that keep the cluster autoscaler from removing a Node: its own, and that which says that a controller set it.
const AUTOSCALER_MARKS: [&str; 2] = [annotations::SCALE_DOWN_DISABLED, annotations::SCALE_DOWN_DISABLED_BY_MCM];

/// Keeps the cluster autoscaler from removing a Node.
pub(crate) fn mark_for_autoscaler(node: &Node) -> Vec<PatchOperation> {
    patch::annotate(&node.metadata, &AUTOSCALER_MARKS.map(|key| (key, "true".to_owned())).into()).0
}

/// The annotations by which a controller keeps the cluster autoscaler from removing a Node; none if somebody else does.
pub(crate) fn autoscaler_marks(node: &Node) -> impl Iterator<Item = &'static str> {
    let is_ours = annotation(node, annotations::SCALE_DOWN_DISABLED_BY_MCM).is_some();
    AUTOSCALER_MARKS.into_iter().filter(move |_| is_ours)
}

/// A Node without the fields that no controller reads: its images, versions and most of its capacity, which are most of it.
///
/// It decodes whatever an API server stores: times are kept as text, or read as the nearest one in range.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What it is to be.
    pub spec: NodeSpec,
    /// What it is.
    pub status: NodeStatus,
}

nodewright_runtime::view_of!(k8s_openapi::api::core::v1::Node, Node);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    #[serde(deserialize_with = "lenient::exact")]
    pub taints: Option<Vec<Taint>>,
    pub unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    #[serde(deserialize_with = "lenient::node_conditions")]
    pub conditions: Option<Vec<NodeCondition>>,
    pub volumes_attached: Option<Vec<Volume>>,
    /// Its addresses, as text: few plans read them.
    pub addresses: Option<RawJson>,
    /// Its extended resources. The others, such as `cpu`, are left out to save memory.
    #[serde(deserialize_with = "extended_resources")]
    pub capacity: Option<BTreeMap<String, String>>,
}

fn extended_resources<'de, D: Deserializer<'de>>(decoder: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    let all = Option::<BTreeMap<Text<'de>, Quantity>>::deserialize(decoder)?;
    let own = |all: BTreeMap<Text<'de>, Quantity>| {
        all.into_iter()
            .filter(|(Text(name), _)| name.contains('/'))
            .map(|(Text(name), value)| (name.into_owned(), value.0))
            .collect()
    };
    Ok(all.map(own))
}

/// A volume. None of its fields is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Volume {}

impl Node {
    /// Its conditions.
    pub fn conditions(&self) -> &[NodeCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// Its taints.
    pub fn taints(&self) -> &[Taint] {
        self.spec.taints.as_deref().unwrap_or_default()
    }

    /// Whether no Pod may start on it.
    pub(crate) fn is_cordoned(&self) -> bool {
        self.spec.unschedulable == Some(true)
    }

    /// Whether a drain of it has begun that ends with its deletion.
    pub fn is_terminating(&self) -> bool {
        self.condition(conditions::node::TERMINATING).is_some_and(|condition| condition.status == "True")
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions().iter().find(|condition| condition.type_ == kind)
    }

    /// Whether a change is that a kubelet has posted the status of a healthy Node again, which most changes of Nodes are: Ready,
    /// all other conditions of kubelets False, and nothing but times of heartbeats differs. Of an unhealthy Node a heartbeat is news.
    pub(crate) fn is_heartbeat(change: &Change<Self>) -> bool {
        let (Some(old), Some(new)) = (change.old.as_deref(), change.new.as_deref()) else { return false };
        let is_healthy = |condition: &NodeCondition| match condition.type_.as_str() {
            conditions::node::READY => condition.status == "True",
            conditions::node::PRESERVED | conditions::node::IN_PLACE_UPDATE => true,
            _ => condition.status == "False",
        };
        new.conditions().iter().all(is_healthy)
            && old.conditions().len() == new.conditions().len()
            && old.conditions().iter().zip(new.conditions()).all(|(old, new)| is_same_but_heartbeat(old, new))
            && metadata(old) == metadata(new)
            && old.spec == new.spec
            && old.status.volumes_attached == new.status.volumes_attached
            && old.status.capacity == new.status.capacity
            && old.status.addresses == new.status.addresses
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition(conditions::node::READY).is_some_and(|ready| ready.status == "True")
    }

    /// Whether a cloud controller manager, or this one, has yet to initialize it.
    pub(crate) fn is_uninitialized(&self) -> bool {
        self.taints().iter().any(|taint| is_no_schedule(taint, taints::UNINITIALIZED))
    }

    /// The provider's id of its VM, once it is known.
    pub fn provider_id(&self) -> Option<&str> {
        self.spec.provider_id.as_deref().filter(|id| !id.is_empty())
    }
}

/// The operations that set a condition; none if it is there with the same status, reason and message. An apply would carry the version,
/// which kubelets change.
pub(crate) fn set_condition(node: &Node, condition: &NodeCondition) -> Vec<PatchOperation> {
    let all = node.status.conditions.as_deref();
    let known = all.unwrap_or_default().iter().position(|known| known.type_ == condition.type_);
    let gist = |it: &NodeCondition| (it.status.clone(), it.reason.clone(), it.message.clone());
    if known.is_some_and(|at| gist(&all.unwrap_or_default()[at]) == gist(condition)) {
        return vec![];
    }
    let Ok(value) = serde_json::to_value(condition) else { return vec![] };
    let path = ["status", "conditions"];
    match (known, all) {
        (Some(at), _) => {
            let (at, kind) = (at.to_string(), condition.type_.as_str().into());
            let path = ["status", "conditions", &at];
            vec![patch::test(&["status", "conditions", &at, "type"], kind), patch::replace(&path, value)]
        }
        (None, Some(_)) => vec![patch::set(&["status", "conditions", "-"], value)],
        (None, None) => vec![patch::test(&path, Value::Null), patch::set(&path, json!([value]))],
    }
}

/// The operations that replace the taints. They are one list with several writers, so it is replaced as a whole, under a test of what
/// was read; none if the list stays the same.
pub(crate) fn set_taints(node: &Node, all: &[Taint]) -> Vec<PatchOperation> {
    let live = node.taints();
    if all == live {
        return vec![];
    }
    // For an API server, a missing list is null.
    let seen = if live.is_empty() { Value::Null } else { json!(live) };
    let path = ["spec", "taints"];
    vec![patch::test(&path, seen), patch::set(&path, json!(all))]
}

/// Whether it is the taint of this key that keeps new Pods away.
pub(crate) fn is_no_schedule(taint: &Taint, key: &str) -> bool {
    taint.key == key && taint.effect == "NoSchedule"
}

/// The operations that add a taint; none if one that stands for it is there. Each plan asks: it is made only for a change.
pub(crate) fn add_taint(
    node: &Node,
    is_it: impl Fn(&Taint) -> bool,
    make: impl FnOnce() -> Taint,
) -> Vec<PatchOperation> {
    if node.taints().iter().any(is_it) {
        return vec![];
    }
    set_taints(node, &[node.taints(), &[make()]].concat())
}

/// The operations that remove taints; none if there is none.
pub(crate) fn remove_taint(node: &Node, is_it: impl Fn(&Taint) -> bool) -> Vec<PatchOperation> {
    // The list is copied only for a change.
    if !node.taints().iter().any(&is_it) {
        return vec![];
    }
    let others = node.taints().iter().filter(|taint| !is_it(taint)).cloned();
    set_taints(node, &others.collect::<Vec<_>>())
}

/// The operations that let Pods start on a Node again; none if they may.
pub(crate) fn uncordon(node: &Node) -> Vec<PatchOperation> {
    if !node.is_cordoned() {
        return vec![];
    }
    let path = ["spec", "unschedulable"];
    vec![patch::test(&path, true.into()), patch::remove(&path)]
}

/// The metadata that controllers read.
fn metadata(node: &Node) -> impl PartialEq {
    let meta = &node.metadata;
    (&meta.uid, &meta.deletion_timestamp, &meta.labels, &meta.annotations, &meta.finalizers, &meta.owner_references)
}

fn is_same_but_heartbeat(a: &NodeCondition, b: &NodeCondition) -> bool {
    let NodeCondition { type_, status, reason, message, last_transition_time, last_heartbeat_time: _ } = a;
    (type_, status, reason, message, last_transition_time)
        == (&b.type_, &b.status, &b.reason, &b.message, &b.last_transition_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_repeats_a_healthy_status_is_a_heartbeat() {
        let node = |version: &str, heartbeat: &str, (pointer, value): (&str, serde_json::Value)| {
            let ready = |status: &str| serde_json::json!({"type": "Ready", "status": status, "reason": "Kubelet"});
            let mut object = serde_json::json!({
                "metadata": {"name": "a", "uid": "u", "resourceVersion": version, "labels": {"a": "b"}},
                "spec": {"providerID": "x:///i-1", "taints": [{"key": "k", "effect": "NoSchedule"}]},
                "status": {"capacity": {"x.io/gpu": "1"}, "volumesAttached": [{"name": "v"}], "conditions": [
                    ready("True"), {"type": "DiskPressure", "status": "False"}]}
            });
            object["status"]["conditions"][0]["lastHeartbeatTime"] = heartbeat.into();
            if !pointer.is_empty() {
                *object.pointer_mut(pointer).unwrap() = value;
            }
            std::sync::Arc::new(serde_json::from_value::<Node>(object).unwrap())
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z");
        let nothing = || ("", serde_json::Value::Null);
        let old = node("1", first, nothing());
        let is_heartbeat = |old: &std::sync::Arc<Node>, new: std::sync::Arc<Node>| {
            Node::is_heartbeat(&Change { old: Some(old.clone()), new: Some(new) })
        };
        assert!(is_heartbeat(&old, node("2", second, nothing())));
        for (pointer, value) in [
            ("/metadata/uid", "v".into()),
            ("/metadata/labels", serde_json::json!({})),
            ("/spec/providerID", "x:///i-2".into()),
            ("/spec/taints", serde_json::json!([])),
            ("/status/capacity", serde_json::json!({})),
            ("/status/volumesAttached", serde_json::json!([])),
            ("/status/conditions/0/status", "Unknown".into()),
            ("/status/conditions/0/reason", "Else".into()),
            ("/status/conditions/1", serde_json::json!({"type": "PIDPressure", "status": "False"})),
            ("/status/conditions/1/status", "True".into()),
        ] {
            let changed = node("2", second, (pointer, value));
            assert!(!is_heartbeat(&old, changed.clone()), "{pointer}");
            let is_unhealthy = changed.conditions().iter().any(|it| (it.type_ == "Ready") != (it.status == "True"));
            assert_eq!(
                is_heartbeat(&changed, changed.clone()),
                !is_unhealthy,
                "of an unhealthy node each is news: {pointer}"
            );
        }
        assert!(!Node::is_heartbeat(&Change { old: None, new: Some(old.clone()) }));
        assert!(!Node::is_heartbeat(&Change { old: Some(old), new: None }));
    }

    #[test]
    fn times_beyond_jiffs_range_are_no_obstacle() {
        let far = "9999-12-31T23:59:59Z";
        let taint = serde_json::json!({"key": "k", "effect": "NoSchedule", "timeAdded": far});
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a"}, "spec": {"taints": [taint]}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": far, "lastTransitionTime": far}]}
        }))
        .unwrap();
        assert_eq!(serde_json::to_value(node.taints()).unwrap(), serde_json::json!([taint]), "as it was read");
        assert!(node.conditions()[0].last_heartbeat_time.is_some());
    }

    #[test]
    fn a_node_is_read_as_far_as_it_is_needed() {
        let node: Node = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"},
            "spec": {"providerID": "x:///i-1", "unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": null},
            "status": {"images": [{"names": ["a"]}], "volumesAttached": [{"name": "v", "devicePath": "/d"}],
                "conditions": [{"type": "Ready", "status": "True"}]}
        }))
        .unwrap();
        assert_eq!(
            (node.provider_id(), node.taints().len(), node.spec.unschedulable),
            (Some("x:///i-1"), 0, Some(true))
        );
        assert_eq!(
            (node.conditions()[0].type_.as_str(), node.status.volumes_attached.as_ref().map(Vec::len)),
            ("Ready", Some(1))
        );
        let bare: Node = serde_json::from_str(r#"{"metadata":{"name":"b"},"spec":{"providerID":""}}"#).unwrap();
        assert_eq!((bare.provider_id(), bare.conditions().len()), (None, 0));
    }
}
