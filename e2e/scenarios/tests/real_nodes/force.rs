//! A forced deletion waits for nobody.

use std::time::Duration;

use nodewright_e2e_cloud::HardwareOrder;
use nodewright_e2e_scenarios::{TestResult, ensure};
use serde_json::json;

use crate::{
    finish, real_nodes,
    workload::{node_of, record_pods, wait_for_ready, web},
};

/// The VM hangs, and a budget forbids every eviction: with default timeouts the drain would take five minutes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_forced_deletion_waits_neither_for_pods_nor_for_their_budget() -> TestResult {
    let Some(builder) = real_nodes("force") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 2)).await?;
    let strict = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    });
    env.apply(&strict).await?;
    wait_for_ready(&env, &pods, "web", 2).await?;
    let stuck = env.vms().await?.swap_remove(0);
    env.cloud().hardware(&stuck.id, HardwareOrder::Hang).await?;
    env.kubectl(&format!("label machine {} force-deletion=True", stuck.name)).await?;
    let since = tokio::time::Instant::now();
    env.kubectl(&format!("delete machine {} --wait=false", stuck.name)).await?;
    env.wait_for_machines("the stuck machine to go", |machines| !machines.contains_key(&stuck.name)).await?;
    let took = since.elapsed();
    ensure(took < Duration::from_secs(30), || format!("the forced deletion took {took:?}"))?;
    env.wait_for_running(2).await?;
    wait_for_ready(&env, &pods, "web", 2).await?;
    env.wait_for("the pods of the stuck node to go", async || {
        Ok(!pods.current().values().any(|pod| node_of(pod) == stuck.node_name))
    })
    .await?;
    finish(env).await
}
