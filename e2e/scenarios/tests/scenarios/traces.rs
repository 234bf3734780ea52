//! The traces of a machine's life, and of the rollout of a pool.

use std::net::TcpListener;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use nodewright_api::labels;
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{
    Collector, Environment, Failure, Fault, NodeAgents, TestResult,
    collector::text,
    ensure,
    objects::ENVIRONMENT_LABEL,
    skip_on_external_cluster,
    worker_pool::{self, target},
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use crate::{
    machine_configs::UNELECTED,
    pool_rollout::{ROLE, WORKER, motd},
};

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

const NODES: u32 = 2;

/// The manager is killed while the nodes move.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_of_node_configuration_is_a_trace() -> TestResult {
    if skip_on_external_cluster("pool-traces", "the kinds are cluster-scoped") {
        return Ok(());
    }
    let collector = Collector::start().await?;
    let env = Environment::builder("pool-traces").for_node_configuration().without_manager().start().await?;
    let flags = [format!("--otlp-endpoint={}", collector.url()), UNELECTED.to_owned()];
    let mut manager = ManagerProcess::start(env.manager_options("manager", true, &flags)).await?;
    let agents = workers(&env).await?;

    // An update that ends in between would be lost with the manager that has seen it.
    agents.by_default(Fault::Hang);
    let new = worker_pool::retarget(&env, &motd("second")).await?;
    let rendering = about(&env, &collector, "rendering", |span| is_of(span, &new)).await?;
    manager.kill_9();
    let mut manager = ManagerProcess::start(env.manager_options("manager-2", true, &flags)).await?;
    agents.by_default(Fault::None);
    worker_pool::wait_for_all(&env, NODES as usize).await?;

    let is_apply =
        |span: &Span| text(span, "k8s.object.name") == Some("00-worker") && span.trace_id == rendering.trace_id;
    let admission = about(&env, &collector, "admission", is_apply).await?;
    assert_eq!(text(&admission, "k8s.operation"), Some("UPDATE"));
    assert_eq!(rendering.parent_span_id, admission.span_id);
    let rollout = about(&env, &collector, "pool rollout", |span| is_of(span, &new)).await?;
    assert_eq!((&rollout.trace_id, &rollout.parent_span_id), (&admission.trace_id, &admission.span_id));
    assert_eq!(text(&rollout, "nodewright.rollout.outcome"), Some("Completed"));
    nodes_of(&env, &collector, &rollout, &new).await?;
    manager.check()?;
    drop((manager, agents));
    env.end_unevaluated().await
}

/// Machines whose nodes have agents, in a pool with its first target.
async fn workers(env: &Environment) -> TestResult<NodeAgents> {
    let labels = json!({ENVIRONMENT_LABEL: env.namespace(), WORKER: ""});
    env.apply(&env.class("workers").provider("labels", labels)).await?;
    env.apply(&env.pool("workers", NODES).class("workers")).await?;
    let spec = json!({"nodeSelector": {"matchLabels": {WORKER: ""}}, "machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
    env.apply(&json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": "worker"}, "spec": spec}))
        .await?;
    env.apply(&motd("first")).await?;
    env.wait_for_running(NODES as usize).await?;
    env.wait_for("the first target", async || Ok(!target(env).await?.is_empty())).await?;
    let agents = NodeAgents::start(env, &target(env).await?).await?;
    worker_pool::wait_for_all(env, NODES as usize).await?;
    Ok(agents)
}

/// The updates of all nodes are below the rollout, link to the creations of their machines, and have their parts below them.
async fn nodes_of(env: &Environment, collector: &Collector, rollout: &Span, new: &str) -> TestResult {
    let mut parts = vec![];
    for node in env.nodes().current().values() {
        let node = node.name_any();
        let is_its = |span: &Span| text(span, "k8s.node.name") == Some(&node) && is_of(span, new);
        let update = about(env, collector, "node update", is_its).await?;
        assert_eq!((&update.trace_id, &update.parent_span_id), (&rollout.trace_id, &rollout.span_id));
        assert_eq!(text(&update, "nodewright.rollout.outcome"), Some("Completed"));
        within(&update, rollout)?;
        let machine = linked(&update).pop().map(|(_, span)| span.clone());
        let is_creation = |span: &Span| Some(&span.span_id) == machine.as_ref();
        about(env, collector, "machine creation", is_creation).await?;
        for part in collector.spans().into_iter().filter(|span| span.parent_span_id == update.span_id) {
            within(&part, &update)?;
            parts.push(part.name);
        }
    }
    // What the manager that was killed had yet to export is missing.
    for name in ["drain", "configuration", "reconcile"] {
        ensure(parts.iter().any(|part| part == name), || format!("no {name} among {parts:?}"))?;
    }
    Ok(())
}

/// Whether a span is of the rollout of this target.
fn is_of(span: &Span, target: &str) -> bool {
    text(span, "nodewright.machine_config.name") == Some(target)
}

/// Waits for the one span with this name about something.
async fn about(
    env: &Environment,
    collector: &Collector,
    name: &str,
    is_it: impl Fn(&Span) -> bool,
) -> TestResult<Span> {
    let found = || collector.spans().into_iter().filter(|span| span.name == name && is_it(span)).collect::<Vec<_>>();
    env.wait_for(&format!("the span {name:?}"), async || Ok(!found().is_empty())).await?;
    let all = found();
    ensure(all.len() == 1, || format!("there are {} spans {name:?}: {all:?}", all.len()))?;
    Ok(all[0].clone())
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
