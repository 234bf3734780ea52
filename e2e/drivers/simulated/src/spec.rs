//! The providerSpec of a MachineClass of this provider.

use std::{borrow::Cow, collections::BTreeMap};

use nodewright_api::{Code, RawJson};
use nodewright_driver::DriverError;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::client::Taint;

const SIZES: [&str; 4] = ["small", "medium", "large", "xlarge"];
/// The longest boot time that the cloud accepts, in seconds.
const BOOT_SECONDS_LIMIT: f64 = 86_400.0;

/// The maximum number of errors in a message. The rest is reported once these are fixed.
const MOST_FAULTS: usize = 20;
/// The maximum length of a user-chosen name in a message.
const LONGEST_NAME: usize = 64;

/// `{"cluster": "c", "size": "small", "zone": "z", "region": "r", "bootSeconds": 2, "labels": {}, "taints": [],
/// "externalCloudProvider": false, "panics": false}`; only `cluster` is required.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ProviderSpec {
    /// The cluster of the VMs. Several installations of the manager may share a cloud; clusters keep their VMs apart.
    pub cluster: String,
    pub size: Option<String>,
    pub zone: Option<String>,
    pub region: Option<String>,
    /// Exact number of seconds until a VM runs; the cloud's own boot time with its jitter if absent.
    pub boot_seconds: Option<f64>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Whether the kubelets run with `--cloud-provider=external`.
    #[serde(default)]
    pub external_cloud_provider: bool,
    /// Whether the driver panics when it creates a VM, with a message that quotes the user data.
    #[serde(default)]
    pub panics: bool,
}

impl ProviderSpec {
    pub(super) fn read(document: &RawJson) -> Result<Self, DriverError> {
        let faults = validate(document);
        if !faults.is_empty() {
            let faults: Vec<String> = faults.into_iter().map(|(path, what)| format!("{path}: {what}")).collect();
            return Err(invalid(faults.join("; ").trim_start_matches(": ")));
        }
        document.parse().map_err(|error| invalid(without_content(&error)))
    }
}

/// Reads only the cluster: an error in another field must not prevent the deletion of a VM.
pub(super) fn cluster(document: &RawJson) -> Result<String, DriverError> {
    #[derive(Deserialize)]
    struct Cluster {
        cluster: String,
    }
    match document.parse::<Cluster>() {
        Ok(Cluster { cluster }) if is_tag(&cluster) => Ok(cluster),
        Ok(_) => Err(invalid(CLUSTER)),
        Err(error) if error.is_data() => Err(invalid(CLUSTER)),
        Err(error) => Err(invalid(without_content(&error))),
    }
}

const CLUSTER: &str = "cluster must be a text of 1 to 253 bytes";

/// The error without the text of the parser, which may quote confidential values.
fn without_content(error: &serde_json::Error) -> &'static str {
    if error.is_data() { "a field has a value of another type" } else { "it is nested too deeply, or is not JSON" }
}

fn invalid(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("failed to read providerSpec: {what}; correct the MachineClass"))
}

/// All errors of a providerSpec: each a path and the allowed values. Empty exactly if it can be read.
pub(super) fn validate(document: &RawJson) -> Vec<(String, String)> {
    let mut faults = Faults::default();
    match document.parse::<Value>() {
        Ok(Value::Object(fields)) => check(&fields, &mut faults),
        Ok(_) => faults.add("", "must be an object with at least the field cluster"),
        Err(error) => faults.add("", &format!("cannot be read: {}", without_content(&error))),
    }
    faults.0
}

#[derive(Default)]
struct Faults(Vec<(String, String)>);

impl Faults {
    fn add(&mut self, path: &str, what: &str) {
        if self.0.len() < MOST_FAULTS {
            self.0.push((path.to_owned(), what.to_owned()));
        }
    }
}

fn check(fields: &Map<String, Value>, faults: &mut Faults) {
    if !fields.get("cluster").and_then(Value::as_str).is_some_and(is_tag) {
        faults.add("cluster", "must be the cluster's name, a text of 1 to 253 bytes");
    }
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "cluster" => {}
            "size" if value.as_str().is_some_and(|size| SIZES.contains(&size)) => {}
            "size" => faults.add("size", &format!("must be one of {}", SIZES.join(", "))),
            "bootSeconds" if value.as_f64().is_some_and(|seconds| (0.0..=BOOT_SECONDS_LIMIT).contains(&seconds)) => {}
            "bootSeconds" => faults.add("bootSeconds", "must be a number between 0 and 86400"),
            "zone" | "region" if value.as_str().is_some_and(is_tag) => {}
            "zone" | "region" => faults.add(name, "must be a text of 1 to 253 bytes"),
            "externalCloudProvider" | "panics" if value.is_boolean() => {}
            "externalCloudProvider" | "panics" => faults.add(name, "must be true or false"),
            "labels" => check_labels(value, faults),
            "taints" => check_taints(value, faults),
            unknown => {
                let what = "is no field of providerSpec; cluster, size, zone, region, bootSeconds, labels, taints, \
                            externalCloudProvider and panics are";
                faults.add(&shown(unknown), what);
            }
        }
    }
    // These may be absent but not null, in accordance with the types.
    for name in ["labels", "taints", "externalCloudProvider", "panics"] {
        if fields.get(name).is_some_and(Value::is_null) {
            faults.add(name, "must not be null; leave it out");
        }
    }
}

