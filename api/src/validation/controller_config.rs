//! Rules of a ControllerConfig.

use std::net::IpAddr;

use super::Validate;
use crate::field::{FieldError, FieldPath};
use crate::machine_config::{CONTROLLER_CONFIG, ControllerConfig, ControllerConfigSpec, RegistryBundle};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// The families that OpenShift has.
const IP_FAMILIES: [&str; 4] = ["DualStack", "DualStackIPv6Primary", "IPv4", "IPv6"];
const BASE64: &str = "must be base64";

impl Validate for ControllerConfig {
    fn validate(&self) -> Vec<FieldError> {
        let spec = FieldPath::new("spec");
        let mut errors = data_errors(&self.spec, &spec);
        let address = self.spec.cluster_dns_ip.as_str();
        if !address.is_empty() && address.parse::<IpAddr>().is_err() {
            errors.push(FieldError::invalid(spec.child("clusterDNSIP"), address, "must be an IP address"));
        }
        let families = self.spec.ip_families.as_str();
        if !families.is_empty() && !IP_FAMILIES.contains(&families) {
            errors.push(FieldError::not_supported(spec.child("ipFamilies"), families, &IP_FAMILIES));
        }
        let bundles = [
            ("imageRegistryBundleData", &self.spec.image_registry_bundle_data),
            ("imageRegistryBundleUserData", &self.spec.image_registry_bundle_user_data),
        ];
        errors.extend(bundles.into_iter().flat_map(|(field, bundles)| bundle_errors(bundles, &spec.child(field))));
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let text = format!("metadata.name: only the ControllerConfig of the name {CONTROLLER_CONFIG} has an effect");
        if name == CONTROLLER_CONFIG { Vec::new() } else { vec![text] }
    }
}

/// The errors of the fields that hold files in base64. The errors do not quote them: one is a pull secret.
fn data_errors(spec: &ControllerConfigSpec, path: &FieldPath) -> Vec<FieldError> {
    let fields = [
        ("additionalTrustBundle", &spec.additional_trust_bundle),
        ("cloudProviderCAData", &spec.cloud_provider_ca_data),
        ("internalRegistryPullSecret", &spec.internal_registry_pull_secret),
        ("kubeAPIServerServingCAData", &spec.kube_api_server_serving_ca_data),
        ("rootCAData", &spec.root_ca_data),
    ];
    let wrong = fields.into_iter().filter_map(|(field, data)| Some((field, data.as_ref()?)));
    wrong.filter_map(|(field, data)| base64_error(data, path.child(field))).collect()
}

fn bundle_errors(bundles: &[RegistryBundle], path: &FieldPath) -> Vec<FieldError> {
    let errors = bundles.iter().enumerate().flat_map(|(index, bundle)| {
        let path = path.key(index);
        let file = file_error(&bundle.file, path.child("file"));
        file.into_iter().chain(base64_error(&bundle.data, path.child("data")))
    });
    errors.take(super::MOST_ERRORS).collect()
}

/// The name is a folder of the node, so it may not lead elsewhere.
fn file_error(file: &str, path: FieldPath) -> Option<FieldError> {
    if file.is_empty() {
        return Some(FieldError::required(path, "must be host and port of the registry, such as example.com..5000"));
    }
    let is_name = !file.contains('/') && !matches!(file, "." | "..");
    (!is_name).then(|| FieldError::invalid(path, file, "must be the name of a file, without '/'"))
}

fn base64_error(text: &str, path: FieldPath) -> Option<FieldError> {
    let is_base64 = serde_json::from_value::<ByteString>(json!(text)).is_ok();
    (!is_base64).then(|| FieldError::confidential(path, &Value::from(text), BASE64))
}
