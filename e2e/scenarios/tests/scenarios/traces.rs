//! The traces of a machine's life.

use std::net::TcpListener;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use nodewright_api::labels;
use nodewright_e2e_scenarios::{
    Collector, Environment, Failure, TestResult, collector::text, ensure, skip_on_external_cluster,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn creation_and_deletion_of_a_machine_are_traces() -> TestResult {
    if skip_on_external_cluster("traces", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    let collector = Collector::start().await?;
    let env = Environment::builder("traces")
        .with_webhooks()
        .manager_flags([format!("--otlp-endpoint={}", collector.url()).as_str()])
        .start()
        .await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?.name_any();
    let creation = created(&env, &collector, &machine).await?;

    let pod = running_pod(&env).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    let deletion = one(&env, &collector, "machine deletion", &machine).await?;
    assert_ne!(deletion.trace_id, creation.trace_id);
    for name in ["drain", "VM deletion", "node deletion"] {
        let stage = one(&env, &collector, name, &machine).await?;
        assert_eq!(stage.trace_id, deletion.trace_id, "{name}");
        within(&stage, &deletion)?;
    }
    assert_eq!(linked(&deletion), [(&creation.trace_id, &creation.span_id)], "the deletion leads to the creation");
    let drain = one(&env, &collector, "drain", &machine).await?;
    let left = one(&env, &collector, &format!("pod {}/{}", env.namespace(), pod.name_any()), &machine).await?;
    assert_eq!((&left.trace_id, &left.parent_span_id), (&drain.trace_id, &drain.span_id));
    assert_eq!(text(&left, "k8s.pod.uid"), pod.metadata.uid.as_deref());
    assert_eq!(text(&left, "nodewright.pod.removal"), Some("eviction"));
    within(&left, &drain)?;
    let decision = one(&env, &collector, "deletion decision", &machine).await?;
    assert_eq!(text(&decision, "nodewright.decision.reason"), Some("Scale"));
    assert_eq!((&deletion.trace_id, &deletion.parent_span_id), (&decision.trace_id, &decision.span_id));
    let is_scale = |span: &Span| span.name == "unreviewed change" && span.span_id == decision.parent_span_id;
    env.wait_for("the request to scale in the trace", async || Ok(collector.spans().iter().any(is_scale))).await?;
    env.end().await
}

/// The creation of a machine, from the admission of the request to its stages.
async fn created(env: &Environment, collector: &Collector, machine: &str) -> TestResult<Span> {
    let creation = one(env, collector, "machine creation", machine).await?;
    for name in ["VM creation", "boot and join"] {
        let stage = one(env, collector, name, machine).await?;
        assert_eq!(stage.trace_id, creation.trace_id, "{name}");
        assert_eq!(stage.parent_span_id, creation.span_id, "{name}");
        within(&stage, &creation)?;
    }
    let vm = one(env, collector, "VM creation", machine).await?;
    let call = one(env, collector, "create call", machine).await?;
    assert_eq!((&call.trace_id, &call.parent_span_id), (&vm.trace_id, &vm.span_id));
    let decision = one(env, collector, "creation decision", machine).await?;
    assert_eq!((&decision.trace_id, &decision.span_id), (&creation.trace_id, &creation.parent_span_id));
    let admission = |span: &Span| span.name == "admission" && span.trace_id == creation.trace_id;
    env.wait_for("the admission in the trace", async || Ok(collector.spans().iter().any(admission))).await?;
    Ok(creation)
}

/// A pod that runs on the only node. It is not scheduled: the node may be tainted for some time.
async fn running_pod(env: &Environment) -> TestResult<Pod> {
    let node = env.only_machine()?.labels().get(labels::NODE).cloned().unwrap_or_default();
    env.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": node, "terminationGracePeriodSeconds": 5, "containers": [{"name": "main", "image": "none"}]}}))
        .await?;
    let pods: Api<Pod> = Api::namespaced(env.target_client(), env.namespace());
    let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    env.wait_for("a pod to run", async || Ok(runs(&pods.get("web").await?))).await?;
    Ok(pods.get("web").await?)
}

fn linked(span: &Span) -> Vec<(&Vec<u8>, &Vec<u8>)> {
    span.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect()
}

/// Waits for the one span with this name for a machine.
async fn one(env: &Environment, collector: &Collector, name: &str, machine: &str) -> TestResult<Span> {
    let what = format!("the span {name:?} of {machine}");
    env.wait_for(&what, async || Ok(!collector.about(name, machine).is_empty())).await?;
    let mut spans = collector.about(name, machine);
    let first = spans.pop().ok_or_else(|| Failure::new("no span"))?;
    let others = spans.iter().filter(|span| span.span_id != first.span_id).count();
    ensure(others == 0, || format!("there are {} different spans for {what}", others + 1))?;
    Ok(first)
}

/// A stage lies within the whole, within the precision of the objects' timestamps, which have whole seconds.
fn within(stage: &Span, whole: &Span) -> TestResult {
    const SECOND: u64 = 1_000_000_000;
    let fits = stage.start_time_unix_nano + SECOND >= whole.start_time_unix_nano
        && stage.end_time_unix_nano <= whole.end_time_unix_nano + SECOND
        && stage.start_time_unix_nano <= stage.end_time_unix_nano;
    ensure(fits, || format!("{} is not within {}: {stage:?} {whole:?}", stage.name, whole.name))
}

/// With a collector that accepts connections and never answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_works_and_ends_although_the_collector_hangs() -> TestResult {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("--otlp-endpoint=http://{}", silent.local_addr()?);
    let env = Environment::builder("hanging").manager_flags([endpoint.as_str()]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    env.wait_for("a failed export", async || {
        Ok(env.metric(r#"otel_sdk_exporter_span_exported_total{error_type="_OTHER"}"#).await? > Some(0.0))
    })
    .await?;
    assert_eq!(env.metric(r#"otel_sdk_exporter_span_exported_total{error_type=""}"#).await?, Some(0.0));
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    let status = env.manager().await?.terminate().await?;
    ensure(status.is_some_and(|status| status.success()), || format!("asked to end, it ended with {status:?}"))?;
    drop(silent);
    env.end_unevaluated().await
}