fn shown(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_NAME {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{}…", &name[..name.floor_char_boundary(LONGEST_NAME)]))
}

fn is_tag(text: &str) -> bool {
    (1..=253).contains(&text.len())
}

fn check_labels(value: &Value, faults: &mut Faults) {
    let Some(labels) = value.as_object() else { return faults.add("labels", "must be an object of texts") };
    for (key, value) in labels {
        if !is_tag(key) || value.as_str().is_none_or(|value| value.len() > 253) {
            faults.add(&format!("labels.{}", shown(key)), "must be a text of at most 253 bytes");
        }
    }
}

fn check_taints(value: &Value, faults: &mut Faults) {
    let Some(taints) = value.as_array() else { return faults.add("taints", "must be a list of taints") };
    for (at, taint) in taints.iter().enumerate() {
        let effect = taint.get("effect").and_then(Value::as_str).unwrap_or_default();
        let valid = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)
            && taint.get("key").and_then(Value::as_str).is_some_and(is_tag)
            && serde_json::from_value::<Taint>(taint.clone()).is_ok();
        if !valid {
            let what = "must have a key, an effect (NoSchedule, PreferNoSchedule or NoExecute) and, if any, a value";
            faults.add(&format!("taints[{at}]"), what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(document: &Value) -> Vec<String> {
        let document = RawJson::from(document);
        let faults = validate(&document);
        assert_eq!(faults.is_empty(), ProviderSpec::read(&document).is_ok(), "both agree on {}", document.text());
        faults.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn a_good_spec_is_read() {
        let document = json!({
            "cluster": "c", "size": "large", "bootSeconds": 1.5,
            "labels": {"a": "b"}, "taints": [{"key": "k", "effect": "NoExecute"}],
        });
        assert!(faults(&document).is_empty());
        let spec = ProviderSpec::read(&RawJson::from(&document)).unwrap();
        assert_eq!((spec.cluster.as_str(), spec.boot_seconds), ("c", Some(1.5)));
        assert!(faults(&json!({"cluster": "c", "size": null})).is_empty());
    }

    #[test]
    fn every_fault_is_named_by_its_path() {
        for (document, paths) in [
            (json!(null), vec![""]),
            (json!([]), vec![""]),
            (json!({}), vec!["cluster"]),
            (json!({"cluster": ""}), vec!["cluster"]),
            (json!({"cluster": 7, "size": "huge", "bootSeconds": -1}), vec!["cluster", "bootSeconds", "size"]),
            (json!({"cluster": "c", "bootSeconds": "2"}), vec!["bootSeconds"]),
            (json!({"cluster": "c", "colour": "red"}), vec!["colour"]),
            (json!({"cluster": "c", "labels": {"a": 1}}), vec!["labels.a"]),
            (json!({"cluster": "c", "labels": null}), vec!["labels"]),
            (json!({"cluster": "c", "taints": [{"key": "k", "effect": "Never"}]}), vec!["taints[0]"]),
            (json!({"cluster": "c", "taints": [{"key": "k", "effect": "NoExecute", "x": 1}]}), vec!["taints[0]"]),
        ] {
            assert_eq!(faults(&document), paths, "{document}");
        }
    }

    #[test]
    fn values_are_never_quoted_and_names_are_bounded() {
        let secret = "hunter2";
        for document in [
            json!(secret),
            json!({"cluster": [secret]}),
            json!({"cluster": {"a": secret}, "size": secret, "bootSeconds": secret, "labels": secret, "taints": secret}),
            json!({"cluster": "c", "labels": {"a": [secret]}, "taints": [secret, {"key": [secret], "effect": secret}]}),
            json!({"cluster": "c", "password": secret}),
        ] {
            let document = RawJson::from(&document);
            let reported =
                format!("{:?} {:?} {:?}", validate(&document), ProviderSpec::read(&document), cluster(&document));
            assert!(!reported.contains(secret), "{reported}");
            assert!(ProviderSpec::read(&document).is_err());
        }
        let many: Map<String, Value> = (0..1_000).map(|it| (format!("{it}{}", "x".repeat(1_000)), json!(1))).collect();
        let reported = validate(&RawJson::from(&Value::Object(many)));
        assert!(reported.len() <= 20 && reported.iter().all(|(path, _)| path.len() < 70), "{reported:?}");
    }

    #[test]
    fn the_cluster_is_read_from_a_spec_with_other_faults() {
        let cluster = |document: Value| cluster(&RawJson::from(&document)).map_err(|error| error.code);
        assert_eq!(cluster(json!({"cluster": "c", "size": "huge", "x": 1})), Ok("c".to_owned()));
        for document in [json!(null), json!({}), json!({"cluster": ""}), json!({"cluster": 1})] {
            assert_eq!(cluster(document), Err(Code::InvalidArgument));
        }
    }

    #[test]
    fn a_deeply_nested_spec_is_refused() {
        let text = format!("{{\"cluster\":\"c\",\"labels\":{}{}}}", "[".repeat(500), "]".repeat(500));
        let document = RawJson::from_text(text).unwrap();
        assert_eq!(validate(&document).len(), 1);
        let error = ProviderSpec::read(&document).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
    }
}
