//! Objects of node configuration: what is refused names path and rule, and what is valid is not refused.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "machine_config/rows.rs"]
mod rows;
mod support;

use nodewright_observability::trace::{SpanId, TraceContext, TraceId};
use nodewright_webhooks::Limits;
use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;
use serde_json::{Value, json};

use rows::ROLE;
use support::{Client, Running};

fn object(row: &Value, name: &str) -> Value {
    rows::object(row, name, rows::WORKER)
}

/// The response to the creation of an object, or to its change.
async fn review(client: &mut Client, object: &Value, old: &Value) -> Value {
    let kind = object["kind"].as_str().unwrap();
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    let request = json!({"uid": "u", "operation": operation, "name": object["metadata"]["name"],
        "kind": {"group": "machineconfiguration.openshift.io", "version": "v1", "kind": kind},
        "object": object, "oldObject": old});
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let (status, answer) = client.post(&format!("/validate-{}", kind.to_lowercase()), body.to_string(), &[]).await;
    assert_eq!(status, 200, "{answer:?}");
    serde_json::from_slice::<Value>(&answer).unwrap()["response"].take()
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_path_and_rule() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let rows = rows::refused();
    assert!(rows.len() >= 80, "{}", rows.len());
    let mut wrong = vec![];
    for row in rows.iter().filter(|row| row["schema"] != true) {
        let object = object(row, "x");
        let response = review(&mut client, &object, &Value::Null).await;
        let message = response["status"]["message"].as_str().unwrap_or_default();
        let (path, rule) = (row["path"].as_str().unwrap(), row["rule"].as_str().unwrap());
        let causes = response["status"]["details"]["causes"].as_array();
        let is_named = causes.is_some_and(|causes| causes[0]["field"].as_str().unwrap().starts_with(path));
        if !is_named || !message.contains(path) || !message.contains(rule) {
            wrong.push(format!("{row}: {message}"));
        }
        // What was there before stays, so that the rest of the object can be changed.
        let mut relabelled = object.clone();
        relabelled["metadata"]["labels"]["a"] = json!("b");
        let response = review(&mut client, &relabelled, &object).await;
        assert_eq!(response["allowed"], true, "{row}: {response}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

#[tokio::test]
async fn what_is_right_is_taken_with_warnings_of_what_has_no_effect() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let select = |selector: Value| json!({"kind": "MachineConfigPool", "spec": {"machineConfigSelector": selector}});
    let role = |operator: &str, values: &[&str]| {
        select(json!({"matchExpressions": [{"key": ROLE, "operator": operator, "values": values}]}))
    };
    let table = [
        (json!({"kind": "MachineConfig", "spec": {}}), vec![]),
        (json!({"kind": "MachineConfig", "spec": {"extensions": ["usbguard"], "kernelType": "realtime"}}), vec![]),
        (
            json!({"kind": "MachineConfig", "ignition": {"storage": {"files": [{"path": "/a", "Mode": 420}]}}}),
            vec!["spec.config.storage.files[0].Mode: is no field of this version"],
        ),
        (select(json!({"matchLabels": {ROLE: "worker"}})), vec![]),
        (select(json!({"matchLabels": {ROLE: "master"}})), vec![]),
        (role("In", &["worker", "infra"]), vec![]),
        (role("NotIn", &["master"]), vec![]),
        (json!({"kind": "MachineConfigPool", "worker": true, "spec": {"maxUnavailable": "50%"}}), vec![]),
        (json!({"kind": "MachineConfigPool", "worker": true, "spec": {"maxUnavailable": 0}}), vec![]),
        (json!({"kind": "KubeletConfig", "spec": {"kubeletConfig": {"maxPods": 250, "evictionHard": {}}}}), vec![]),
        (
            json!({"kind": "KubeletConfig", "spec": {"kubeletConfig": {"maxPods": 250, "maxpods": 1}}}),
            vec!["spec.kubeletConfig.maxpods: is no field of the kubelet in Kubernetes 1.36"],
        ),
        (json!({"kind": "KubeletConfig", "spec": {"tlsSecurityProfile": {"type": "Old"}, "logLevel": 10}}), vec![]),
        (
            json!({"kind": "ControllerConfig", "spec": {"clusterDNSIP": "fd00::a", "rootCAData": "YQ=="}}),
            vec!["metadata.name: only the ControllerConfig of the name machine-config-controller"],
        ),
    ];
    for (row, expected) in table {
        let response = review(&mut client, &object(&row, "x"), &Value::Null).await;
        assert_eq!(response["allowed"], true, "{row}: {response}");
        let warnings: Vec<_> = response["warnings"].as_array().into_iter().flatten().collect();
        assert_eq!(warnings.len(), expected.len(), "{row}: {warnings:?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.as_str().unwrap().starts_with(expected), "{warning}");
        }
    }
    let mut without_role = object(&json!({"kind": "MachineConfig", "spec": {}}), "x");
    without_role["metadata"]["labels"] = json!({});
    let response = review(&mut client, &without_role, &Value::Null).await;
    assert!(response["warnings"][0].as_str().unwrap().contains(ROLE), "{response}");
    server.stop().await;
}

/// A pull secret, and what a file has, do not come into answers.
#[tokio::test]
async fn what_is_confidential_is_not_quoted() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let file = json!({"path": "/a", "contents": {"source": "data:;base64,password%%"}});
    let rows = [
        json!({"kind": "ControllerConfig", "spec": {"internalRegistryPullSecret": "password%"}}),
        json!({"kind": "MachineConfig", "ignition": {"storage": {"files": [file]}}}),
        json!({"kind": "MachineConfig", "ignition": {"systemd": {"units": [{"name": "a.service", "contents": "[password"}]}}}),
        json!({"kind": "MachineConfig", "ignition": {"storage": {"files": [{"path": "/a", "contents": "password"}]}}}),
    ];
    for row in rows {
        let response = review(&mut client, &object(&row, "x"), &Value::Null).await;
        assert_eq!(response["allowed"], false, "{row}");
        assert!(!response.to_string().contains("password"), "{response}");
    }
    server.stop().await;
}

/// The manager finds the span by the UID and the generation of the object.
#[tokio::test]
async fn an_admission_is_a_span_that_follows_from_the_object() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let generation = |generation: i64| {
        let mut object = object(&json!({"kind": "MachineConfig", "spec": {}}), "x");
        object["metadata"]["uid"] = json!("uid-x");
        object["metadata"]["generation"] = json!(generation);
        object
    };
    let mut ask = async |object: &Value, old: &Value| {
        let response = review(&mut client, object, old).await;
        let spans = std::mem::take(&mut *server.spans.0.lock());
        (response["allowed"] == true, spans.into_iter().map(|span| (position(&span), span)).collect::<Vec<_>>())
    };
    let (_, created) = ask(&generation(1), &Value::Null).await;
    let root = TraceContext::of_change("uid-x", 1, None);
    assert_eq!(created[0].0, (root.trace_id, root.span_id, SpanId::INVALID));
    assert_eq!(created[0].1.name, "admission");

    let mut chosen = generation(2);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    chosen["metadata"]["annotations"] = json!({"nodewright.dev/traceparent": trace});
    let trace: TraceContext = trace.parse().unwrap();
    let (_, changed) = ask(&chosen, &generation(1)).await;
    let below = TraceContext::of_change("uid-x", 2, Some(trace));
    assert_eq!(changed[0].0, (below.trace_id, below.span_id, trace.span_id));

    let (_, same) = ask(&generation(2), &chosen).await;
    assert_eq!(same.len(), 0, "the spec stays as it is");

    let mut wrong = generation(3);
    wrong["spec"]["config"] = json!({"ignition": {"version": "9.9.9"}});
    let (is_allowed, refused) = ask(&wrong, &generation(2)).await;
    assert!(!is_allowed);
    assert_ne!(refused[0].0.0, TraceContext::of_change("uid-x", 3, None).trace_id, "it makes no generation");
    assert!(matches!(&refused[0].1.status, Status::Error { .. }));
    server.stop().await;
}

fn position(span: &SpanData) -> (TraceId, SpanId, SpanId) {
    (span.span_context.trace_id(), span.span_context.span_id(), span.parent_span_id)
}
