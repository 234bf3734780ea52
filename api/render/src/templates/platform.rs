//! The platform of a cluster: which variants of templates apply, and what functions of templates say about it.

use nodewright_api::RawJson;
use nodewright_api::machine_config::ControllerConfigSpec;
use serde_json::Value;

/// The platforms whose nodes stand in a data centre, which have the variant `on-prem`.
const ON_PREMISES: [&str; 5] = ["BareMetal", "Nutanix", "OpenStack", "VSphere", "oVirt"];
/// The other platforms that are known. One that is not counts as none.
const OTHERS: [&str; 10] =
    ["AWS", "AlibabaCloud", "Azure", "EquinixMetal", "External", "GCP", "IBMCloud", "KubeVirt", "Libvirt", "PowerVS"];
const NONE: &str = "None";
/// The clouds in which a cluster may have its own DNS server.
const WITH_OWN_DNS: [&str; 3] = ["AWS", "Azure", "GCP"];
/// The platforms whose cloud provider runs outside the kubelet. Of `External` the status says it.
const WITH_EXTERNAL_PROVIDER: [&str; 10] =
    ["AWS", "AlibabaCloud", "Azure", "GCP", "IBMCloud", "KubeVirt", "Nutanix", "OpenStack", "PowerVS", "VSphere"];
/// The platforms whose credentials for their image registries a plugin of the kubelet has, and its configuration.
const CREDENTIAL_PROVIDERS: [(&str, &str); 3] = [
    ("AWS", "ecr-credential-provider.yaml"),
    ("Azure", "acr-credential-provider.yaml"),
    ("GCP", "gcr-credential-provider.yaml"),
];
/// The type of a load balancer, and of DNS records, that the cluster has itself.
const MANAGED: &str = "OpenShiftManagedDefault";
const INTERNAL: &str = "Internal";

