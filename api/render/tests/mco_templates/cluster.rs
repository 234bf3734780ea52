//! Clusters: ControllerConfigs with what is read beside them.

use fastrand::Rng;
use nodewright_api::RawJson;
use nodewright_api::machine_config::ControllerConfigSpec;
use nodewright_render::templates::Inputs;
use serde_json::{Value, json};

/// What decides most of what templates say.
const TOPOLOGIES: [&str; 6] =
    ["HighlyAvailable", "SingleReplica", "DualReplica", "HighlyAvailableArbiter", "External", ""];
const FAMILIES: [&str; 4] = ["IPv4", "IPv6", "DualStack", "DualStackIPv6Primary"];
const ON_PREMISES: [(&str, &str); 5] = [
    ("BareMetal", "baremetal"),
    ("Nutanix", "nutanix"),
    ("OpenStack", "openstack"),
    ("VSphere", "vsphere"),
    ("oVirt", "ovirt"),
];
const CLOUDS: [(&str, &str); 3] = [("AWS", "aws"), ("Azure", "azure"), ("GCP", "gcp")];
const OTHERS: [&str; 8] =
    ["AlibabaCloud", "EquinixMetal", "External", "IBMCloud", "KubeVirt", "Libvirt", "None", "PowerVS"];
/// The images that templates name.
const IMAGES: [&str; 10] = [
    "apiServerWatcherKey",
    "baremetalRuntimeCfgImage",
    "corednsImage",
    "haproxyImage",
    "infraImageKey",
    "keepalivedImage",
    "kubeRbacProxyImage",
    "machineConfigOperator",
    "machineOSContentKey",
    "toolsImageKey",
];
/// "line one\nline two\n" in base64, and without its end.
const BYTES: [&str; 2] = ["bGluZSBvbmUKbGluZSB0d28K", "bGluZSBvbmUKbGluZSB0d28="];

pub(crate) struct Cluster {
    json: Value,
    spec: ControllerConfigSpec,
    pull_secret: String,
    profile: Option<RawJson>,
}

impl Cluster {
    fn new(spec: &Value, pull_secret: &str, profile: &Value) -> Self {
        let json = json!({"spec": spec, "pullSecret": pull_secret, "tlsSecurityProfile": profile});
        let profile = (!profile.is_null()).then(|| RawJson::from(profile));
        let spec = serde_json::from_value(spec.clone()).unwrap();
        Self { json, spec, pull_secret: pull_secret.to_owned(), profile }
    }

    /// A cluster that follows from a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let platform = draw_platform(rng);
        let topology = one_of(rng, &TOPOLOGIES);
        let mut spec = spec(&platform, topology, one_of(rng, &FAMILIES));
        spec["networkType"] = json!(one_of(rng, &["OVNKubernetes", "OpenShiftSDN", "Other", ""]));
        spec["cloudProviderConfig"] = json!(one_of(rng, &["", "one line", "[Global]\nx = 1\n", "a\n\n  b: \"c\"\n\n"]));
        if rng.bool() {
            spec["proxy"] = proxy(rng);
        }
        if rng.bool() {
            spec["network"] = network(rng);
        }
        for field in ["additionalTrustBundle", "cloudProviderCAData", "rootCAData", "kubeAPIServerServingCAData"] {
            if rng.bool() {
                spec[field] = json!(one_of(rng, &BYTES));
            }
        }
        // What is absent is empty in templates. An image is a key of a map: of one that is absent Go prints `<no value>`, which
        // Nodewright refuses.
        if rng.u8(..) < 20 {
            spec.as_object_mut().unwrap().remove(one_of(rng, &["dns", "ipFamilies", "clusterDNSIP", "networkType"]));
        }
        if rng.u8(..) < 15 {
            spec["infra"]["status"].as_object_mut().unwrap().remove("apiServerInternalURI");
        }
        let secret = one_of(
            rng,
            &["{\"auths\": {}}", " {\n \"b\": \"x y\\\" z\",\t\"a\": [1, 2.0]}\n", "{\"dummy\":\"dummy\"}"],
        );
        Self::new(&spec, secret, &profile(rng))
    }

    /// What the oracle is asked.
    pub(crate) fn json(&self) -> Value {
        self.json.clone()
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs { spec: &self.spec, pull_secret: Ok(&self.pull_secret), tls_security_profile: self.profile.as_ref() }
    }
}

