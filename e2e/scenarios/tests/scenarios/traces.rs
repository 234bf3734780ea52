//! The traces of a machine's life.

use kube::ResourceExt;
use nodewright_e2e_scenarios::{Collector, Environment, Failure, TestResult, ensure, skip_on_external_cluster};
use opentelemetry_proto::tonic::trace::v1::Span;

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

    let creation = one(&env, &collector, "machine creation", &machine).await?;
    for name in ["create call", "boot and join"] {
        let stage = one(&env, &collector, name, &machine).await?;
        assert_eq!(stage.trace_id, creation.trace_id, "{name}");
        assert_eq!(stage.parent_span_id, creation.span_id, "{name}");
        within(&stage, &creation)?;
    }
    let admission = |span: &Span| span.name == "admission" && span.trace_id == creation.trace_id;
    env.wait_for("the admission in the trace", async || Ok(collector.spans().iter().any(admission))).await?;

    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    let deletion = one(&env, &collector, "machine deletion", &machine).await?;
    assert_ne!(deletion.trace_id, creation.trace_id);
    for name in ["drain", "VM deletion", "node deletion"] {
        let stage = one(&env, &collector, name, &machine).await?;
        assert_eq!(stage.trace_id, deletion.trace_id, "{name}");
        within(&stage, &deletion)?;
    }
    let links: Vec<_> = deletion.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
    assert_eq!(links, [(&creation.trace_id, &creation.span_id)], "the deletion leads to the creation");
    env.end().await
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
