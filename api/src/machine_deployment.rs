//! `MachineDeployment`: a number of machines, and how they are replaced when their template changes.

use crate::common::{ConditionStatus, MachineSummary, MachineTemplate};
use crate::int_or_percent::{ParseIntOrPercentError, UpdateBounds};
use crate::validation::rules;
use crate::wire::{is_default, null_as_default, wire_string};
use crate::{labels, lenient};
use garde::Validate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a MachineDeployment is meant to be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[kube(
    group = "machine.sapcloud.io",
    version = "v1alpha1",
    kind = "MachineDeployment",
    plural = "machinedeployments",
    namespaced,
    status = "MachineDeploymentStatus",
    shortname = "mcd",
    derive = "PartialEq",
    derive = "Default",
    doc = "MachineDeployment keeps a number of machines, and replaces them step by step when their template changes.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Number of running machines."
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "Number of desired machines."
    ),
    printcolumn(
        name = "Up-to-date",
        type_ = "integer",
        json_path = ".status.updatedReplicas",
        description = "Number of machines made from the present template."
    ),
    printcolumn(
        name = "Available",
        type_ = "integer",
        json_path = ".status.availableReplicas",
        description = "Number of available machines."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the machine deployment was created."
    )
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["template"]))]
#[garde(allow_unvalidated)]
pub struct MachineDeploymentSpec {
    /// Number of desired machines.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub replicas: i32,

    /// Which machines belong to the deployment. Must match the template's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// What the machines look like. A change of its labels, its annotations or the name of its class
    /// starts a rollout; other changes are handed to the existing machines.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub template: MachineTemplate,

    /// How machines are replaced when the template changes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub strategy: Strategy,

    /// How many seconds a machine must have been ready to count as available. Ignored by MCM, and by
    /// Nodewright unless it is asked to honour it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub min_ready_seconds: i32,

    /// How many old machine sets are kept for a rollback. Absent keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative_if_set))]
    pub revision_history_limit: Option<i32>,

    /// Whether rollouts wait. Scaling goes on.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub paused: bool,

    /// Deprecated, yet obeyed: the revision to go back to. Cleared when it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub rollback_to: Option<RollbackConfig>,

    /// After how many seconds without progress the deployment says so in a condition. Absent is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative_if_set))]
    pub progress_deadline_seconds: Option<i32>,

    /// How many failed machines are preserved without being asked for, over all machine sets.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub auto_preserve_failed_machine_max: i32,
}

/// How machines are replaced when the template changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `RollingUpdate`, Recreate or `InPlaceUpdate`.
    #[serde(rename = "type", skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::strategy_type")]
    pub strategy_type: StrategyType,

    /// Bounds of a rolling update; only used with type `RollingUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,

    /// Bounds and manner of an update in place; only used with type `InPlaceUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<InPlaceUpdate>,
}

wire_string! {
    /// The manner in which machines are replaced.
    pub enum StrategyType {
        /// Not said. MCM refuses to act; defaulting turns it into `RollingUpdate`.
        #[default]
        Unset = "",
        /// New machines are made and old ones deleted step by step.
        RollingUpdate = "RollingUpdate",
        /// All old machines are deleted before new ones are made.
        Recreate = "Recreate",
        /// Machines are kept, and an agent on the node updates them.
        InPlaceUpdate = "InPlaceUpdate",
    }
}

wire_string! {
    /// Who chooses the next machine to be updated in place.
    pub enum OrchestrationType {
        /// Not said. MCM refuses to act.
        #[default]
        Unset = "",
        /// The controller chooses, within the bounds.
        Auto = "Auto",
        /// The user chooses, with a label on the Node.
        Manual = "Manual",
    }
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How many machines may be missing: a number, or a percentage of the desired machines (rounded
    /// down).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_unavailable: Option<IntOrString>,

    /// How many machines may exist above the desired number: a number, or a percentage of the desired
    /// machines (rounded up).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_surge: Option<IntOrString>,
}

/// Bounds and manner of an update in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceUpdate {
    /// How many machines may be missing: a number, or a percentage of the desired machines (rounded
    /// down).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_unavailable: Option<IntOrString>,

    /// How many machines may exist above the desired number: a number, or a percentage of the desired
    /// machines (rounded up).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_surge: Option<IntOrString>,

    /// Who chooses the next machine: Auto or Manual.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub orchestration_type: OrchestrationType,
}

