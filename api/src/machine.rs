//! `Machine`: a VM and its Node.

use crate::common::{ClassRef, LastOperation, NodeTemplate};
use crate::validation::rules;
use crate::wire::{is_default, null_as_default, wire_string};
use crate::{GoDuration, annotations, conditions, labels, lenient, stored};
use garde::Validate;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeAddress, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

// The last eight fields are MCM's inlined `MachineConfiguration`. An absent one has the value of the controller's flag.
/// The spec of a Machine.
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
    doc = "Machine is a VM and its Node.",
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
        description = "ID of the VM at the provider.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct MachineSpec {
    /// Class of the machine, with the provider's configuration of the VM.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub class: ClassRef,
    /// ID of the VM at the provider. The controller writes it once the VM exists.
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub provider_id: String,
    /// Metadata and taints that are copied to the Node. A change does not start a rollout.
    // Shared: the machines of a set have equal ones, which are the largest part of most machines.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub node_template: Arc<NodeTemplate>,
    /// How long the drain may take before Pods are deleted by force, such as `2h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub drain_timeout: Option<GoDuration>,
    /// How long the Node may be unhealthy before the machine fails, such as `10m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::positive_duration))]
    pub health_timeout: Option<GoDuration>,
    /// How long creating and joining may take before the machine fails, such as `20m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::positive_duration))]
    pub creation_timeout: Option<GoDuration>,
    /// How long an update in place may take before it fails, such as `20m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::positive_duration))]
    pub in_place_update_timeout: Option<GoDuration>,
    /// How long a machine is preserved, such as `96h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::not_negative_duration))]
    pub machine_preserve_timeout: Option<GoDuration>,
    /// Whether an unhealthy machine never fails. Used for updates in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_health_timeout: Option<bool>,
    /// How often the eviction of a Pod is retried before the Pod is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(range(min = 0))]
    pub max_evict_retries: Option<i32>,
    /// Node condition types, separated by commas. The machine is unhealthy while one of them is not False.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(custom(rules::condition_types))]
    pub node_conditions: Option<String>,
}

impl MachineSpec {
    /// Replaces negative values, which all readers take for 0, by 0. An old template may have values below the bounds of the
    /// schema; an object that is made from it must not.
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

/// The status of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Addresses of the VM, sorted. Only written without a target cluster, where there is no Node with addresses.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub addresses: Vec<NodeAddress>,
    /// Conditions that are copied from the Node, and those of the machine itself.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient::copied_node_conditions")]
    pub conditions: Vec<NodeCondition>,
    /// Last operation on the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub last_operation: LastOperation,
    /// Phase of the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub current_status: CurrentStatus,
    /// Opaque state that the driver receives at its next call.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub last_known_state: String,
}

/// The phase of a machine, and its times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentStatus {
    /// Phase of the machine.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub phase: MachinePhase,
    /// Written by MCM. Not used.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub timeout_active: bool,
    /// When the phase last changed. The health and in-place timeouts count from here.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_update_time: Option<Time>,
    /// When the preservation of the machine ends. Absent when it is not preserved.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub preserve_expiry_time: Option<Time>,
}

wire_string! {
    /// The phase of a machine.
    pub enum MachinePhase {
        /// Not recorded: the machine is new.
        #[default]
        Unset = "",
        /// The VM exists, and the Node has not been healthy yet.
        Pending = "Pending",
        /// The VM exists, and there is no target cluster.
        Available = "Available",
        /// The Node is healthy.
        Running = "Running",
        /// The machine is being deleted.
        Terminating = "Terminating",
        /// The Node is missing or unhealthy, and the health timeout runs.
        Unknown = "Unknown",
        /// A timeout has expired, and the machine will be replaced.
        Failed = "Failed",
        /// The creation of the VM failed and is retried.
        CrashLoopBackOff = "CrashLoopBackOff",
        /// An update in place is in progress.
        InPlaceUpdating = "InPlaceUpdating",
        /// An update in place succeeded.
        InPlaceUpdateSuccessful = "InPlaceUpdateSuccessful",
        /// An update in place failed.
        InPlaceUpdateFailed = "InPlaceUpdateFailed",
    }
}

impl Machine {
    /// The condition of this type.
    pub fn condition(&self, condition_type: &str) -> Option<&NodeCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == condition_type)
    }

    /// Shares the node template with another Machine if they are equal, to save memory.
    pub fn share(&mut self, known: &Self) {
        if self.spec.node_template == known.spec.node_template {
            self.spec.node_template = known.spec.node_template.clone();
        }
    }

    /// When the phase changed.
    pub fn phase_since(&self) -> Option<Timestamp> {
        Some(self.status.as_ref()?.current_status.last_update_time.as_ref()?.0)
    }

    /// The phase. [`MachinePhase::Unset`] without a status.
    pub fn phase(&self) -> &MachinePhase {
        static UNSET: MachinePhase = MachinePhase::Unset;
        self.status.as_ref().map_or(&UNSET, |status| &status.current_status.phase)
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The name of the Node, from the label [`labels::NODE`]. `None` if it is absent or empty.
    pub fn node_name(&self) -> Option<&str> {
        self.labels().get(labels::NODE).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The name of the class, which may be empty.
    pub fn class_name(&self) -> &str {
        &self.spec.class.name
    }

    /// The ID of the VM. `None` while it is unknown.
    pub fn provider_id(&self) -> Option<&str> {
        Some(self.spec.provider_id.as_str()).filter(|id| !id.is_empty())
    }

    /// The deletion priority. Machines with a smaller one are deleted earlier.
    pub fn priority(&self) -> i64 {
        stored::MACHINE_PRIORITY.of(self).unwrap_or(annotations::MACHINE_PRIORITY_DEFAULT)
    }

    /// Whether the cluster autoscaler has chosen it for removal.
    pub fn is_removal_candidate(&self) -> bool {
        let priority = self.annotations().get(annotations::MACHINE_PRIORITY);
        priority.is_some_and(|priority| priority == annotations::MACHINE_PRIORITY_CANDIDATE)
    }

    /// Whether its Node keeps it from failing for its health, as its condition `HealthTimeout` says.
    pub fn is_health_timeout_disabled(&self) -> bool {
        self.condition(conditions::machine::HEALTH_TIMEOUT).and_then(stored::DisabledHealthTimeout::of).is_some()
    }

    /// Whether the label [`labels::FORCE_DELETION`] skips the drain and forces the deletion.
    pub fn is_force_deletion(&self) -> bool {
        self.labels().get(labels::FORCE_DELETION).is_some_and(|text| labels::parse_bool(text) == Some(true))
    }
}

/// A template of machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
pub struct MachineTemplate {
    /// Labels and annotations of the machines.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub metadata: ObjectMeta,
    /// Spec of the machines.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    #[garde(dive)]
    pub spec: MachineSpec,
}
