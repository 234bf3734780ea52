//! `MachineConfig`: a part of the configuration of nodes, or all of it.

use super::{GENERATED_BY, GROUP, ROLE};
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
    /// Whether nothing is set.
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

    /// Whether it is what a pool renders to, and no part of that. One whose pool was deleted without it has no owner: it is
    /// known by its name and by having been made by a controller.
    pub fn is_rendered(&self) -> bool {
        match self.owner_references().iter().find(|owner| owner.controller == Some(true)) {
            Some(owner) => owner.kind == "MachineConfigPool" && owner.api_version.split('/').next() == Some(GROUP),
            None => self.is_generated() && self.metadata.name.as_deref().is_some_and(is_name_of_rendered),
        }
    }
}

/// Whether this is `rendered-<pool>-` and 32 hexadecimal digits: ours and those of machine-config-operator.
fn is_name_of_rendered(name: &str) -> bool {
    let digits = name.strip_prefix("rendered-").and_then(|rest| rest.rsplit_once('-')).map(|(_, digits)| digits);
    digits.is_some_and(|digits| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_is_rendered_is_known_by_its_owner_or_its_name() {
        let owner = |group: &str, kind: &str| {
            let version = format!("{group}/v1");
            json!([{"apiVersion": version, "kind": kind, "name": "a", "uid": "u", "controller": true}])
        };
        let is_rendered = |name: &str, annotations: Value, owners: Value| {
            let metadata = json!({"name": name, "annotations": annotations, "ownerReferences": owners});
            let object = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
                "metadata": metadata, "spec": {}});
            serde_json::from_value::<MachineConfig>(object).unwrap().is_rendered()
        };
        let name = "rendered-a-b-0123456789abcdef0123456789abcdef";
        let generated = || json!({GENERATED_BY: "any"});
        assert!(is_rendered("any", json!({}), owner(GROUP, "MachineConfigPool")));
        assert!(!is_rendered(name, generated(), owner("other.example.com", "MachineConfigPool")));
        assert!(!is_rendered("99-a-generated-kubelet", generated(), owner(GROUP, "KubeletConfig")));
        assert!(is_rendered(name, generated(), json!([])), "its pool was deleted without it");
        assert!(!is_rendered(name, json!({}), json!([])), "a user has made it");
        for other in
            ["99-a-generated-kubelet", "rendered-a", "rendered-0123456789abcdef0123456789abcdef", "rendered-a-0123"]
        {
            assert!(!is_rendered(other, generated(), json!([])), "{other}");
        }
    }
}
