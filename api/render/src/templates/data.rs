//! What templates know of a cluster: the spec of its ControllerConfig, and what is read beside it.

use super::platform::object;
use super::typed::{self, unreadable};
use super::{Inputs, TemplateError};
use crate::inputs::to_value;
use crate::kubelet;
use gotmpl::Value;
use nodewright_api::machine_config::ControllerConfigSpec;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Paths of nodes that templates and programs on nodes have in common, by the names that machine-config-operator has for them.
const CONSTANTS: [(&str, &str); 1] = [("APIServerURLFile", "/etc/kubernetes/apiserver-url.env")];

/// The fields of templates, by their names in JSON and in Go.
pub(super) fn fields(inputs: &Inputs<'_>, reads: &Arc<Reads>) -> Result<Value, TemplateError> {
    let mut fields = typed::spec(spec(inputs.spec));
    let constants = CONSTANTS.map(|(name, value)| (Arc::from(name), text(value)));
    fields.insert("Constants".into(), Value::Map(Arc::new(BTreeMap::from(constants))));
    // Beside the reference, `pullSecret`.
    let pull_secret = match inputs.pull_secret {
        Ok(secret) => reads.recorded(text(&compact(secret)?), |reads| &reads.pull_secret),
        Err(why) => unreadable(format!("PullSecret: {why}")),
    };
    fields.insert("PullSecret".into(), pull_secret);
    let (version, suites) = kubelet::tls_profile(inputs.tls_security_profile)
        .map_err(|error| TemplateError::of_file("", format!("APIServer: {error}")))?;
    let suites = Value::List(suites.iter().map(|suite| text(suite)).collect());
    fields.insert("TLSMinVersion".into(), reads.recorded(text(&version), |reads| &reads.tls_security_profile));
    fields.insert("TLSCipherSuites".into(), reads.recorded(suites, |reads| &reads.tls_security_profile));
    Ok(Value::Map(Arc::new(fields)))
}

/// Which of the inputs beside the ControllerConfig templates have read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    pull_secret: AtomicBool,
    tls_security_profile: AtomicBool,
}

impl Reads {
    /// A field that records that it is read.
    fn recorded(self: &Arc<Self>, value: Value, of: fn(&Self) -> &AtomicBool) -> Value {
        let reads = self.clone();
        Value::Function(Arc::new(move |_| {
            of(&reads).store(true, Relaxed);
            Ok(value.clone())
        }))
    }

    pub(super) fn forget(&self) {
        self.pull_secret.store(false, Relaxed);
        self.tls_security_profile.store(false, Relaxed);
    }

    /// What has been read, for a digest.
    pub(super) fn digested(&self, inputs: &Inputs<'_>) -> Map<String, Json> {
        let secret = inputs.pull_secret.ok().filter(|_| self.pull_secret.load(Relaxed));
        let profile = inputs.tls_security_profile.filter(|_| self.tls_security_profile.load(Relaxed));
        let secret = secret.map(|secret| ("pullSecret".to_owned(), secret.into()));
        let profile = profile.map(|profile| ("tlsSecurityProfile".to_owned(), to_value(profile)));
        secret.into_iter().chain(profile).collect()
    }
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

/// A spec in JSON. As in Go, a text that is absent is empty, and an object is null.
fn spec(spec: &ControllerConfigSpec) -> Map<String, Json> {
    let fields = json!({
        "additionalTrustBundle": spec.additional_trust_bundle,
        "baseOSContainerImage": spec.base_os_container_image,
        "baseOSExtensionsContainerImage": spec.base_os_extensions_container_image,
        "cloudProviderCAData": spec.cloud_provider_ca_data,
        "cloudProviderConfig": spec.cloud_provider_config,
        "clusterDNSIP": spec.cluster_dns_ip,
        "dns": object(spec.dns.as_ref()),
        "imageRegistryBundleData": spec.image_registry_bundle_data,
        "imageRegistryBundleUserData": spec.image_registry_bundle_user_data,
        "images": spec.images,
        "infra": object(spec.infra.as_ref()),
        "internalRegistryPullSecret": spec.internal_registry_pull_secret,
        "ipFamilies": spec.ip_families,
        "kubeAPIServerServingCAData": spec.kube_api_server_serving_ca_data,
        "network": object(spec.network.as_ref()),
        "networkType": spec.network_type,
        "osImageURL": spec.os_image_url,
        "platform": spec.platform,
        "proxy": object(spec.proxy.as_ref()),
        "pullSecret": spec.pull_secret,
        "releaseImage": spec.release_image,
        "rootCAData": spec.root_ca_data,
    });
    match fields {
        Json::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// JSON without blanks between its parts, and else as it is.
fn compact(json: &str) -> Result<String, TemplateError> {
    if serde_json::from_str::<serde::de::IgnoredAny>(json).is_err() {
        return Err(TemplateError::of_file("", "the Secret that spec.pullSecret names: .dockerconfigjson is no JSON"));
    }
    let (mut is_text, mut is_escaped) = (false, false);
    let kept = json.chars().filter(|c| {
        if is_text {
            is_text = *c != '"' || is_escaped;
            is_escaped = *c == '\\' && !is_escaped;
            return true;
        }
        is_text = *c == '"';
        !c.is_ascii_whitespace()
    });
    Ok(kept.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_each_field_that_a_controller_config_has() {
        let definition = nodewright_api::crd::machine_config().remove(0);
        let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let declared = schema.properties.unwrap()["spec"].properties.clone().unwrap();
        let fields = spec(&ControllerConfigSpec::default());
        assert_eq!(
            fields.keys().collect::<Vec<_>>(),
            declared.keys().collect::<Vec<_>>(),
            "spec of {}",
            definition.spec.names.kind
        );
    }

    #[test]
    fn a_pull_secret_loses_its_blanks_alone() {
        for (json, compacted) in [
            (" {\n\t\"auths\" : {\"b\": 1.0, \"a\": [1, 2]}\r\n}\n", r#"{"auths":{"b":1.0,"a":[1,2]}}"#),
            (r#"{"a": "x \" y \\", "b": " \u00e9 "}"#, r#"{"a":"x \" y \\","b":" \u00e9 "}"#),
        ] {
            assert_eq!(compact(json).unwrap(), compacted);
        }
        for wrong in ["", "{", "hush"] {
            let error = compact(wrong).unwrap_err().to_string();
            assert!(error.contains("is no JSON") && !error.contains("hush"), "{error}");
        }
    }
}
