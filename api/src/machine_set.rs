//! `MachineSet`: a number of machines made from one template.

use crate::common::{ClassRef, ConditionStatus, LastOperation, MachineSummary, MachineTemplate};
use crate::validation::rules;
use crate::wire::{is_default, null_as_default};
use crate::{labels, lenient};
use garde::Validate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a MachineSet is meant to be.
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
    doc = "MachineSet keeps a number of machines that are made from one template.",
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
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub replicas: i32,

    /// Which machines belong to the set. Must match the template's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The class of the machines, for a metric. The template's class is the one that counts.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub machine_class: ClassRef,

    /// What the machines look like.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub template: MachineTemplate,

    /// How many seconds a machine must have been ready to count as available. Ignored by MCM, and by
    /// Nodewright unless it is asked to honour it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub min_ready_seconds: i32,

    /// How many failed machines are preserved without being asked for.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub auto_preserve_failed_machine_max: i32,
}

/// What was last observed of a MachineSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSetStatus {
    /// Number of existing machines, those in deletion included.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,

    /// Number of machines that carry all of the template's labels.
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

    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,

    /// The conditions of the set.
    #[serde(
        rename = "machineSetCondition",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub conditions: Vec<MachineSetCondition>,

    /// The last operation on the set.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,

    /// The machines whose last operation failed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub failed_machines: Vec<MachineSummary>,

    /// Number of failed machines that are preserved without having been asked for.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub auto_preserve_failed_machine_count: i32,

    /// The selector as text, for the scale subresource. Not part of MCM's schema.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub selector: String,
}

/// A condition of a MachineSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetCondition {
    /// The type of the condition, such as `Frozen`.
    #[serde(rename = "type")]
    pub condition_type: String,

    /// Whether the condition holds: True, False or Unknown.
    pub status: ConditionStatus,

    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_transition_time: Option<Time>,

    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reason: String,

    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub message: String,
}

impl MachineSet {
    /// Whether the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the set is frozen: no machine is created.
    pub fn is_frozen(&self) -> bool {
        self.labels().get(labels::FREEZE).is_some_and(|value| value == labels::FREEZE_VALUE)
    }

    /// The condition of this type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineSetCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }
}
