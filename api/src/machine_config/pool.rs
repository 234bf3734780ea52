//! `MachineConfigPool`: nodes that run one configuration, and the MachineConfigs that it is rendered of.

use crate::common::Condition;
use crate::wire::{is_default, null_as_default};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a MachineConfigPool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "machineconfiguration.openshift.io",
    version = "v1",
    kind = "MachineConfigPool",
    plural = "machineconfigpools",
    status = "MachineConfigPoolStatus",
    shortname = "mcp",
    derive = "PartialEq",
    derive = "Default",
    doc = "MachineConfigPool has nodes run one configuration, which is rendered of all MachineConfigs that it selects.",
    printcolumn(
        name = "Config",
        type_ = "string",
        json_path = ".status.configuration.name",
        description = "Configuration that all nodes run."
    ),
    printcolumn(
        name = "Updated",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Updated")].status"#,
        description = "Whether all nodes run the target."
    ),
    printcolumn(
        name = "Updating",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Updating")].status"#,
        description = "Whether nodes are being updated."
    ),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Degraded")].status"#,
        description = "Whether rendering or a node has failed."
    ),
    printcolumn(
        name = "MachineCount",
        type_ = "number",
        json_path = ".status.machineCount",
        description = "Number of nodes."
    ),
    printcolumn(
        name = "ReadyMachineCount",
        type_ = "number",
        json_path = ".status.readyMachineCount",
        description = "Number of nodes that run the target and are ready."
    ),
    printcolumn(
        name = "UpdatedMachineCount",
        type_ = "number",
        json_path = ".status.updatedMachineCount",
        description = "Number of nodes that run the target."
    ),
    printcolumn(
        name = "DegradedMachineCount",
        type_ = "number",
        json_path = ".status.degradedMachineCount",
        description = "Number of nodes whose update has failed."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the pool was created."
    ),
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".spec.configuration.name",
        description = "Configuration that the nodes are to run."
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolSpec {
    /// Configuration that the nodes are to run. A controller writes it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub configuration: PoolConfiguration,
    /// Selects MachineConfigs by their labels. An empty selector selects none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub machine_config_selector: Option<LabelSelector>,
    /// How many nodes may be unavailable during an update: a number or a percentage, rounded down. 1 if absent or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// Selects Nodes by their labels. An empty selector selects none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub node_selector: Option<LabelSelector>,
    /// Stream of operating system images that the nodes run.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub os_image_stream: Named,
    /// Whether no further node is updated.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub paused: bool,
    /// Sets of images that the nodes fetch before they are needed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pinned_image_sets: Vec<Named>,
}

/// Refers to an object by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct Named {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub name: String,
}

/// A rendered MachineConfig, and what it is rendered of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolConfiguration {
    /// API version of the rendered MachineConfig. Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// Kind of the object. Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the rendered MachineConfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Not used: MachineConfigs have no namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// The MachineConfigs that it is rendered of, in the order of the merge.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub source: Vec<ObjectReference>,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The status of a MachineConfigPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolStatus {
    /// When the certificates expire that nodes trust.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub cert_expirys: Vec<CertExpiry>,
    /// Conditions of the pool.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub conditions: Vec<Condition>,
    /// Configuration that all nodes have finished last.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub configuration: PoolConfiguration,
    /// Number of nodes whose update has failed.
    #[serde(deserialize_with = "null_as_default")]
    pub degraded_machine_count: i32,
    /// Number of nodes.
    #[serde(deserialize_with = "null_as_default")]
    pub machine_count: i32,
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    /// Stream of operating system images that all nodes run.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub os_image_stream: Named,
    /// How far the nodes are with what they get besides a configuration.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["poolSynchronizerType"]))]
    pub pool_synchronizers_status: Vec<PoolSynchronizerStatus>,
    /// Number of nodes that run the target and are ready.
    #[serde(deserialize_with = "null_as_default")]
    pub ready_machine_count: i32,
    /// Number of nodes that are not available.
    #[serde(deserialize_with = "null_as_default")]
    pub unavailable_machine_count: i32,
    /// Number of nodes that run the target.
    #[serde(deserialize_with = "null_as_default")]
    pub updated_machine_count: i32,
}

/// When a certificate expires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["bundle", "subject"]))]
pub struct CertExpiry {
    /// Bundle that has the certificate.
    #[serde(deserialize_with = "null_as_default")]
    pub bundle: String,
    /// When it expires.
    // A string, because Go writes times that jiff cannot represent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expiry: Option<String>,
    /// Subject of the certificate.
    #[serde(deserialize_with = "null_as_default")]
    pub subject: String,
}

/// How far the nodes are with something that they get besides a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = [
        "availableMachineCount", "machineCount", "poolSynchronizerType", "readyMachineCount", "unavailableMachineCount",
        "updatedMachineCount"
    ],
    "x-kubernetes-validations" = [
        {"rule": "self.machineCount >= self.updatedMachineCount", "message": "machineCount must be greater than or equal to updatedMachineCount"},
        {"rule": "self.machineCount >= self.availableMachineCount", "message": "machineCount must be greater than or equal to availableMachineCount"},
        {"rule": "self.machineCount >= self.unavailableMachineCount", "message": "machineCount must be greater than or equal to unavailableMachineCount"},
        {"rule": "self.machineCount >= self.readyMachineCount", "message": "machineCount must be greater than or equal to readyMachineCount"},
        {"rule": "self.availableMachineCount >= self.readyMachineCount", "message": "availableMachineCount must be greater than or equal to readyMachineCount"}
    ]
))]
pub struct PoolSynchronizerStatus {
    /// Number of nodes that are available.
    pub available_machine_count: i64,
    /// Number of nodes.
    pub machine_count: i64,
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(
        range(min = 0),
        extend("x-kubernetes-validations" = [
            {"rule": "self >= oldSelf || (self == 0 && oldSelf > 0)", "message": "observedGeneration must not move backwards except to zero"}
        ])
    )]
    pub observed_generation: i64,
    /// What they get, such as `PinnedImageSets`.
    pub pool_synchronizer_type: String,
    /// Number of nodes that have it and are ready.
    pub ready_machine_count: i64,
    /// Number of nodes that are not available.
    pub unavailable_machine_count: i64,
    /// Number of nodes that have it.
    pub updated_machine_count: i64,
}
