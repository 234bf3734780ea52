//! `Machine`: a node of the cluster and the instance behind it.

use crate::common::{ClassRef, LastOperation, NodeTemplate};
use crate::validation::rules;
use crate::wire::{is_default, null_as_default, wire_string};
use crate::{GoDuration, annotations, finalizers, labels, lenient};
use garde::Validate;
use k8s_openapi::api::core::v1::{NodeAddress, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

// The last eight fields are MCM's inlined `MachineConfiguration`. Each is optional: absent means the value
// of the controller's flag.
/// What a Machine is meant to be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[kube(
    group = "machine.sapcloud.io",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    namespaced,
    status = "MachineStatus",
    shortname = "mc",
    derive = "PartialEq",
    derive = "Default",
    doc = "Machine is a node of the cluster and the instance behind it.",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.currentStatus.phase",
        description = "Phase of the machine."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the machine was created."
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".metadata.labels.node",
        description = "Node of the machine."
    ),
    printcolumn(
        name = "ProviderID",
        type_ = "string",
        json_path = ".spec.providerID",
        description = "The provider's id of the instance.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct MachineSpec {
    /// The class that says how the provider makes the instance.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub class: ClassRef,

    /// The provider's id of the instance. Written once the instance exists.
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub provider_id: String,

    /// What is copied onto the Node. A change does not start a rollout.
    // Shared, because the machines of a set have equal ones, which are the largest part of most.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub node_template: Arc<NodeTemplate>,

    /// How long the drain may take before it is forced, such as `2h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub drain_timeout: Option<GoDuration>,

    /// How long the node may be unhealthy before the machine is declared failed, such as `10m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub health_timeout: Option<GoDuration>,

    /// How long creation and joining may take before the machine is declared failed, such as `20m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub creation_timeout: Option<GoDuration>,

    /// How long an update in place may take before it is declared failed, such as `20m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub in_place_update_timeout: Option<GoDuration>,

    /// How long a machine is preserved, such as `96h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub machine_preserve_timeout: Option<GoDuration>,

    /// Whether the health timeout is ignored, so that an unhealthy machine is never declared failed.
    /// Meant for updates in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_health_timeout: Option<bool>,

    /// How often the eviction of a pod is tried before it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    #[garde(custom(rules::not_negative_if_set))]
    pub max_evict_retries: Option<i32>,

    /// Node condition types, separated by commas. One that is not False makes the machine unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::condition_types))]
    pub node_conditions: Option<String>,
}

impl MachineSpec {
    /// The same within the bounds of the schema, with the same meaning: what is negative counts as 0 to every reader. A
    /// template may be older than the bounds; what is made of it is not.
    #[must_use]
    pub fn within_bounds(mut self) -> Self {
        let durations = [
            &mut self.drain_timeout,
            &mut self.health_timeout,
            &mut self.creation_timeout,
            &mut self.in_place_update_timeout,
            &mut self.machine_preserve_timeout,
        ];
        for duration in durations.into_iter().flatten() {
            *duration = (*duration).max(GoDuration::ZERO);
        }
        self.max_evict_retries = self.max_evict_retries.map(|retries| retries.max(0));
        self
    }
}

/// What was last observed of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Addresses of the instance, sorted. Only written when there is no target cluster, whose Node would
    /// tell them.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub addresses: Vec<NodeAddress>,

    /// The conditions of the Node, and beside them those of the machine itself.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient::copied_node_conditions")]
    pub conditions: Vec<NodeCondition>,

    /// The last operation on the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,

    /// Where the machine is in its life.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub current_status: CurrentStatus,

    /// What the driver wants to be told at its next call.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub last_known_state: String,
}

/// Where a machine is in its life.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentStatus {
    /// The phase.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub phase: MachinePhase,

    /// Written by MCM in a few places, read by nobody.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub timeout_active: bool,

    /// When the phase last changed: the start of the health and in-place timeouts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,

    /// Until when the machine is preserved; absent when it is not.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub preserve_expiry_time: Option<Time>,
}

wire_string! {
    /// The phase of a machine.
    pub enum MachinePhase {
        /// Being created; nothing is recorded yet.
        #[default]
        Unset = "",
        /// The instance exists, its node has not been healthy yet.
        Pending = "Pending",
        /// The instance exists, and there is no target cluster that its node could join.
        Available = "Available",
        /// The node is healthy.
        Running = "Running",
        /// Being deleted.
        Terminating = "Terminating",
        /// The node is missing or unhealthy, and the health timeout runs.
        Unknown = "Unknown",
        /// A timeout has passed: the machine will be replaced.
        Failed = "Failed",
        /// The creation of the instance failed and is tried again.
        CrashLoopBackOff = "CrashLoopBackOff",
        /// An update in place is going on.
        InPlaceUpdating = "InPlaceUpdating",
        /// An update in place was successful.
        InPlaceUpdateSuccessful = "InPlaceUpdateSuccessful",
        /// An update in place has failed.
        InPlaceUpdateFailed = "InPlaceUpdateFailed",
    }
}

impl Machine {
    /// Shares what is equal with another Machine, so that both keep it once: the machines of a set have one node template,
    /// which is the largest part of most.
    pub fn share(&mut self, known: &Self) {
        if self.spec.node_template == known.spec.node_template {
            self.spec.node_template = known.spec.node_template.clone();
        }
    }

    /// The phase, [`MachinePhase::Unset`] without a status.
    pub fn phase(&self) -> &MachinePhase {
        static UNSET: MachinePhase = MachinePhase::Unset;
        self.status.as_ref().map_or(&UNSET, |status| &status.current_status.phase)
    }

    /// Whether the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Name of the Node, from the label [`labels::NODE`]; `None` when it is absent or empty.
    pub fn node_name(&self) -> Option<&str> {
        self.labels().get(labels::NODE).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Name of the class; empty when the machine has none.
    pub fn class_name(&self) -> &str {
        &self.spec.class.name
    }

    /// The provider's id of the instance; `None` while it is not known.
    pub fn provider_id(&self) -> Option<&str> {
        Some(self.spec.provider_id.as_str()).filter(|id| !id.is_empty())
    }

    /// Whether the machine carries MCM's finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|finalizer| finalizer == finalizers::MACHINE_CONTROLLER_MANAGER)
    }

    /// The deletion priority: a smaller one is deleted earlier. Absent or malformed is
    /// [`annotations::MACHINE_PRIORITY_DEFAULT`].
    pub fn priority(&self) -> i64 {
        self.annotations()
            .get(annotations::MACHINE_PRIORITY)
            .and_then(|text| text.parse().ok())
            .unwrap_or(annotations::MACHINE_PRIORITY_DEFAULT)
    }

    /// Whether the label [`labels::FORCE_DELETION`] asks for a forced drain and deletion.
    pub fn is_force_deletion(&self) -> bool {
        self.labels().get(labels::FORCE_DELETION).is_some_and(|text| labels::parse_bool(text))
    }
}
