//! Objects that users write.

use http::Method;
use serde_json::{Value, json};

use super::{
    Measured,
    target::{DEPLOYMENT, MACHINES, Target},
};

/// The annotation that names the trace of an object.
const TRACEPARENT: &str = "nodewright.dev/traceparent";
/// A secret that no message may contain.
const SECRET: &str = "hunter2";

/// A trace context with a line break, which no HTTP header may contain. The deployment and its sets must still work.
pub(crate) async fn trace_context(target: &mut Target) -> Measured {
    let broken = |value: Value| json!({"metadata": {"annotations": {TRACEPARENT: value}}});
    let sets = target.request(Method::GET, "machinesets", None).await?;
    let sets = sets["items"].as_array().into_iter().flatten().filter_map(|set| set["metadata"]["name"].as_str());
    let paths: Vec<_> =
        sets.map(|name| format!("machinesets/{name}")).chain([format!("machinedeployments/{DEPLOYMENT}")]).collect();
    for path in &paths {
        target.request(Method::PATCH, path, Some(&broken(json!("x\n")))).await?;
    }
    target.scale(MACHINES + 1).await?;
    let grown = target.wait_for(MACHINES + 1).await;
    for path in &paths {
        target.request(Method::PATCH, path, Some(&broken(Value::Null))).await?;
    }
    target.scale(MACHINES).await?;
    grown.map(|()| format!("{} objects with it: one machine more came up", paths.len()))
}

/// Values of a providerSpec may be secrets. A rejection names the field, not the value.
pub(crate) async fn secrets(target: &mut Target) -> Measured {
    let specs = [
        json!({"cluster": "demo", "bootSeconds": SECRET}),
        json!({"cluster": "demo", "size": SECRET}),
        json!({"cluster": "demo", "labels": SECRET}),
        json!({"cluster": "demo", "taints": [{"key": SECRET, "effect": SECRET}]}),
        json!({"cluster": {"password": SECRET}}),
        json!({"cluster": "demo", "password": SECRET}),
        json!(SECRET),
        json!([SECRET]),
        // kubectl sends line breaks.
        json!({"cluster": "demo", "size": format!("a\n{SECRET}")}),
    ];
    let (mut refused, mut quoted) = (0, Vec::new());
    for spec in &specs {
        let class = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "hostile"},
            "provider": "simulated", "providerSpec": spec,
        });
        let Err(error) = target.request(Method::POST, "machineclasses", Some(&class)).await else {
            target.request(Method::DELETE, "machineclasses/hostile", None).await?;
            continue;
        };
        refused += 1;
        if error.contains(SECRET) {
            quoted.push(error);
        }
    }
    let text = format!("{refused} of {} bad provider specs refused, {} quoted", specs.len(), quoted.len());
    match quoted.first() {
        None if refused == specs.len() => Ok(text),
        None => Err(text),
        Some(error) => Err(format!("{text}: {error}")),
    }
}

/// Percentages above 100 and negative numbers are rejected.
pub(crate) async fn percentages(target: &mut Target) -> Measured {
    let values = [
        json!({"maxSurge": "101%", "maxUnavailable": 0}),
        json!({"maxSurge": 1, "maxUnavailable": "101%"}),
        json!({"maxSurge": "99999999%", "maxUnavailable": 0}),
        json!({"maxSurge": "-1%", "maxUnavailable": 0}),
        json!({"maxSurge": 1, "maxUnavailable": -1}),
    ];
    let mut accepted = Vec::new();
    for value in &values {
        let change = json!({"spec": {"strategy": {"rollingUpdate": value}}});
        let path = format!("machinedeployments/{DEPLOYMENT}?dryRun=All");
        if target.request(Method::PATCH, &path, Some(&change)).await.is_ok() {
            accepted.push(value.to_string());
        }
    }
    let text = format!("{} of {} refused", values.len() - accepted.len(), values.len());
    if accepted.is_empty() { Ok(text) } else { Err(format!("{text}; accepted: {}", accepted.join(", "))) }
}

/// The webhooks skip objects whose owner is a controller. The schema must still reject invalid ones.
pub(crate) async fn made_up_owners(target: &mut Target) -> Measured {
    let owner = json!([{
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "none", "controller": true,
        "uid": "00000000-0000-0000-0000-000000000001",
    }]);
    let machine = |owners: &Value, fields: Value| {
        let mut spec = json!({"class": {"kind": "MachineClass", "name": "none"}});
        if let (Some(spec), Value::Object(fields)) = (spec.as_object_mut(), fields) {
            spec.extend(fields);
        }
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "hostile", "ownerReferences": owners}, "spec": spec,
        })
    };
    let bad = [json!({"maxEvictRetries": -1}), json!({"class": {"kind": "MachineClass", "name": ""}})];
    let mut accepted = Vec::new();
    for fields in bad {
        let body = machine(&owner, fields.clone());
        if target.request(Method::POST, "machines?dryRun=All", Some(&body)).await.is_ok() {
            accepted.push(fields.to_string());
        }
    }
    if accepted.is_empty() {
        Ok("2 of 2 refused".to_owned())
    } else {
        Err(format!("accepted: {}", accepted.join(", ")))
    }
}
