//! `MachineConfig`: a part of the configuration of nodes, or all of it.

use super::{GENERATED_BY, ROLE};
use crate::RawJson;
use crate::wire::{null_as_default, wire_string};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a MachineConfig.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "machineconfiguration.openshift.io",
    version = "v1",
    kind = "MachineConfig",
    plural = "machineconfigs",
    derive = "PartialEq",
    derive = "Default",
    doc = "MachineConfig is a part of the configuration of nodes, or, rendered for a pool, all of it.",
    printcolumn(
        name = "GeneratedByController",
        type_ = "string",
        json_path = r".metadata.annotations.machineconfiguration\.openshift\.io/generated-by-controller-version",
        description = "Version of the controller that has made the object."
    ),
    printcolumn(
        name = "IgnitionVersion",
        type_ = "string",
        json_path = ".spec.config.ignition.version",
        description = "Version of the Ignition config."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the object was created."
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigSpec {
    /// Container image with the extensions of the operating system.
    #[serde(
        rename = "baseOSExtensionsContainerImage",
        skip_serializing_if = "String::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub base_os_extensions_container_image: String,
    /// Ignition config of version 3.0 to 3.5: files, units, users and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub config: Option<RawJson>,
    /// Extensions of the operating system to install.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub extensions: Vec<String>,
    /// Whether FIPS mode is on. It may not change after the installation of a node.
    #[serde(skip_serializing_if = "crate::wire::is_default", deserialize_with = "null_as_default")]
    pub fips: bool,
    /// Arguments of the kernel. An argument may be there twice.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub kernel_arguments: Vec<String>,
    /// Kernel to run: `default`, `realtime` or `64k-pages`. Empty means `default`.
    #[serde(skip_serializing_if = "KernelType::is_unset", deserialize_with = "null_as_default")]
    #[schemars(with = "String")]
    pub kernel_type: KernelType,
    /// Bootable container image of the operating system.
    #[serde(rename = "osImageURL", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub os_image_url: String,
}

wire_string! {
    /// A kernel.
    pub enum KernelType {
        /// Not set: [`KernelType::Default`].
        #[default]
        Unset = "",
        /// The usual kernel.
        Default = "default",
        /// A kernel for real-time work.
        Realtime = "realtime",
        /// A kernel with pages of 64 KiB, on 64-bit ARM.
        Pages64K = "64k-pages",
    }
}

impl KernelType {
    /// Whether nothing is said.
    pub fn is_unset(&self) -> bool {
        *self == Self::Unset
    }
}

impl MachineConfig {
    /// The role of the nodes that it is for.
    pub fn role(&self) -> Option<&str> {
        self.labels().get(ROLE).map(String::as_str)
    }

    /// Whether a controller has made it.
    pub fn is_generated(&self) -> bool {
        self.annotations().contains_key(GENERATED_BY)
    }
}
