//! `MachineDeployment`: a number of machines, with rollouts of their template.

use crate::common::{ConditionStatus, MachineSummary};
use crate::int_or_percent::{ParseIntOrPercentError, UpdateBounds};
use crate::machine::MachineTemplate;
use crate::wire::{is_default, null_as_default, wire_string};
use crate::{labels, lenient};
use garde::Validate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a MachineDeployment.
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
    doc = "MachineDeployment keeps a number of machines, and rolls out changes of their template.",
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
        description = "Number of machines of the current template."
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
    #[garde(range(min = 0))]
    pub replicas: i32,
    /// Selects the machines of the deployment. Must match the labels of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub selector: Option<LabelSelector>,
    /// Template of the machines. A change of its labels, its annotations, the name or API group of its class, or its provider id
    /// starts a rollout. Other changes are copied to the existing machines.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub template: MachineTemplate,
    /// How machines are replaced when the template changes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub strategy: Strategy,
    /// Seconds that a machine must have been ready to be available. Not used.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
    pub min_ready_seconds: i32,
    /// How many old MachineSets are kept for a rollback. Defaults to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(range(min = 0))]
    pub revision_history_limit: Option<i32>,
    /// Whether rollouts are paused. Scaling is not.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub paused: bool,
    /// Deprecated. The revision to roll back to. The controller clears it after the rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub rollback_to: Option<RollbackConfig>,
    /// Seconds without progress after which the condition Progressing becomes False. Defaults to never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(range(min = 0))]
    pub progress_deadline_seconds: Option<i32>,
    /// How many failed machines of all MachineSets are preserved automatically.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
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
    /// Bounds of a rolling update. Only used with type `RollingUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Bounds of an update in place. Only used with type `InPlaceUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<InPlaceUpdate>,
}

wire_string! {
    /// How machines are replaced.
    pub enum StrategyType {
        /// Not set. Defaults to `RollingUpdate`; MCM refuses it.
        #[default]
        Unset = "",
        /// New machines are created and old ones deleted step by step.
        RollingUpdate = "RollingUpdate",
        /// All old machines are deleted before new ones are created.
        Recreate = "Recreate",
        /// Machines are kept, and an agent on each Node updates it.
        InPlaceUpdate = "InPlaceUpdate",
    }
}

wire_string! {
    /// Who chooses the next machine of an update in place.
    pub enum OrchestrationType {
        /// Not set. Defaults to `Auto`; MCM refuses it.
        #[default]
        Unset = "",
        /// The controller chooses, within the bounds.
        Auto = "Auto",
        /// The user chooses, by a label on the Node.
        Manual = "Manual",
    }
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How many machines may be unavailable: a number, or a percentage of the desired machines, rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_unavailable: Option<IntOrString>,
    /// How many machines may exist above the desired number: a number, or a percentage of it, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_surge: Option<IntOrString>,
}

/// Bounds of an update in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceUpdate {
    /// How many machines may be unavailable: a number, or a percentage of the desired machines, rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_unavailable: Option<IntOrString>,
    /// How many machines may exist above the desired number: a number, or a percentage of it, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bound")]
    pub max_surge: Option<IntOrString>,
    /// Who chooses the next machine: Auto or Manual.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub orchestration_type: OrchestrationType,
}

/// A rollback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
pub struct RollbackConfig {
    /// Revision to roll back to. 0 is the one before the current.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(range(min = 0))]
    pub revision: i64,
}

/// The status of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeploymentStatus {
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    /// Number of machines, including those that are being deleted.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    /// Number of machines with the current template.
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
    /// Number of machines that are desired and not available.
    #[serde(deserialize_with = "null_as_default")]
    pub unavailable_replicas: i32,
    /// Conditions of the deployment.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<MachineDeploymentCondition>,
    /// Number of hash collisions. Part of the name of the next MachineSet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Machines whose last operation failed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub failed_machines: Vec<MachineSummary>,
    /// Selector as text, for the scale subresource. Not part of MCM's schema.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub selector: String,
}

/// A condition of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentCondition {
    /// Type of the condition, such as `Progressing`.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Status of the condition: True, False or Unknown.
    pub status: ConditionStatus,
    /// When the condition was last updated. The progress deadline counts from that of `Progressing`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,
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

impl MachineDeployment {
    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the deployment is frozen and its MachineSets create no machines.
    pub fn is_frozen(&self) -> bool {
        self.labels().get(labels::FREEZE).is_some_and(|value| value == labels::FREEZE_VALUE)
    }

    /// The bounds of a rollout around `spec.replicas`. See [`Strategy::update_bounds`].
    pub fn update_bounds(&self) -> Result<UpdateBounds, ParseIntOrPercentError> {
        self.spec.strategy.update_bounds(self.spec.replicas)
    }

    /// The condition of a type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineDeploymentCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }
}

impl Strategy {
    /// The type, by default `RollingUpdate`.
    pub fn effective_type(&self) -> StrategyType {
        match &self.strategy_type {
            StrategyType::Unset => StrategyType::RollingUpdate,
            set => set.clone(),
        }
    }

    /// Whether users choose the machines of an update in place.
    pub fn is_manual(&self) -> bool {
        let update = self.in_place_update.as_ref();
        update.is_some_and(|update| update.orchestration_type == OrchestrationType::Manual)
    }

    /// The bounds of a rollout around a number of machines.
    ///
    /// Absent bounds have their [defaults](crate::defaults). A manual update in place has no surge, because the user chooses
    /// the machines. `Recreate` has no bounds, so both are 0.
    pub fn update_bounds(&self, replicas: i32) -> Result<UpdateBounds, ParseIntOrPercentError> {
        const NONE: IntOrString = IntOrString::Int(0);
        let (max_surge, max_unavailable) = match (self.effective_type(), &self.rolling_update, &self.in_place_update) {
            (StrategyType::RollingUpdate, Some(bounds), _) => {
                (bounds.max_surge.as_ref(), bounds.max_unavailable.as_ref())
            }
            (StrategyType::InPlaceUpdate, _, Some(bounds)) => (
                if self.is_manual() { Some(&NONE) } else { bounds.max_surge.as_ref() },
                bounds.max_unavailable.as_ref(),
            ),
            (StrategyType::RollingUpdate | StrategyType::InPlaceUpdate, _, _) => (None, None),
            _ => return Ok(UpdateBounds { max_surge: 0, max_unavailable: 0 }),
        };
        UpdateBounds::resolve(max_surge, max_unavailable, replicas)
    }
}