/// Each platform with each topology, and in each state of its load balancers.
pub(crate) fn each_kind() -> Vec<Cluster> {
    let simple = |kind: &str| json!({"type": kind});
    let mut platforms: Vec<Value> = OTHERS.iter().map(|kind| simple(kind)).collect();
    platforms.push(json!({"type": "External", "external": {"cloudControllerManager": {"state": "External"}}}));
    platforms.push(simple("VSphere"));
    for (kind, field) in ON_PREMISES {
        let ips = json!({"apiServerInternalIPs": ["10.0.0.5"], "ingressIPs": ["10.0.0.7"]});
        platforms.push(json!({"type": kind, field: ips}));
        platforms.push(json!({"type": kind, field: {"apiServerInternalIPs": ["10.0.0.5", "fd00::5"],
            "ingressIPs": ["10.0.0.7", "fd00::7"], "loadBalancer": {"type": "UserManaged"}, "dnsRecordsType": "External"}}));
    }
    for (kind, field) in CLOUDS {
        platforms.push(simple(kind));
        platforms.push(json!({"type": kind, field: {"region": "a"}}));
        let hosted = json!({"apiIntLoadBalancerIPs": ["10.0.0.6"], "apiLoadBalancerIPs": ["10.0.0.8"],
            "ingressLoadBalancerIPs": ["10.0.0.9"]});
        let config = json!({"dnsType": "ClusterHosted", "clusterHosted": hosted});
        platforms.push(json!({"type": kind, field: {"cloudLoadBalancerConfig": config}}));
    }
    let mut clusters = Vec::new();
    for (index, platform) in platforms.iter().enumerate() {
        for topology in &TOPOLOGIES[..4] {
            let spec = spec(platform, topology, FAMILIES[index % FAMILIES.len()]);
            clusters.push(Cluster::new(&spec, "{}", &Value::Null));
        }
    }
    clusters
}

fn spec(platform: &Value, topology: &str, families: &str) -> Value {
    let images = IMAGES.map(|image| (image.to_owned(), json!(format!("quay.io/{image}@sha256:0"))));
    json!({
        "clusterDNSIP": "10.3.0.10",
        "ipFamilies": families,
        "networkType": "OVNKubernetes",
        "images": Value::Object(images.into_iter().collect()),
        "dns": {"metadata": {"name": "cluster"}, "spec": {"baseDomain": "example.com"}},
        "infra": {
            "metadata": {"name": "cluster"},
            "status": {
                "apiServerInternalURI": "https://api-int.example.com:6443",
                "apiServerURL": "https://api.example.com:6443",
                "controlPlaneTopology": topology,
                "infrastructureName": "example-x2x5p",
                "platformStatus": platform,
            },
        },
        "releaseImage": "quay.io/release@sha256:1",
    })
}

fn draw_platform(rng: &mut Rng) -> Value {
    let ips = |rng: &mut Rng| {
        let all = [json!("10.0.0.5"), json!("fd00::5"), json!("192.168.1.1")];
        all[..rng.usize(1..=2)].to_vec()
    };
    match rng.u8(..10) {
        0..=4 => {
            let (kind, field) = ON_PREMISES[rng.usize(..ON_PREMISES.len())];
            let mut status = json!({});
            // A template that needs an address of a platform without fails, with a panic in machine-config-operator.
            for name in ["apiServerInternalIPs", "ingressIPs"] {
                if rng.u8(..10) > 0 {
                    status[name] = json!(ips(rng));
                }
            }
            if rng.bool() {
                status["dnsRecordsType"] = json!(one_of(rng, &["Internal", "External"]));
            }
            if rng.bool() {
                status["loadBalancer"] = json!({"type": one_of(rng, &["OpenShiftManagedDefault", "UserManaged"])});
            }
            match rng.u8(..12) {
                0 => json!({"type": kind}),
                _ => json!({"type": kind, field: status}),
            }
        }
        5..=7 => {
            let (kind, field) = CLOUDS[rng.usize(..CLOUDS.len())];
            let mut config = json!({"dnsType": one_of(rng, &["ClusterHosted", "PlatformDefault", ""])});
            if rng.u8(..4) > 0 {
                let hosted = json!({"apiIntLoadBalancerIPs": ips(rng), "apiLoadBalancerIPs": ips(rng),
                    "ingressLoadBalancerIPs": ips(rng)});
                config["clusterHosted"] = hosted;
            }
            json!({"type": kind, field: {"cloudLoadBalancerConfig": config}})
        }
        _ => {
            let state = one_of(rng, &["External", "None", ""]);
            json!({"type": one_of(rng, &OTHERS), "external": {"cloudControllerManager": {"state": state}}})
        }
    }
}

fn proxy(rng: &mut Rng) -> Value {
    let mut proxy = json!({});
    for name in ["httpProxy", "httpsProxy", "noProxy"] {
        if rng.bool() {
            proxy[name] = json!(format!("http://user:p%40ss@{name}.example.com:3128"));
        }
    }
    proxy
}

fn network(rng: &mut Rng) -> Value {
    let mtu = |rng: &mut Rng| {
        let mut values = json!({});
        for name in ["from", "to"] {
            if rng.bool() {
                values[name] = json!(rng.u32(1..9000));
            }
        }
        values
    };
    let mut migration = json!({});
    for name in ["network", "machine"] {
        if rng.bool() {
            migration[name] = mtu(rng);
        }
    }
    match rng.u8(..4) {
        0 => json!({}),
        1 => json!({"mtuMigration": null}),
        _ => json!({"mtuMigration": migration}),
    }
}

fn profile(rng: &mut Rng) -> Value {
    let custom = json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS11",
        "ciphers": ["ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256"]}});
    let profiles = [
        Value::Null,
        json!({"type": "Old", "old": {}}),
        json!({"type": "Intermediate"}),
        json!({"type": "Modern"}),
        json!({}),
        custom,
    ];
    profiles[rng.usize(..profiles.len())].clone()
}

fn one_of<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.usize(..all.len())]
}
