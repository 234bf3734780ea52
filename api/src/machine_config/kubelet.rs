//! `KubeletConfig`: fields of the kubelet's configuration for the nodes of pools.

use crate::RawJson;
use crate::common::Condition;
use crate::wire::{is_default, null_as_default};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a KubeletConfig.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "machineconfiguration.openshift.io",
    version = "v1",
    kind = "KubeletConfig",
    plural = "kubeletconfigs",
    status = "KubeletConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "KubeletConfig changes fields of the kubelet's configuration on the nodes of the pools that it selects."
)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfigSpec {
    /// Whether each node computes what it reserves for the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_sizing_reserved: Option<bool>,
    /// Fields of kubelet's `KubeletConfiguration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub kubelet_config: Option<RawJson>,
    /// Verbosity of the kubelet's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub log_level: Option<i32>,
    /// Selects pools by their labels. An empty selector selects none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub machine_config_pool_selector: Option<LabelSelector>,
    /// What the kubelet's server offers to TLS clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub tls_security_profile: Option<RawJson>,
}

/// The status of a KubeletConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfigStatus {
    /// Conditions of the KubeletConfig.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub conditions: Vec<Condition>,
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
}
