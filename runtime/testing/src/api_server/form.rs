//! The stored form of objects: without empty fields, with the defaults of their kinds.

use serde_json::{Value, json};

use super::checks::{self, FieldError};
use super::fields::shape::{Rest, Shape};
use super::kinds::Kind;
use super::kinds::StatusRule;
use super::refusal;
use super::route::{Id, Resource};
use super::store::{Refused, set_or_remove};

const COLLECTIONS: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// All fields of `metadata`.
const METADATA: [&str; 14] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// Removes empty fields, and undeclared fields of declared kinds.
pub(super) fn trim(kind: &Kind, object: &mut Value) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
    }
    for field in COLLECTIONS {
        if is_empty(&object["metadata"][field]) {
            set_or_remove(&mut object["metadata"], field, None);
        }
    }
    drop_undeclared(&kind.shape, object);
    if !kind.is_custom {
        drop_empty(&kind.shape, object);
        if kind.rules.status == StatusRule::None {
            set_or_remove(object, "status", None);
        }
        fill_lists(kind, object);
    }
    if kind.name == "Namespace" && object["metadata"]["name"].is_string() {
        let name = object["metadata"]["name"].clone();
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    }
}

/// Fills in the fields of conditions that are present even if empty, and the resources of a Node.
fn fill_lists(kind: &Kind, object: &mut Value) {
    let times = match kind.name.as_str() {
        "Node" => ["lastHeartbeatTime", "lastTransitionTime"],
        "Pod" => ["lastProbeTime", "lastTransitionTime"],
        _ => return,
    };
    for condition in object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for time in times {
            if condition.get(time).is_none() {
                condition[time] = Value::Null;
            }
        }
        if condition.get("status").is_none() {
            condition["status"] = "".into();
        }
    }
    if let Some(status) = object.get_mut("status").filter(|_| kind.name == "Node")
        && status.get("allocatable").is_none()
        && status.get("capacity").is_some()
    {
        status["allocatable"] = status["capacity"].clone();
    }
}

/// Whether the metadata has empty fields.
pub(super) fn has_empty(metadata: &Value) -> bool {
    COLLECTIONS.iter().any(|field| metadata.get(field).is_some_and(is_empty))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Fills in the fields that clients may leave out in an object that replaces another.
pub(super) fn complete(live: &Value, object: &mut Value) {
    for field in ["apiVersion", "kind"] {
        if object.get(field).is_none() {
            object[field] = live[field].clone();
        }
    }
    for field in ["name", "namespace"] {
        if object["metadata"].get(field).is_none() {
            set_or_remove(&mut object["metadata"], field, live["metadata"].get(field).cloned());
        }
    }
}

fn drop_undeclared(shape: &Shape, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Shape::Struct(known, Rest::Closed) = shape {
                fields.retain(|key, _| known.contains_key(key));
            }
            fields.iter_mut().for_each(|(key, value)| drop_undeclared(shape.at(key), value));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_undeclared(shape.of_items(), item)),
        _ => {}
    }
}

/// The path of a field that a declared kind does not have.
pub(super) fn undeclared(shape: &Shape, value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| match shape {
            Shape::Struct(known, Rest::Closed) if !known.contains_key(key) => Some(format!(".{key}")),
            _ => undeclared(shape.at(key), value).map(|below| format!(".{key}{below}")),
        }),
        _ => None,
    }
}

/// Removes empty lists and maps, as built-in kinds do. Empty structures stay.
fn drop_empty(shape: &Shape, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                drop_empty(shape.at(key), value);
            }
            fields.retain(|key, value| match value {
                // Empty and absent differ.
                _ if key == "managedFields" => true,
                Value::Array(items) => !items.is_empty(),
                Value::Object(below) => !below.is_empty() || !matches!(shape.at(key), Shape::Map(_)),
                Value::Null => false,
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_empty(shape.of_items(), item)),
        _ => {}
    }
}

/// Sets the initial fields of a new object of some kinds.
pub(super) fn at_birth(kind: &Kind, object: &mut Value) {
    match kind.name.as_str() {
        "Pod" => object["status"] = json!({ "phase": "Pending", "qosClass": "BestEffort" }),
        "Namespace" => {
            object["status"] = json!({ "phase": "Active" });
            object["spec"] = json!({ "finalizers": ["kubernetes"] });
        }
        _ => {}
    }
    fill(kind, &Value::Null, object);
}

