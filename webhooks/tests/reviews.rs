//! Reviews as the API server sends them, through a real server: each file of `reviews` holds a request and its
//! response. `UPDATE_REVIEWS=1` overwrites the responses with the actual ones.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::path::PathBuf;

use k8s_openapi::ByteString;
use nodewright_webhooks::Limits;
use opentelemetry::trace::{SpanId, Status};
use serde_json::{Value, json};

use support::{Client, Running};

fn files() -> Vec<PathBuf> {
    let directory = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reviews")).unwrap();
    let mut files: Vec<_> = directory.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn every_question_has_its_answer() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let files = files();
    assert!(files.len() > 30);
    for path in files {
        let mut review: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let found = ask(&mut client, &review).await;
        if std::env::var_os("UPDATE_REVIEWS").is_some() {
            review["response"] = found;
            std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&review).unwrap())).unwrap();
            continue;
        }
        assert_eq!(found, review["response"], "{}: {}", path.display(), review["about"]);
    }
    server.stop().await;
}

/// The response to a request, with its patch in plain text.
async fn ask(client: &mut Client, review: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let headers: Vec<_> =
        review["headers"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review["request"]});
    let (status, answer) = client.post(review["endpoint"].as_str().unwrap(), body.to_string(), &headers).await;
    assert_eq!(status, 200, "{answer:?}");
    let mut answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    let response = answer["response"].take();
    assert_eq!(response["uid"], review["request"]["uid"]);
    with_plain_patch(response)
}

fn with_plain_patch(mut response: Value) -> Value {
    response.as_object_mut().unwrap().remove("uid");
    if let Some(patch) = response.as_object_mut().unwrap().remove("patch") {
        let patch: ByteString = serde_json::from_value(patch).unwrap();
        response["patch"] = serde_json::from_slice(&patch.0).unwrap();
    }
    response
}

fn review(name: &str) -> Value {
    let path = files().into_iter().find(|path| path.file_stem().unwrap() == name).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Else all that follows from the change would be unsampled, also once traces are exported.
#[tokio::test]
async fn without_traces_a_change_begins_none_and_goes_on_with_those_of_others() {
    let server = Running::start_without_traces().await;
    let mut client = server.client().await;
    for (name, is_stamped) in [
        ("create", false),
        ("create-in-an-unsampled-trace", false),
        ("create-in-a-trace", true),
        ("create-with-a-chosen-trace", true),
    ] {
        let patch = ask(&mut client, &review(name)).await["patch"].to_string();
        assert_eq!(patch.contains("traceparent"), is_stamped, "{name}: {patch}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_admission_is_a_span() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let mut ask = async |name: &str| {
        let answer = ask(&mut client, &review(name)).await;
        (answer, std::mem::take(&mut *server.spans.0.lock()))
    };
    let stamped = |answer: &Value| {
        let patch = answer["patch"].as_array().unwrap().iter();
        let found = patch.map(|step| step["value"].clone()).find_map(|value| match value {
            Value::String(text) if text.starts_with("00-") => Some(text),
            value => value["nodewright.dev/traceparent"].as_str().map(str::to_owned),
        });
        found.unwrap()
    };
    let place = |span: &opentelemetry_sdk::trace::SpanData| {
        format!("00-{}-{}-01", span.span_context.trace_id(), span.span_context.span_id())
    };

    let (answer, spans) = ask("create").await;
    assert_eq!((spans.len(), spans[0].name.as_ref(), spans[0].parent_span_id), (1, "admission", SpanId::INVALID));
    assert_eq!(stamped(&answer), place(&spans[0]), "what follows stands below the admission");

    let (answer, spans) = ask("create-in-a-trace").await;
    assert_eq!(stamped(&answer), place(&spans[0]));
    let writer = review("create-in-a-trace")["headers"]["traceparent"].as_str().unwrap().to_owned();
    assert_eq!(writer, format!("00-{}-{}-01", spans[0].span_context.trace_id(), spans[0].parent_span_id));

    let (_, spans) = ask("create-with-a-chosen-trace").await;
    assert_eq!(writer, format!("00-{}-{}-01", spans[0].span_context.trace_id(), spans[0].parent_span_id));

    let (_, spans) = ask("invalid-in-many-ways").await;
    assert_eq!((spans.len(), spans[0].name.as_ref()), (1, "validation"));
    assert!(matches!(&spans[0].status, Status::Error { description } if description.contains("spec.replicas")));

    for silent in ["create-dry-run", "update-metadata", "invalid-dry-run", "valid", "create-undecodable"] {
        assert_eq!(ask(silent).await.1.len(), 0, "{silent}");
    }
    server.stop().await;
}
