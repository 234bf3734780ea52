//! What several kinds share: templates, references, and the record of the last operation.

use crate::lenient;
use crate::machine::MachineSpec;
use crate::validation::rules;
use crate::wire::{is_default, null_as_default, wire_string};
use garde::Validate;
use k8s_openapi::api::core::v1::NodeConfigSource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A reference to the class of a machine, in the namespace of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct ClassRef {
    /// API group of the class. Informational.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub api_group: String,

    /// Kind of the class: required, but only its presence counts.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub kind: String,

    /// Name of the class: required. A change of the name in a template starts a rollout.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    #[schemars(length(max = 253))]
    #[garde(custom(rules::object_name))]
    pub name: String,
}

/// What is copied onto the Node of a machine: annotations, labels and taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplate {
    /// Annotations and labels for the Node.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub metadata: ObjectMeta,

    /// The Node's spec, of which only the taints are used.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::node_spec")]
    pub spec: NodeTemplateSpec,
}

/// The spec of a Node. Only its taints are used; the rest is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplateSpec {
    /// Deprecated in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_source: Option<NodeConfigSource>,
    /// Deprecated in Kubernetes.
    #[serde(rename = "externalID", skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The range of the Pods' addresses.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// The ranges of the Pods' addresses.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Option::is_none")]
    pub pod_cidrs: Option<Vec<String>>,
    /// The provider's id of the instance.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// What keeps Pods away that do not tolerate it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// Whether the Node is cordoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
}

/// What keeps Pods away from a Node that do not tolerate it.
///
/// It is written as it was read, its time too: a list of taints is replaced under a test of the list that stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// What Pods that do not tolerate the taint have to expect.
    #[serde(deserialize_with = "null_as_default")]
    pub effect: String,
    /// The key.
    #[serde(deserialize_with = "null_as_default")]
    pub key: String,
    /// When it was added, as it is written. Go has times that jiff has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What a machine that is created from the template will look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct MachineTemplate {
    /// Labels and annotations of the machines.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub metadata: ObjectMeta,

    /// The machines' spec.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub spec: MachineSpec,
}

wire_string! {
    /// How far the last operation has come.
    pub enum OperationState {
        /// Nothing is recorded.
        #[default]
        Unset = "",
        /// The operation is not complete.
        Processing = "Processing",
        /// The operation failed. It is tried again unless the machine's phase says otherwise.
        Failed = "Failed",
        /// The operation is complete.
        Successful = "Successful",
    }
}

wire_string! {
    /// What the last operation was about.
    pub enum OperationType {
        /// Nothing is recorded.
        #[default]
        Unset = "",
        /// The machine is being created.
        Create = "Create",
        /// Never written by MCM.
        Update = "Update",
        /// The machine is being updated in place.
        InPlaceUpdate = "InPlaceUpdate",
        /// The node is being drained for an update in place, or because it is preserved.
        DrainNode = "DrainNode",
        /// The health of the node has been judged.
        HealthCheck = "HealthCheck",
        /// The machine is being deleted.
        Delete = "Delete",
    }
}

wire_string! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        /// It is not known whether the condition holds.
        #[default]
        Unknown = "Unknown",
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
    }
}

/// The last operation on an object, as people and the cluster autoscaler read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastOperation {
    /// What is being done or has happened, in words. Meant for people; never read by Nodewright.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub description: String,

    /// Name of the code with which the operation failed, such as `ResourceExhausted`; absent when it did
    /// not fail.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub error_code: String,

    /// When this record was last changed.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,

    /// How far the operation has come.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub state: OperationState,

    /// What the operation is about.
    #[serde(rename = "type", skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub operation_type: OperationType,
}

/// What a MachineSet or MachineDeployment tells of one of its machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSummary {
    /// Name of the machine.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub name: String,

    /// The provider's id of the instance.
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub provider_id: String,

    /// The last operation on the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,

    /// Name of the MachineSet that controls the machine.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub owner_ref: String,
}
