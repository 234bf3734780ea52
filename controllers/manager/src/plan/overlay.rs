//! Lays the objects of files over those of a cluster, as if they were applied.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodewright_api::machine_config::API_VERSION;
use serde_json::{Value, json};

use super::cluster::CLUSTER;
use crate::render::Checked;

/// The objects of both. One of a file replaces that of the cluster of its kind and name, and keeps what is not its author's.
/// `with_templates`: what a controller generates of templates is made here as well.
///
/// # Errors
/// An object of a file has another shape than any has.
pub(super) fn lay_over(
    cluster: Vec<Value>,
    files: Vec<(String, Value)>,
    with_templates: bool,
    now: Timestamp,
) -> Checked<Vec<(String, Value)>> {
    check_shapes(&files)?;
    let key = |object: &Value| (object["kind"].to_string(), object["metadata"]["name"].to_string());
    let mut live: BTreeMap<_, _> = cluster.into_iter().map(|object| (key(&object), object)).collect();
    let is_changed = !files.is_empty();
    let mut all: Vec<_> = files.into_iter().collect();
    for (_, object) in all.iter_mut().filter(|(_, object)| object["apiVersion"] == API_VERSION) {
        apply(object, live.remove(&key(object)), now);
    }
    if is_changed {
        // What is generated of them is made here: it does not matter whether that of the cluster is up to date.
        live.values_mut().filter(|object| object["kind"] == "KubeletConfig").for_each(forget);
    }
    if with_templates {
        live.values_mut().filter(|object| object["kind"] == "ControllerConfig").for_each(forget);
    }
    all.extend(live.into_values().map(|object| (CLUSTER.to_owned(), object)));
    Ok(all)
}

fn check_shapes(files: &[(String, Value)]) -> Checked<()> {
    let mut errors = vec![];
    for (file, object) in files.iter().filter(|(_, object)| object["apiVersion"] == API_VERSION) {
        let fields = [("metadata", &object["metadata"]), ("spec", &object["spec"])];
        let wrong = fields.into_iter().find(|(_, value)| !value.is_object() && !value.is_null());
        errors.extend(wrong.map(|(field, _)| format!("{file}: {}: {field}: must be an object", object["kind"])));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Keeps of the object in the cluster what an apply keeps.
fn apply(object: &mut Value, live: Option<Value>, now: Timestamp) {
    let is_pool = object["kind"] == "MachineConfigPool";
    let Some(mut live) = live else {
        object["metadata"]["uid"] = object["metadata"]["name"].clone();
        object["metadata"]["creationTimestamp"] = json!(now.to_string());
        return;
    };
    let written = object["metadata"].take();
    let metadata = &mut live["metadata"];
    for field in ["labels", "annotations"] {
        for (key, value) in written[field].as_object().into_iter().flatten() {
            metadata[field][key] = value.clone();
        }
    }
    object["metadata"] = metadata.take();
    object["status"] = Value::Null;
    if is_pool {
        object["status"] = live["status"].take();
        for field in ["configuration", "paused"] {
            if object["spec"][field].is_null() && !live["spec"][field].is_null() {
                object["spec"][field] = live["spec"][field].take();
            }
        }
    } else {
        forget(object);
    }
}

/// Removes what a controller says about the generation that it has seen.
fn forget(object: &mut Value) {
    object["status"] = Value::Null;
    object["metadata"]["generation"] = Value::Null;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str, mut metadata: Value, mut rest: Value) -> Value {
        metadata["name"] = name.into();
        rest["metadata"] = metadata;
        rest["apiVersion"] = API_VERSION.into();
        rest["kind"] = kind.into();
        rest
    }

    fn over(cluster: Vec<Value>, file: Value) -> Vec<(String, Value)> {
        lay_over(cluster, vec![("a.yaml".to_owned(), file)], false, Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn a_file_replaces_the_object_of_its_kind_and_name_and_nothing_else() {
        let live = || vec![object("MachineConfig", "a", json!({"uid": "1"}), json!({"spec": {"fips": true}}))];
        for (kind, name, count) in [("MachineConfig", "a", 1), ("MachineConfig", "b", 2), ("KubeletConfig", "a", 2)] {
            let all = over(live(), object(kind, name, json!({}), json!({"spec": {}})));
            assert_eq!(all.len(), count, "{kind} {name}");
            assert_eq!(all[0].1["spec"], json!({}));
            assert_eq!(all[0].1["metadata"]["uid"], if count == 1 { "1" } else { name });
        }
    }

    #[test]
    fn an_object_of_another_shape_is_an_error() {
        let spec =
            json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": "a"}, "spec": []});
        let metadata = json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": [1]});
        for (object, field) in [(spec, "spec"), (metadata, "metadata")] {
            let live = vec![self::object("MachineConfigPool", "a", json!({}), json!({"spec": {"paused": true}}))];
            let error = lay_over(live, vec![("f".to_owned(), object)], false, Timestamp::UNIX_EPOCH).unwrap_err();
            assert!(error[0].ends_with(&format!("{field}: must be an object")), "{error:?}");
        }
    }

    #[test]
    fn what_others_write_to_a_pool_stays() {
        let metadata =
            json!({"uid": "1", "labels": {"a": "1"}, "annotations": {"kept": "1", "changed": "1"}, "generation": 7});
        let spec = json!({"configuration": {"name": "rendered"}, "paused": true, "maxUnavailable": 3});
        let live =
            object("MachineConfigPool", "worker", metadata, json!({"spec": spec, "status": {"machineCount": 1}}));
        let metadata = json!({"labels": {"b": "2"}, "annotations": {"changed": "2"}});
        let all = over(vec![live], object("MachineConfigPool", "worker", metadata, json!({"spec": {}})));
        let (file, pool) = &all[0];
        assert_eq!((file.as_str(), &pool["metadata"]["uid"]), ("a.yaml", &json!("1")));
        assert_eq!(pool["metadata"]["labels"], json!({"a": "1", "b": "2"}));
        assert_eq!(pool["metadata"]["annotations"], json!({"kept": "1", "changed": "2"}));
        assert_eq!(pool["spec"], json!({"configuration": {"name": "rendered"}, "paused": true}));
        assert_eq!(pool["status"], json!({"machineCount": 1}));
    }

    /// One that is behind would be waited for, although nothing but this command generates of what is in files.
    #[test]
    fn what_a_kubelet_config_has_observed_is_forgotten_once_something_changes() {
        let live = || vec![object("KubeletConfig", "k", json!({"generation": 2}), json!({"status": {}}))];
        let all = over(live(), object("MachineConfig", "a", json!({}), json!({"spec": {}})));
        assert_eq!((&all[1].1["metadata"]["generation"], &all[1].1["status"]), (&Value::Null, &Value::Null));
        let all = lay_over(live(), vec![], false, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(all[0].1["metadata"]["generation"], 2);
    }
}
