//! Types that several kinds share.

use crate::lenient;
use crate::validation::rules;
use crate::wire::{is_default, null_as_default, wire_string};
use garde::Validate;
use k8s_openapi::api::core::v1::NodeConfigSource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Refers to the class of a machine, in the namespace of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct ClassRef {
    /// API group of the class. Changing it in a template starts a rollout.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub api_group: String,
    /// Kind of the class. Required; the value is not used.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub kind: String,
    /// Name of the class. Required. Changing it in a template starts a rollout.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    #[schemars(length(max = 253))]
    #[garde(custom(rules::object_name))]
    pub name: String,
}

/// The annotations, labels and taints that are copied to the Node of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplate {
    /// Annotations and labels for the Node.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub metadata: ObjectMeta,
    /// Spec of the Node. Only its taints are used.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::node_spec")]
    pub spec: NodeTemplateSpec,
}

/// The spec of a Node. Only its taints are used. The other fields are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplateSpec {
    /// Deprecated in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_source: Option<NodeConfigSource>,
    /// Deprecated in Kubernetes.
    #[serde(rename = "externalID", skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// Range of the addresses of Pods.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// Ranges of the addresses of Pods.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Option::is_none")]
    pub pod_cidrs: Option<Vec<String>>,
    /// ID of the VM at the provider.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Taints of the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// Whether the Node is cordoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
}

/// A taint of a Node.
///
/// It is written as it was read, because a JSON patch tests the list of taints that it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// What happens to Pods that do not tolerate the taint.
    #[serde(deserialize_with = "null_as_default")]
    pub effect: String,
    /// Key of the taint.
    #[serde(deserialize_with = "null_as_default")]
    pub key: String,
    /// When the taint was added. A string, because Go writes times that jiff cannot represent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

wire_string! {
    /// State of the last operation.
    pub enum OperationState {
        /// Not recorded.
        #[default]
        Unset = "",
        /// The operation is in progress.
        Processing = "Processing",
        /// The operation failed. The controller retries it, unless the machine has failed.
        Failed = "Failed",
        /// The operation succeeded.
        Successful = "Successful",
    }
}

wire_string! {
    /// Type of the last operation.
    pub enum OperationType {
        /// Not recorded.
        #[default]
        Unset = "",
        /// The machine is being created.
        Create = "Create",
        /// Not used.
        Update = "Update",
        /// The machine is being updated in place.
        InPlaceUpdate = "InPlaceUpdate",
        /// The Node is being drained for an update in place or for preservation.
        DrainNode = "DrainNode",
        /// The health of the Node has changed.
        HealthCheck = "HealthCheck",
        /// The machine is being deleted.
        Delete = "Delete",
    }
}

wire_string! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        /// Unknown.
        #[default]
        Unknown = "Unknown",
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
    }
}

/// A condition of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as `Frozen`.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Status of the condition: True, False or Unknown.
    pub status: ConditionStatus,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_transition_time: Option<Time>,
    /// Reason of the status, in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reason: String,
    /// Message for users.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub message: String,
}

/// The last operation on an object, for users and the cluster autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastOperation {
    /// Description of the operation, for users. Nodewright does not read it.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub description: String,
    /// Code of the failure, such as `ResourceExhausted`. Absent when the operation did not fail.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub error_code: String,
    /// When the operation was last updated.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,
    /// State of the operation.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub state: OperationState,
    /// Type of the operation.
    #[serde(rename = "type", skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub operation_type: OperationType,
}

/// A machine in the status of its MachineSet or MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSummary {
    /// Name of the machine.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub name: String,
    /// ID of the VM at the provider.
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub provider_id: String,
    /// Last operation on the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,
    /// Name of the MachineSet that controls the machine.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub owner_ref: String,
}
