//! The fields of a Node that the controllers read.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    api::core::v1::NodeCondition,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use nodewright_api::{Taint, conditions, lenient};
use serde::{Deserialize, Deserializer};

/// A Node without the fields that no controller reads: its images, addresses, versions and most of its capacity, which are most
/// of it.
///
/// It decodes whatever an API server stores: times are kept as text, or read as the nearest one in range.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Node)]
#[serde(default)]
pub struct Node {
    pub metadata: ObjectMeta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    pub taints: Option<Vec<Taint>>,
    pub unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    #[serde(deserialize_with = "lenient::node_conditions")]
    pub conditions: Option<Vec<NodeCondition>>,
    pub volumes_attached: Option<Vec<Volume>>,
    /// Its extended resources. The others, such as `cpu`, are left out to save memory.
    #[serde(deserialize_with = "extended_resources")]
    pub capacity: Option<BTreeMap<String, String>>,
}

fn extended_resources<'de, D: Deserializer<'de>>(decoder: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    let all = Option::<BTreeMap<Cow<'de, str>, Quantity>>::deserialize(decoder)?;
    let own = |all: BTreeMap<Cow<'de, str>, Quantity>| {
        all.into_iter()
            .filter(|(name, _)| name.contains('/'))
            .map(|(name, value)| (name.into_owned(), value.0))
            .collect()
    };
    Ok(all.map(own))
}

/// A volume. None of its fields is read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Volume {}

impl Node {
    pub fn conditions(&self) -> &[NodeCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    pub fn taints(&self) -> &[Taint] {
        self.spec.taints.as_deref().unwrap_or_default()
    }

    /// Whether a drain of it has begun that ends with its deletion.
    pub fn is_terminating(&self) -> bool {
        let terminating = self.conditions().iter().find(|condition| condition.type_ == conditions::node::TERMINATING);
        terminating.is_some_and(|condition| condition.status == "True")
    }

    /// The provider's id of its VM, once it is known.
    pub fn provider_id(&self) -> Option<&str> {
        self.spec.provider_id.as_deref().filter(|id| !id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