/// The revision to go back to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
pub struct RollbackConfig {
    /// The revision; 0 is the one before the present.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative))]
    pub revision: i64,
}

/// What was last observed of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeploymentStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,

    /// Number of existing machines, those in deletion included.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,

    /// Number of machines made from the present template.
    #[serde(deserialize_with = "null_as_default")]
    pub updated_replicas: i32,

    /// Number of machines in phase Running.
    #[serde(deserialize_with = "null_as_default")]
    pub ready_replicas: i32,

    /// Number of machines in phase Running or Available.
    #[serde(deserialize_with = "null_as_default")]
    pub available_replicas: i32,

    /// Number of preserved machines in phase Failed.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub preserved_failed_replicas: i32,

    /// Number of machines that are missing to the desired number of available ones.
    #[serde(deserialize_with = "null_as_default")]
    pub unavailable_replicas: i32,

    /// The conditions of the deployment.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<MachineDeploymentCondition>,

    /// How many hash collisions there were. Part of the name of the next machine set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,

    /// The machines whose last operation failed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub failed_machines: Vec<MachineSummary>,

    /// The selector as text, for the scale subresource. Not part of MCM's schema.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub selector: String,
}

/// A condition of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentCondition {
    /// The type of the condition, such as `Progressing`.
    #[serde(rename = "type")]
    pub condition_type: String,

    /// Whether the condition holds: True, False or Unknown.
    pub status: ConditionStatus,

    /// When the condition was last written. Of `Progressing` this is the clock of the progress deadline.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,

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

impl MachineDeployment {
    /// Whether the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the deployment is frozen: its machine sets create no machine.
    pub fn is_frozen(&self) -> bool {
        self.labels().get(labels::FREEZE).is_some_and(|value| value == labels::FREEZE_VALUE)
    }

    /// The condition of this type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineDeploymentCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }

    /// How far a rollout may go above and below `spec.replicas`; see
    /// [`Strategy::update_bounds`].
    pub fn update_bounds(&self) -> Result<UpdateBounds, ParseIntOrPercentError> {
        self.spec.strategy.update_bounds(self.spec.replicas)
    }
}

impl Strategy {
    /// The strategy to follow: what is said, and `RollingUpdate` when nothing is.
    pub fn effective_type(&self) -> StrategyType {
        match &self.strategy_type {
            StrategyType::Unset => StrategyType::RollingUpdate,
            said => said.clone(),
        }
    }

    /// How far a rollout may go above and below this number of machines.
    ///
    /// Absent bounds are those of [`crate::defaults`]. A user who chooses the machines of an update in
    /// place wants no others, so there is no surge. Recreate knows no bounds, so both are 0.
    pub fn update_bounds(&self, replicas: i32) -> Result<UpdateBounds, ParseIntOrPercentError> {
        const NONE: IntOrString = IntOrString::Int(0);
        let (max_surge, max_unavailable) = match (self.effective_type(), &self.rolling_update, &self.in_place_update) {
            (StrategyType::RollingUpdate, Some(bounds), _) => {
                (bounds.max_surge.as_ref(), bounds.max_unavailable.as_ref())
            }
            (StrategyType::InPlaceUpdate, _, Some(bounds)) => {
                let manual = bounds.orchestration_type == OrchestrationType::Manual;
                (if manual { Some(&NONE) } else { bounds.max_surge.as_ref() }, bounds.max_unavailable.as_ref())
            }
            (StrategyType::RollingUpdate | StrategyType::InPlaceUpdate, _, _) => (None, None),
            _ => return Ok(UpdateBounds { max_surge: 0, max_unavailable: 0 }),
        };
        UpdateBounds::resolve(max_surge, max_unavailable, replicas)
    }
}
