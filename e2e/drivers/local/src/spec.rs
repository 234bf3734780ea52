//! The providerSpec of a MachineClass of this provider.

use nodewright_api::{Code, RawJson};
use nodewright_driver::{DriverError, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The network of kind's clusters.
const KIND_NETWORK: &str = "kind";
const CLUSTER: &str = "must be the cluster's name, a text of 1 to 253 bytes";
const IMAGE: &str = "must be the image of a node of the cluster, such as kindest/node:v1.36.4";
const NETWORK: &str = "must be the name of the docker network of the cluster's nodes";

/// `{"cluster": "kind", "image": "kindest/node:v1.36.4", "network": "kind"}`; `network` has this default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderSpec {
    /// The cluster of the machines. Several clusters may share a computer; their containers have labels.
    pub cluster: String,
    /// The image of the nodes. It is never pulled: the cluster's own nodes have it.
    pub image: String,
    #[serde(default = "kind_network")]
    pub network: String,
}

fn kind_network() -> String {
    KIND_NETWORK.to_owned()
}

impl ProviderSpec {
    pub(super) fn read(document: &RawJson) -> Result<Self> {
        let faults = validate(document);
        if !faults.is_empty() {
            let faults: Vec<String> = faults.into_iter().map(|(path, what)| format!("{path} {what}")).collect();
            return Err(invalid(faults.join("; ").trim_start()));
        }
        document.parse().map_err(|_| invalid("a field has a value of another type"))
    }
}

/// Reads only the cluster: an error in another field must not prevent the deletion of a machine.
pub(super) fn cluster(document: &RawJson) -> Result<String> {
    #[derive(Deserialize)]
    struct Cluster {
        cluster: String,
    }
    match document.parse::<Cluster>() {
        Ok(Cluster { cluster }) if is_name(&cluster) => Ok(cluster),
        _ => Err(invalid(&format!("cluster {CLUSTER}"))),
    }
}

/// All errors of a providerSpec: each a path and the allowed values. Empty exactly if it can be read. No value is quoted.
pub(super) fn validate(document: &RawJson) -> Vec<(String, String)> {
    match document.parse::<Value>() {
        Ok(Value::Object(fields)) => check(&fields),
        _ => vec![(String::new(), "must be an object with the fields cluster and image".to_owned())],
    }
}

fn check(fields: &Map<String, Value>) -> Vec<(String, String)> {
    let is_name = |field: &str| fields.get(field).and_then(Value::as_str).is_some_and(is_name);
    let mut faults: Vec<(&str, &str)> = vec![];
    for (field, what) in [("cluster", CLUSTER), ("image", IMAGE)] {
        if !is_name(field) {
            faults.push((field, what));
        }
    }
    if fields.contains_key("network") && !is_name("network") {
        faults.push(("network", NETWORK));
    }
    let is_unknown = |field: &&String| !["cluster", "image", "network"].contains(&field.as_str());
    if let Some(field) = fields.keys().find(is_unknown) {
        let field = &field[..field.floor_char_boundary(64)];
        faults.push((field, "is no field of providerSpec; cluster, image and network are"));
    }
    faults.into_iter().map(|(path, what)| (path.to_owned(), what.to_owned())).collect()
}

fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
}

fn invalid(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("failed to read providerSpec: {what}; correct the MachineClass"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_fault_is_named_by_its_path_and_no_value_is_quoted() {
        let secret = "hunter2";
        for (document, paths) in [
            (json!({"cluster": "c", "image": "i"}), vec![]),
            (json!({"cluster": "c", "image": "i", "network": "n"}), vec![]),
            (json!(secret), vec![""]),
            (json!({}), vec!["cluster", "image"]),
            (json!({"cluster": "", "image": [secret], "network": null}), vec!["cluster", "image", "network"]),
            (json!({"cluster": "c", "image": "i", "password": secret}), vec!["password"]),
        ] {
            let document = RawJson::from(&document);
            let faults = validate(&document);
            let found: Vec<&str> = faults.iter().map(|(path, _)| path.as_str()).collect();
            assert_eq!(found, paths, "{}", document.text());
            let read = ProviderSpec::read(&document);
            assert_eq!(read.is_ok(), faults.is_empty(), "both agree on {}", document.text());
            assert!(!format!("{faults:?} {read:?}").contains(secret));
        }
    }

    #[test]
    fn the_cluster_is_read_from_a_spec_with_other_faults() {
        let cluster = |document: Value| cluster(&RawJson::from(&document)).map_err(|error| error.code);
        assert_eq!(cluster(json!({"cluster": "c", "image": 7, "x": 1})), Ok("c".to_owned()));
        assert_eq!(cluster(json!({"image": "i"})), Err(Code::InvalidArgument));
    }
}