/// An object with only the fields that every object of its kind has.
pub(super) fn zero(kind: &Kind) -> Value {
    let mut object = json!({});
    fill(kind, &Value::Null, &mut object);
    object
}

/// Fills in the fields that every object of some kinds has.
pub(super) fn fill(kind: &Kind, live: &Value, object: &mut Value) {
    let mut default = |parent: &str, field: &str, value: Value| {
        if object[parent].get(field).is_none() {
            object[parent][field] = value;
        }
    };
    match kind.name.as_str() {
        "Node" => {
            default("status", "daemonEndpoints", json!({ "kubeletEndpoint": { "Port": 0 } }));
            for field in NODE_INFO {
                if object["status"]["nodeInfo"].get(field).is_none() {
                    object["status"]["nodeInfo"][field] = "".into();
                }
            }
            if object.get("spec").is_none() {
                object["spec"] = json!({});
            }
        }
        "Pod" if live["status"]["qosClass"].is_string() => {
            default("status", "qosClass", live["status"]["qosClass"].clone());
        }
        "PodDisruptionBudget" => {
            for field in ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"] {
                default("status", field, 0.into());
            }
        }
        _ => {}
    }
}

const NODE_INFO: [&str; 10] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

/// The errors of an object of a built-in kind.
pub(super) fn check(kind: &Kind, object: &Value) -> Vec<FieldError> {
    if kind.is_custom { vec![] } else { checks::finalizers(&object["metadata"]) }
}

/// Refuses an object with another `apiVersion` or `kind` than the endpoint's.
pub(super) fn check_type(kind: &Kind, resource: &Resource, object: &Value) -> Result<(), Refused> {
    let text = |field: &str| object[field].as_str().unwrap_or("");
    let (version, name) = (text("apiVersion"), text("kind"));
    let expected = resource.api_version();
    let differs = !version.is_empty() && version != expected;
    if kind.is_custom && differs {
        return Err(refusal::bad_request(&format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_custom && !kind.name.is_empty() && (differs || !name.is_empty() && name != kind.name) {
        return Err(refusal::bad_request(&format!(
            "{name} in version {version:?} cannot be handled as a {}: no kind {name:?} is registered for version \
             {version:?} in scheme \"pkg/runtime/scheme.go:111\"",
            kind.name
        )));
    }
    Ok(())
}

/// Refuses an apply with a wrong or missing `apiVersion` or `kind`.
pub(super) fn check_applied_type(kind: &Kind, resource: &Resource, object: &Value) -> Result<(), Refused> {
    let (version, name) = (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
    let is_known = kind.name.is_empty() || name == kind.name;
    if version == resource.api_version() && !name.is_empty() && is_known {
        return Ok(());
    }
    Err(refusal::bad_request(&format!("invalid object type: {}", describe_type(object))))
}

/// `group/version, Kind=kind`.
pub(super) fn describe_type(object: &Value) -> String {
    let (version, name) = (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
    let root = if version.contains('/') { "" } else { "/" };
    format!("{root}{version}, Kind={name}")
}

/// The same for custom kinds, which the storage layer checks.
pub(super) fn check_kind(id: &Id, kind: &Kind, object: &Value) -> Result<(), Refused> {
    match object["kind"].as_str() {
        Some(said) if kind.is_custom && !kind.name.is_empty() && said != kind.name => {
            let error = FieldError::invalid("kind", &format!("{said:?}"), &format!("must be {}", kind.name));
            Err(refusal::invalid(id, said, &[error]))
        }
        _ => Ok(()),
    }
}

/// The errors of an update that changes immutable fields of some kinds.
pub(super) fn check_update(kind: &Kind, live: &Value, wanted: &Value) -> Vec<FieldError> {
    let set = live["spec"]["providerID"].as_str().filter(|id| !id.is_empty());
    if kind.name == "Node" && set.is_some() && live["spec"]["providerID"] != wanted["spec"]["providerID"] {
        let why = "node updates may not change providerID except from \"\" to valid";
        return vec![FieldError::forbidden("spec.providerID", why)];
    }
    vec![]
}
