//! Pods that no drain may evict.

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, api::ListParams};
use serde_json::json;

use crate::{Environment, TestResult};

/// The label of the Pods, and the name of their budget.
const HELD: &str = "held";

/// Puts a Pod on each Node of the environment, with a disruption budget that permits no eviction. No drain ends until [`release`].
pub async fn hold(env: &Environment) -> TestResult {
    let accounts: Api<ServiceAccount> = Api::namespaced(env.target_client(), env.namespace());
    env.wait_for("the account of Pods", async || Ok(accounts.get_opt("default").await?.is_some())).await?;
    let nodes = env.nodes().current();
    let mut items = vec![json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": HELD},
        "spec": {"minAvailable": nodes.len(), "selector": {"matchLabels": {HELD: "true"}}},
    })];
    items.extend(nodes.keys().map(|node| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{HELD}-{node}"), "labels": {HELD: "true"}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "none"}],
            },
        })
    }));
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    // A budget does not protect a Pod that has yet to run.
    env.wait_for("the held Pods to run", async || Ok(held(env).await? == nodes.len())).await
}

/// Lets the Pods be evicted.
pub async fn release(env: &Environment) -> TestResult {
    env.kubectl(&format!("delete poddisruptionbudget {HELD}")).await.map(drop)
}

/// How many of the Pods run, and have not been evicted.
pub async fn held(env: &Environment) -> TestResult<usize> {
    let pods: Api<Pod> = Api::namespaced(env.target_client(), env.namespace());
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
            && pod.metadata.deletion_timestamp.is_none()
    };
    let all = pods.list(&ListParams::default().labels(&format!("{HELD}=true"))).await?;
    Ok(all.items.iter().filter(|pod| is_ready(pod)).count())
}