/// What decides which variants of templates apply, and what their functions return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Platform {
    /// `infra.status.platformStatus.type`, such as `AWS`; `None` if it is unknown.
    pub(super) kind: String,
    /// `infra.status.controlPlaneTopology`. May be empty.
    pub(super) topology: String,
    /// The status of the platform itself, such as `infra.status.platformStatus.aws`; null if it is absent.
    pub(super) status: Value,
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
        let topology = text(&status["controlPlaneTopology"]).unwrap_or_default();
        let status = platform[kind.to_lowercase()].clone();
        Ok(Self { kind, topology, status })
    }

    /// The folders of variants that apply, in their order.
    pub(super) fn variants(&self) -> Vec<String> {
        let given = [
            ("_base", true),
            ("on-prem", self.is_on_premises()),
            ("cloud-platform-alt-dns", self.own_dns().is_some_and(Value::is_object)),
            (&self.kind.to_lowercase(), true),
            ("sno", self.topology == "SingleReplica"),
            ("two-node-with-fencing", self.topology == "DualReplica"),
        ];
        given.into_iter().filter(|(_, applies)| *applies).map(|(variant, _)| variant.to_owned()).collect()
    }

    fn is_on_premises(&self) -> bool {
        ON_PREMISES.contains(&self.kind.as_str())
    }

    /// The load balancers of a cloud whose cluster has its own DNS server; null if their addresses are not known yet.
    fn own_dns(&self) -> Option<&Value> {
        let config = &self.status["cloudLoadBalancerConfig"];
        let has = WITH_OWN_DNS.contains(&self.kind.as_str()) && config["dnsType"] == "ClusterHosted";
        has.then(|| &config["clusterHosted"])
    }

    /// `external`, or nothing.
    pub(super) fn cloud_provider(&self) -> &'static str {
        let is_external = match self.kind.as_str() {
            "External" => self.status["cloudControllerManager"]["state"] == "External",
            kind => WITH_EXTERNAL_PROVIDER.contains(&kind),
        };
        if is_external { "external" } else { "" }
    }

    /// The kubelet's flags for the plugin that has the credentials for the platform's image registry.
    pub(super) fn credential_provider_flags(&self) -> String {
        let config = CREDENTIAL_PROVIDERS.iter().find(|(kind, _)| *kind == self.kind);
        let flags = |(_, config): &(&str, &str)| {
            format!(
                "--image-credential-provider-bin-dir=/usr/libexec/kubelet-image-credential-provider-plugins \
                 --image-credential-provider-config=/etc/kubernetes/credential-providers/{config}"
            )
        };
        config.map(flags).unwrap_or_default()
    }

    /// The name of the platform in paths on its nodes; empty in a cloud.
    pub(super) fn on_premises_name(&self) -> String {
        match self.kind.as_str() {
            "BareMetal" => "kni".to_owned(),
            kind if self.is_on_premises() => kind.to_lowercase(),
            _ => String::new(),
        }
    }

    /// Addresses in the status of a platform on premises. Of vSphere the status may be absent: its load balancers are the user's.
    pub(super) fn on_premises_ips(&self, field: &str) -> Result<Vec<String>, String> {
        if !self.is_on_premises() {
            return Err(format!("platform {} is none that is on premises, which have {field}", self.kind));
        }
        if self.status.is_null() && self.kind != "VSphere" {
            return Err(format!("infra.status.platformStatus.{} is not there", self.kind.to_lowercase()));
        }
        Ok(texts(&self.status[field]))
    }

    /// Addresses of the load balancers of a cloud whose cluster has its own DNS server.
    pub(super) fn cloud_ips(&self, field: &str) -> Result<Vec<String>, String> {
        let at = "cloudLoadBalancerConfig";
        match self.own_dns() {
            Some(hosted) if hosted.is_object() => Ok(texts(&hosted[field])),
            Some(_) => Err(format!("{at}.clusterHosted is not there yet, of which {field} is a part")),
            None => Err(format!("platform {} has no {at} with dnsType ClusterHosted", self.kind)),
        }
    }

    /// Whether the cluster has its load balancers itself.
    pub(super) fn has_managed_load_balancer(&self) -> bool {
        if !self.is_on_premises() {
            return true;
        }
        let is_the_users = self.kind == "VSphere" && texts(&self.status["apiServerInternalIPs"]).is_empty();
        if self.status.is_null() || is_the_users {
            return false;
        }
        match &self.status["loadBalancer"] {
            Value::Null => true,
            balancer => balancer["type"] == MANAGED,
        }
    }

    /// Whether the cluster has its DNS records itself: `Internal`, `External`, or nothing if the status does not say it.
    pub(super) fn dns_records_type(&self) -> &str {
        if !self.is_on_premises() || self.kind == "oVirt" || self.status.is_null() {
            return INTERNAL;
        }
        self.status["dnsRecordsType"].as_str().unwrap_or_default()
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// An opaque part of a ControllerConfig; null if it is absent.
pub(super) fn object(part: Option<&RawJson>) -> Value {
    part.and_then(|part| part.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn platform(status: &Value) -> Platform {
        let infra = json!({"status": {"platformStatus": status}});
        let spec = ControllerConfigSpec { infra: Some(RawJson::from(&infra)), ..ControllerConfigSpec::default() };
        Platform::of(&spec).unwrap()
    }

    /// Machine-config-operator's test `TestInvalidPlatform`.
    #[test]
    fn an_unknown_platform_counts_as_none_and_base_is_refused() {
        let spec = |infra: &Value| ControllerConfigSpec {
            infra: Some(RawJson::from(infra)),
            ..ControllerConfigSpec::default()
        };
        for (infra, kind) in [
            (json!({"status": {"platformStatus": {"type": "baremetal"}}}), "BareMetal"),
            (json!({"status": {"platformStatus": {"type": "oVirt"}}}), "oVirt"),
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

    #[test]
    fn each_platform_has_its_cloud_provider_and_names() {
        for (kind, provider, config, name) in [
            ("AWS", "external", "ecr-credential-provider.yaml", ""),
            ("AlibabaCloud", "external", "", ""),
            ("Azure", "external", "acr-credential-provider.yaml", ""),
            ("BareMetal", "", "", "kni"),
            ("EquinixMetal", "", "", ""),
            ("External", "", "", ""),
            ("GCP", "external", "gcr-credential-provider.yaml", ""),
            ("IBMCloud", "external", "", ""),
            ("KubeVirt", "external", "", ""),
            ("Libvirt", "", "", ""),
            ("None", "", "", ""),
            ("Nutanix", "external", "", "nutanix"),
            ("OpenStack", "external", "", "openstack"),
            ("PowerVS", "external", "", ""),
            ("VSphere", "external", "", "vsphere"),
            ("oVirt", "", "", "ovirt"),
            ("unknown", "", "", ""),
        ] {
            let platform = platform(&json!({"type": kind}));
            assert_eq!(platform.cloud_provider(), provider, "{kind}");
            let flags = platform.credential_provider_flags();
            assert!(flags.ends_with(config) && flags.is_empty() == config.is_empty(), "{kind}: {flags}");
            assert_eq!(platform.on_premises_name(), name, "{kind}");
        }
        for (state, provider) in [("External", "external"), ("None", ""), ("", "")] {
            let status = json!({"type": "External", "external": {"cloudControllerManager": {"state": state}}});
            assert_eq!(platform(&status).cloud_provider(), provider, "{state}");
        }
    }

    #[test]
    fn load_balancers_are_the_clusters_or_the_users() {
        for (status, managed, records) in [
            (json!({"type": "AWS"}), true, "Internal"),
            (json!({}), true, "Internal"),
            (json!({"type": "BareMetal"}), false, "Internal"),
            (json!({"type": "BareMetal", "baremetal": {}}), true, ""),
            (json!({"type": "BareMetal", "baremetal": {"loadBalancer": {}}}), false, ""),
            (json!({"type": "Nutanix", "nutanix": {"loadBalancer": {"type": MANAGED}}}), true, ""),
            (json!({"type": "OpenStack", "openstack": {"dnsRecordsType": "External"}}), true, "External"),
            (json!({"type": "OpenStack", "openstack": {"loadBalancer": {"type": "UserManaged"}}}), false, ""),
            (json!({"type": "oVirt", "ovirt": {"dnsRecordsType": "External"}}), true, "Internal"),
            (json!({"type": "VSphere"}), false, "Internal"),
            (json!({"type": "VSphere", "vsphere": {"dnsRecordsType": "Internal"}}), false, "Internal"),
            (json!({"type": "VSphere", "vsphere": {"apiServerInternalIPs": ["10.0.0.5"]}}), true, ""),
            (
                json!({"type": "VSphere",
                    "vsphere": {"apiServerInternalIPs": ["10.0.0.5"], "loadBalancer": {"type": "UserManaged"}}}),
                false,
                "",
            ),
        ] {
            let platform = platform(&status);
            assert_eq!(platform.has_managed_load_balancer(), managed, "{status}");
            assert_eq!(platform.dns_records_type(), records, "{status}");
        }
    }

    #[test]
    fn addresses_are_those_of_the_platform() {
        let field = "apiServerInternalIPs";
        for (status, ips) in [
            (json!({"type": "BareMetal", "baremetal": {field: ["10.0.0.5", "fd00::5"]}}), Ok(2)),
            (json!({"type": "oVirt", "ovirt": {field: ["10.0.0.5"]}}), Ok(1)),
            (json!({"type": "Nutanix", "nutanix": {}}), Ok(0)),
            (json!({"type": "VSphere"}), Ok(0)),
            (json!({"type": "OpenStack"}), Err("infra.status.platformStatus.openstack is not there")),
            (json!({"type": "AWS"}), Err("platform AWS is none that is on premises")),
            (json!({}), Err("platform None is none that is on premises")),
        ] {
            let found = platform(&status).on_premises_ips(field);
            match ips {
                Ok(count) => assert_eq!(found.map(|ips| ips.len()), Ok(count), "{status}"),
                Err(text) => assert!(found.unwrap_err().starts_with(text), "{status}"),
            }
        }
        let field = "apiIntLoadBalancerIPs";
        let hosted = |hosted: Value| json!({"dnsType": "ClusterHosted", "clusterHosted": hosted});
        for (kind, config, ips) in [
            ("GCP", hosted(json!({field: ["10.0.0.6"]})), Ok(1)),
            ("AWS", hosted(json!({})), Ok(0)),
            ("Azure", hosted(Value::Null), Err("cloudLoadBalancerConfig.clusterHosted is not there yet")),
            ("GCP", json!({"dnsType": "PlatformDefault"}), Err("platform GCP has no cloudLoadBalancerConfig")),
            ("PowerVS", hosted(json!({field: ["10.0.0.6"]})), Err("platform PowerVS has no cloudLoadBalancerConfig")),
        ] {
            let platform = platform(&json!({"type": kind, kind.to_lowercase(): {"cloudLoadBalancerConfig": config}}));
            let has_variant = platform.variants().contains(&"cloud-platform-alt-dns".to_owned());
            assert_eq!(has_variant, ips.is_ok(), "{kind} {config}");
            let found = platform.cloud_ips(field);
            match ips {
                Ok(count) => assert_eq!(found.map(|ips| ips.len()), Ok(count), "{kind} {config}"),
                Err(text) => assert!(found.unwrap_err().starts_with(text), "{kind} {config}"),
            }
        }
    }
}
