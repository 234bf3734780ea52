//! KubeletConfigs: machine-config-operator's unit tables as data in `tables/`, and what else there is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use base64::Engine as _;
use nodewright_api::field::FieldError;
use nodewright_api::machine_config::{KubeletConfigSpec, MachineConfigPoolSpec, MachineConfigSpec};
use nodewright_render::ignition::Config;
use nodewright_render::kubelet::{KUBELET_CONF, generate, is_control_plane};
use nodewright_render::{RenderedSpec, kubelet};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The rows of a table, of which there must be so many.
fn rows(table: &str, count: usize) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tables/{table}.yaml"));
    let table: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), count);
    rows
}

fn name(row: &Value) -> &str {
    row["name"].as_str().unwrap()
}

fn config_of(files: &Value) -> Config {
    let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": files}});
    let spec: MachineConfigSpec = serde_json::from_str(&json!({"config": config}).to_string()).unwrap();
    RenderedSpec::read(&spec).unwrap().config
}

/// The merge of a pool whose kubelet has this configuration.
fn base(kubelet: &Value) -> Config {
    let bytes: Vec<_> = kubelet.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect();
    let text = bytes.concat();
    config_of(&json!([{"path": KUBELET_CONF, "contents": {"source": format!("data:,{text}")}}]))
}

fn pool_spec(selector: &Value) -> MachineConfigPoolSpec {
    serde_json::from_value(json!({"nodeSelector": selector})).unwrap()
}

struct Case {
    pool: Value,
    base: Value,
    spec: Value,
}

impl Case {
    fn of(spec: Value) -> Self {
        Self { pool: json!({"name": "worker"}), base: json!({}), spec }
    }

    fn generate(&self) -> Result<MachineConfigSpec, Vec<FieldError>> {
        let spec: KubeletConfigSpec = serde_json::from_str(&self.spec.to_string()).unwrap();
        generate(name(&self.pool), &pool_spec(&self.pool["selector"]), &base(&self.base), &spec)
    }

