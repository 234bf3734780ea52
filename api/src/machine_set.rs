//! `MachineSet`: a number of machines with one template.

use crate::common::{ClassRef, Condition, LastOperation, MachineSummary};
use crate::labels;
use crate::machine::MachineTemplate;
use crate::wire::{is_default, null_as_default};
use garde::Validate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a MachineSet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[kube(
    group = "machine.sapcloud.io",
    version = "v1alpha1",
    kind = "MachineSet",
    plural = "machinesets",
    namespaced,
    status = "MachineSetStatus",
    shortname = "mcs",
    derive = "PartialEq",
    derive = "Default",
    doc = "MachineSet keeps a number of machines with one template.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "Number of desired machines."
    ),
    printcolumn(
        name = "Current",
        type_ = "integer",
        json_path = ".status.replicas",
        description = "Number of existing machines."
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Number of running machines."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the machine set was created."
    )
)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct MachineSetSpec {
    /// Number of desired machines.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
    pub replicas: i32,
    /// Selects the machines of the set. Must match the labels of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub selector: Option<LabelSelector>,
    /// Class of the machines in a metric. The machines have the class of the template.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub machine_class: ClassRef,
    /// Template of the machines.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub template: MachineTemplate,
    /// Seconds that a machine must have been ready to be available. Not used.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
    pub min_ready_seconds: i32,
    /// How many failed machines are preserved automatically.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
    pub auto_preserve_failed_machine_max: i32,
}

/// The status of a MachineSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSetStatus {
    /// Number of machines, including those that are being deleted.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    /// Number of machines that have all labels of the template.
    #[serde(deserialize_with = "null_as_default")]
    pub fully_labeled_replicas: i32,
    /// Number of machines in phase Running.
    #[serde(deserialize_with = "null_as_default")]
    pub ready_replicas: i32,
    /// Number of machines in phase Running or Available.
    #[serde(deserialize_with = "null_as_default")]
    pub available_replicas: i32,
    /// Number of preserved machines in phase Failed.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub preserved_failed_replicas: i32,
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    /// Conditions of the set.
    #[serde(
        rename = "machineSetCondition",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub conditions: Vec<MachineSetCondition>,
    /// Last operation on the set.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,
    /// Machines whose last operation failed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub failed_machines: Vec<MachineSummary>,
    /// Number of failed machines that are preserved automatically.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub auto_preserve_failed_machine_count: i32,
    /// Selector as text, for the scale subresource. Not part of MCM's schema.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub selector: String,
}

/// A condition of a MachineSet.
pub type MachineSetCondition = Condition;

impl MachineSet {
    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the set is frozen and creates no machines.
    pub fn is_frozen(&self) -> bool {
        self.labels().get(labels::FREEZE).is_some_and(|value| value == labels::FREEZE_VALUE)
    }

    /// The condition of a type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineSetCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }
}
