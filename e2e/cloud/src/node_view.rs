//! The parts of a Node that a kubelet reads.

use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use nodewright_api::lenient;
use serde::Deserialize;

/// The parts of a Node that a kubelet reads. Other clients may have written times into the Node that the complete type cannot
/// decode; this type decodes every Node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Node)]
#[serde(default)]
pub(crate) struct NodeView {
    pub(crate) metadata: ObjectMeta,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    #[serde(deserialize_with = "lenient::node_conditions")]
    conditions: Option<Vec<NodeCondition>>,
}

impl NodeView {
    pub(crate) fn conditions(&self) -> &[NodeCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// The provider id of the VM; `None` while the Node has none.
    pub(crate) fn provider_id(&self) -> Option<&str> {
        self.spec.provider_id.as_deref().filter(|id| !id.is_empty())
    }
}
