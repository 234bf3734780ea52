//! `ControllerConfig`: the values of a cluster for the templates of MachineConfigs.

use crate::RawJson;
use crate::common::Condition;
use crate::wire::{is_default, null_as_default};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The spec of a ControllerConfig. OpenShift requires fourteen of its fields; here each may be absent.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "machineconfiguration.openshift.io",
    version = "v1",
    kind = "ControllerConfig",
    plural = "controllerconfigs",
    status = "ControllerConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "ControllerConfig describes a cluster to the templates of which MachineConfigs are made."
)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerConfigSpec {
    /// Certificates that nodes trust in addition, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_trust_bundle: Option<String>,
    /// Bootable container image of the operating system.
    #[serde(
        rename = "baseOSContainerImage",
        skip_serializing_if = "String::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub base_os_container_image: String,
    /// Container image with the extensions of the operating system.
    #[serde(
        rename = "baseOSExtensionsContainerImage",
        skip_serializing_if = "String::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub base_os_extensions_container_image: String,
    /// Certificates of the cloud provider's API, in base64.
    #[serde(rename = "cloudProviderCAData", skip_serializing_if = "Option::is_none")]
    pub cloud_provider_ca_data: Option<String>,
    /// Configuration of the cloud provider.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub cloud_provider_config: String,
    /// Address of the cluster's DNS server.
    #[serde(rename = "clusterDNSIP", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub cluster_dns_ip: String,
    /// The cluster's DNS object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub dns: Option<RawJson>,
    /// Trusted certificates of image registries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub image_registry_bundle_data: Vec<RegistryBundle>,
    /// Trusted certificates of image registries that users have added.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub image_registry_bundle_user_data: Vec<RegistryBundle>,
    /// Images by the names that templates have for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub images: BTreeMap<String, String>,
    /// The cluster's Infrastructure object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub infra: Option<RawJson>,
    /// Pull secrets of the registry in the cluster, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_registry_pull_secret: Option<String>,
    /// IP families: `IPv4`, `IPv6`, `DualStack` or `DualStackIPv6Primary`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub ip_families: String,
    /// Certificates by which the API server is trusted, in base64.
    #[serde(rename = "kubeAPIServerServingCAData", skip_serializing_if = "Option::is_none")]
    pub kube_api_server_serving_ca_data: Option<String>,
    /// Network of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub network: Option<RawJson>,
    /// Type of the network, such as `OVNKubernetes`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub network_type: String,
    /// Older name of an image of the operating system. Not used.
    #[serde(rename = "osImageURL", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub os_image_url: String,
    /// Older name of the platform, which `infra` has.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub platform: String,
    /// Proxy of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub proxy: Option<RawJson>,
    /// Secret with the credentials of image registries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<ObjectReference>,
    /// Image of the release.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub release_image: String,
    /// Certificates that nodes trust, in base64.
    #[serde(rename = "rootCAData", skip_serializing_if = "Option::is_none")]
    pub root_ca_data: Option<String>,
}

/// Certificates of an image registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["data", "file"]))]
pub struct RegistryBundle {
    /// The certificates, in base64.
    #[serde(deserialize_with = "null_as_default")]
    pub data: String,
    /// Name of the file that they are written to: host and port of the registry.
    #[serde(deserialize_with = "null_as_default")]
    pub file: String,
}

/// The status of a ControllerConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerConfigStatus {
    /// Conditions of the ControllerConfig.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub conditions: Vec<Condition>,
    /// Certificates in the spec.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub controller_certificates: Vec<ControllerCertificate>,
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["bundleFile", "signer", "subject"]))]
pub struct ControllerCertificate {
    /// Bundle that has it.
    #[serde(deserialize_with = "null_as_default")]
    pub bundle_file: String,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub not_after: Option<String>,
    /// When it begins to be valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub not_before: Option<String>,
    /// Who has signed it.
    #[serde(deserialize_with = "null_as_default")]
    pub signer: String,
    /// Subject of the certificate.
    #[serde(deserialize_with = "null_as_default")]
    pub subject: String,
}