    /// A generated file.
    fn file(&self, path: &str) -> Option<String> {
        let generated = self.generate().unwrap();
        let config: Value = generated.config.unwrap().parse().unwrap();
        let files = config["storage"]["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == path)?;
        assert_eq!((file["mode"].as_i64(), file["overwrite"].as_bool()), (Some(0o644), Some(true)));
        let source = file["contents"]["source"].as_str().unwrap();
        let digits = source.strip_prefix("data:text/plain;charset=utf-8;base64,").unwrap();
        Some(String::from_utf8(base64::prelude::BASE64_STANDARD.decode(digits).unwrap()).unwrap())
    }

    fn kubelet(&self) -> Map<String, Value> {
        serde_saphyr::from_str(&self.file(KUBELET_CONF).unwrap()).unwrap()
    }

    /// The error, if there is one.
    fn refusal(&self) -> Option<String> {
        let errors = self.generate().err()?;
        Some(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }
}

fn user(kubelet: &Value) -> Case {
    Case::of(json!({"kubeletConfig": kubelet}))
}

/// Fields of a result; `""` stands for absent or empty.
fn check_fields(case: &Case, expected: &Value, row: &str) {
    let kubelet = case.kubelet();
    for (field, value) in expected.as_object().unwrap() {
        let found = kubelet.get(field).cloned().unwrap_or(json!(""));
        assert_eq!(&found, value, "{row}: {field}");
    }
}

#[test]
fn test_kubelet_config_denylisted_options() {
    for row in rows("kubelet-denied", 7) {
        let field = row["kubelet"].as_object().unwrap().keys().next().unwrap().clone();
        let refusal = user(&row["kubelet"]).refusal();
        assert_eq!(refusal.is_some(), row["expect"] == "refused", "{}", name(&row));
        assert!(refusal.is_none_or(|text| text.contains(&format!("spec.kubeletConfig.{field}"))), "{}", name(&row));
    }
    // Go cannot distinguish an empty value from none.
    for empty in [json!({"cgroupDriver": ""}), json!({"clusterDNS": []}), json!({"featureGates": {}})] {
        assert_eq!(user(&empty).refusal(), None);
    }
    let both = Case::of(json!({"autoSizingReserved": true, "kubeletConfig": {"systemReserved": {"memory": "3Gi"}}}));
    assert!(both.refusal().unwrap().contains("spec.kubeletConfig.systemReserved"));
}

#[test]
fn test_kubelet_config_log_level() {
    for row in rows("kubelet-log-level", 6) {
        let mut case = Case::of(json!({"kubeletConfig": {}}));
        if !row["log_level"].is_null() {
            case.spec["logLevel"] = row["log_level"].clone();
        }
        if row["expect"] == "refused" {
            let text = case.refusal().unwrap_or_else(|| panic!("{}", name(&row)));
            assert!(text.contains(&row["log_level"].to_string()) && text.contains("from 0 to 10"), "{text}");
            continue;
        }
        let written = case.file("/etc/systemd/system/kubelet.service.d/20-logging.conf");
        let expected =
            row["log_level"].as_i64().map(|level| format!("[Service]\nEnvironment=\"KUBELET_LOG_LEVEL={level}\"\n"));
        assert_eq!(written, expected, "{}", name(&row));
    }
}

#[test]
fn test_is_control_plane_pool() {
    for row in rows("kubelet-control-plane-pools", 9) {
        let found = is_control_plane(name(&row["pool"]), &pool_spec(&row["pool"]["selector"]));
        assert_eq!(json!(found), row["expect"], "{}", name(&row));
    }
}

#[test]
fn test_static_pod_path_pool_validation() {
    for row in rows("kubelet-static-pods", 11) {
        let case = Case { pool: row["pool"].clone(), ..user(&row["kubelet"]) };
        let refusal = case.refusal();
        assert_eq!(refusal.is_some(), row["expect"] == "refused", "{}: {refusal:?}", name(&row));
        assert!(refusal.is_none_or(|text| text.contains("spec.kubeletConfig.staticPodPath")), "{}", name(&row));
    }
}

#[test]
fn test_reserve_system_cpus() {
    for row in rows("kubelet-reserved-cpus", 4) {
        let case = Case { base: row["base"].clone(), ..user(&json!({})) };
        check_fields(&case, &row["expect"], name(&row));
    }
}

#[test]
fn test_merges() {
    for row in rows("kubelet-merge", 4) {
        let case = Case { base: row["base"].clone(), ..user(&row["user"]) };
        if row["expect"] == "error" {
            let text = case.refusal().unwrap_or_else(|| panic!("{}", name(&row)));
            assert!(text.contains("/foo.slice") && text.contains("/system.slice"), "{text}");
        } else {
            check_fields(&case, &row["expect"], name(&row));
        }
    }
}

#[test]
fn test_kubelet_config_auto_sizing_reserved() {
    for row in rows("kubelet-auto-sizing", 9) {
        // What templates have is theirs.
        if row.get("template").is_some() {
            continue;
        }
        let mut case = user(&row["user"]);
        if !row["auto"].is_null() {
            case.spec["autoSizingReserved"] = row["auto"].clone();
        }
        if row["expect"] == "refused" {
            assert!(case.refusal().is_some(), "{}", name(&row));
            continue;
        }
        let written = case.file("/etc/node-sizing-enabled.env");
        let keys = ["NODE_SIZING_ENABLED", "SYSTEM_RESERVED_MEMORY", "SYSTEM_RESERVED_CPU", "SYSTEM_RESERVED_ES"];
        let expected = row["expect"]["env"]
            .as_object()
            .map(|env| keys.map(|key| format!("{key}={}\n", env[key].as_str().unwrap())).concat());
        assert_eq!(written, expected, "{}", name(&row));
        if let Some(left) = row["expect"].get("left_in_kubelet") {
            let found = case.kubelet().get("systemReserved").cloned().unwrap_or(json!({}));
            assert_eq!(&found, left, "{}", name(&row));
        }
    }
}

#[test]
fn test_kubelet_config_tls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables/kubelet-tls.yaml");
    let table: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut checked = 0;
    for row in rows("kubelet-tls", 10) {
        // The cluster's profile is the base's here: only the fields of a KubeletConfig are ours.
        let profile = if row["profile"].is_object() { &row["profile"] } else { &row["cluster"] };
        if profile.is_null() || !row["user"].is_null() {
            continue;
        }
        let case = Case::of(json!({"kubeletConfig": {}, "tlsSecurityProfile": profile}));
        let expected = row["expect"].as_str().map_or(&row["expect"], |name| &table["results"][name]);
        let kubelet = case.kubelet();
        assert_eq!(kubelet["tlsMinVersion"], expected["min"], "{}", name(&row));
        assert_eq!(kubelet["tlsCipherSuites"], expected["suites"], "{}", name(&row));
        checked += 1;
    }
    assert_eq!(checked, 6);
    let user = json!({"kubeletConfig": {"tlsMinVersion": "VersionTLS12"}, "tlsSecurityProfile": {"type": "Modern"}});
    let kubelet = Case::of(user).kubelet();
    assert_eq!(kubelet["tlsMinVersion"], "VersionTLS12", "fields of the user win");
    assert_eq!(kubelet["tlsCipherSuites"], table["results"]["Modern"]["suites"]);
    let without = Case { base: json!({"tlsMinVersion": "VersionTLS11"}), ..Case::of(json!({"kubeletConfig": {}})) };
    assert_eq!(without.kubelet()["tlsMinVersion"], "VersionTLS11", "without a profile, that of the base stays");
    let wrong = Case::of(json!({"tlsSecurityProfile": {"type": "Best"}})).refusal().unwrap();
    assert!(wrong.starts_with("spec.tlsSecurityProfile.type: Unsupported value: \"Best\""), "{wrong}");
}

/// Types are those of Kubernetes' own code; fields of a later release pass.
#[test]
fn values_of_a_wrong_type_are_refused_with_their_path() {
    for (kubelet, path) in [
        (json!({"maxPods": "110"}), "spec.kubeletConfig.maxPods: Invalid value: \"110\": must be an integer"),
        (json!({"syncFrequency": 10}), "spec.kubeletConfig.syncFrequency: Invalid value: 10: must be a duration"),
        (json!({"evictionHard": {"memory.available": 5}}), "spec.kubeletConfig.evictionHard"),
        (
            json!({"authentication": {"x509": {"clientCAFile": 1}}}),
            "spec.kubeletConfig.authentication.x509.clientCAFile",
        ),
        (json!({"protectKernelDefaults": "false"}), "must be true or false"),
        (json!({"allowedUnsafeSysctls": ["a", 1]}), "must be a list of strings"),
    ] {
        let text = user(&kubelet).refusal().unwrap_or_else(|| panic!("{kubelet} passes"));
        assert!(text.contains(path), "{text}");
    }
    let fine = json!({"maxPods": 110, "protectKernelDefaults": false, "syncFrequency": "1m0s", "ofALaterRelease": {"a": 1},
        "evictionHard": {"memory.available": "5%"}, "cpuCFSQuota": null});
    assert_eq!(user(&fine).refusal(), None);
    assert_eq!(user(&fine).kubelet()["protectKernelDefaults"], false, "false is written, too");
}

#[test]
fn a_pool_without_the_file_or_with_one_that_cannot_be_read_is_an_error() {
    let spec = KubeletConfigSpec::default();
    let refused = |files: Value| {
        let errors = generate("worker", &pool_spec(&Value::Null), &config_of(&files), &spec).unwrap_err();
        errors[0].to_string()
    };
    assert!(refused(json!([{"path": "/a"}])).contains("[/etc/kubernetes/kubelet.conf]: Required value"));
    let gzip =
        json!([{"path": KUBELET_CONF, "contents": {"compression": "gzip", "source": "data:;base64,H4sIAAAAAAAA"}}]);
    assert!(refused(gzip).contains("must not be compressed"));
    let text = |source: &str| json!([{"path": KUBELET_CONF, "contents": {"source": source}}]);
    for (source, place) in
        [("data:,secret", "JSON"), ("data:,a:%201%0ab:%20%5Bsecret", "JSON: its content is no YAML, at line ")]
    {
        let refusal = refused(text(source));
        assert!(refusal.contains("must be a KubeletConfiguration") && !refusal.contains("secret"), "{refusal}");
        assert!(refusal.contains(place), "{refusal}");
    }
}

#[test]
fn the_base_may_be_yaml_and_the_result_is_its_own_base() {
    let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 110\nfeatureGates:\n  A: true\n";
    let source = text.replace('\n', "%0a").replace(' ', "%20");
    let files = json!([{"path": KUBELET_CONF, "contents": {"source": format!("data:,{source}")}}]);
    let spec: KubeletConfigSpec = serde_json::from_str(r#"{"kubeletConfig": {"maxPods": 250}}"#).unwrap();
    let of = |base: &Config| generate("worker", &pool_spec(&Value::Null), base, &spec).unwrap();
    let first = of(&config_of(&files));
    let config = RenderedSpec::read(&first).unwrap().config;
    assert_eq!(of(&config), first);
    let again: Value = first.config.unwrap().parse().unwrap();
    assert_eq!(again["storage"]["files"].as_array().unwrap().len(), 1);
    assert_eq!(kubelet::name("worker"), "99-worker-generated-kubelet");
}
