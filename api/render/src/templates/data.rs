//! What templates know of a cluster: the ControllerConfig.

use nodewright_api::RawJson;
use nodewright_api::machine_config::ControllerConfigSpec;
use serde_json::{Value, json};

/// The platforms whose nodes stand in a data centre, which have the variant `on-prem`.
const ON_PREMISES: [&str; 5] = ["BareMetal", "Nutanix", "OpenStack", "Ovirt", "VSphere"];
/// The other platforms that are known. One that is not counts as none.
const OTHERS: [&str; 9] =
    ["AWS", "AlibabaCloud", "Azure", "External", "GCP", "IBMCloud", "KubeVirt", "Libvirt", "PowerVS"];
const NONE: &str = "None";

/// What decides which variants of templates apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Platform {
    /// `infra.status.platformStatus.type`, such as `AWS`; `None` if it is unknown.
    pub(super) kind: String,
    /// `infra.status.controlPlaneTopology`. May be empty.
    pub(super) topology: String,
    /// Whether the cluster of a cloud has its own DNS server, with the addresses of its load balancers.
    pub(super) has_own_dns: bool,
}

impl Platform {
    /// # Errors
    /// The platform has the name of the variant that all platforms have.
    pub(super) fn of(spec: &ControllerConfigSpec) -> Result<Self, String> {
        let infra = object(spec.infra.as_ref());
        let status = &infra["status"];
        let platform = &status["platformStatus"];
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let kind = text(&platform["type"])
            .or_else(|| text(&status["platform"]))
            .or_else(|| text(&spec.platform.as_str().into()));
        let kind = kind.unwrap_or_default();
        if kind == "_base" {
            return Err("ControllerConfig: spec.infra: the platform cannot be _base".to_owned());
        }
        let known = ON_PREMISES.iter().chain(&OTHERS).find(|known| kind.eq_ignore_ascii_case(known));
        let kind = known.map_or(NONE, |known| *known).to_owned();
        let cloud = &platform[kind.to_lowercase()]["cloudLoadBalancerConfig"];
        let addresses = cloud["clusterHosted"]["apiIntLoadBalancerIPs"].as_array();
        let has_own_dns = cloud["dnsType"] == "ClusterHosted" && addresses.is_some_and(|all| !all.is_empty());
        Ok(Self { kind, topology: text(&status["controlPlaneTopology"]).unwrap_or_default(), has_own_dns })
    }

    /// The folders of variants that apply, in their order.
    pub(super) fn variants(&self) -> Vec<String> {
        let given = [
            ("_base", true),
            ("on-prem", ON_PREMISES.contains(&self.kind.as_str())),
            ("cloud-platform-alt-dns", self.has_own_dns),
            (&self.kind.to_lowercase(), true),
            ("sno", self.topology == "SingleReplica"),
            ("two-node-with-fencing", self.topology == "DualReplica"),
        ];
        given.into_iter().filter(|(_, applies)| *applies).map(|(variant, _)| variant.to_owned()).collect()
    }
}

/// An opaque part of a ControllerConfig; null if it is absent.
fn object(part: Option<&RawJson>) -> Value {
    part.and_then(|part| part.parse().ok()).unwrap_or_default()
}

/// The fields of templates, by their names in JSON. As in Go, a text that is absent is empty, and an object is null.
pub(super) fn fields(spec: &ControllerConfigSpec) -> Value {
    json!({
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(infra: &Value) -> ControllerConfigSpec {
        ControllerConfigSpec { infra: Some(RawJson::from(infra)), ..ControllerConfigSpec::default() }
    }

    #[test]
    fn templates_have_each_field_that_a_controller_config_has() {
        let definition = nodewright_api::crd::machine_config().remove(0);
        let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let declared = schema.properties.unwrap()["spec"].properties.clone().unwrap();
        let fields = fields(&ControllerConfigSpec::default());
        assert_eq!(
            fields.as_object().unwrap().keys().collect::<Vec<_>>(),
            declared.keys().collect::<Vec<_>>(),
            "spec of {}",
            definition.spec.names.kind
        );
    }

    /// Machine-config-operator's test `TestInvalidPlatform`.
    #[test]
    fn an_unknown_platform_counts_as_none_and_base_is_refused() {
        for (infra, kind) in [
            (json!({"status": {"platformStatus": {"type": "baremetal"}}}), "BareMetal"),
            (json!({"status": {"platform": "GCP"}}), "GCP"),
            (json!({"status": {"platformStatus": {"type": "bad-platform"}}}), "None"),
            (json!({"status": {"platformStatus": {"type": 3}}}), "None"),
            (json!({}), "None"),
        ] {
            assert_eq!(Platform::of(&spec(&infra)).unwrap().kind, kind, "{infra}");
        }
        assert!(Platform::of(&spec(&json!({"status": {"platformStatus": {"type": "_base"}}}))).is_err());
        let older = ControllerConfigSpec { platform: "aws".to_owned(), ..ControllerConfigSpec::default() };
        assert_eq!(Platform::of(&older).unwrap().variants(), ["_base", "aws"]);
    }
}
