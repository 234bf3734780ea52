//! Nodes with pods: a scale-down evicts the pods, and respects their budgets.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nodewright_e2e_scenarios::{Environment, History, TestResult, ensure, objects::ENVIRONMENT_LABEL};
use serde_json::{Value, json};

const PODS: usize = 4;
/// The maximum cost of a deletion, in addition to one write per pod and to statuses of the machine.
const WRITES: usize = 6;
/// One per reason to wait: the pods are listed, are ending, are refused, the first one is ending, the second one is refused
/// again, is ending, and the VM is being removed. A quick computer writes two, because later reasons replace those that are not written yet.
const STATUSES: usize = 7;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_evicts_pods_within_their_budget() -> TestResult {
    let env = Environment::start("drain").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    // Kubernetes removes the taint of a node that was not ready a moment later: until then all pods would go to the other one.
    let takes_pods = |node: &Node| node.spec.as_ref().is_none_or(|spec| spec.taints.iter().flatten().next().is_none());
    env.wait_for("both nodes to take pods", async || Ok(env.nodes().current().values().all(|node| takes_pods(node))))
        .await?;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    env.apply(&budget(PODS)).await?;
    env.apply(&workload(&env, "DaemonSet", "daemon")).await?;
    env.apply(&workload(&env, "Deployment", "app")).await?;
    env.wait_for("all pods to run", async || Ok(ready(&pods, "app") == PODS && ready(&pods, "daemon") == 2)).await?;
    let mark = pods.mark();
    let before = if env.cluster().control_plane().is_some() { env.requests().await?.entries().len() } else { 0 };

    // The budget forbids the eviction: the machine gets no further than to its cordoned node.
    env.scale("a", 1).await?;
    let leaving = env.wait_for_machines("a machine to go", |all| all.values().any(|it| it.is_deleting())).await?;
    let leaving = leaving.values().find(|machine| machine.is_deleting()).map(|machine| machine.name_any());
    let leaving = leaving.unwrap_or_default();
    let on_it = app_pods_on(&pods, &leaving);
    ensure(!on_it.is_empty(), || "the scheduler left a node without pods".to_owned())?;
    env.wait_for("an eviction to be refused", async || {
        let events = env.kubectl("get events -o jsonpath={.items[*].reason}").await?;
        Ok(events.contains(nodewright_api::reasons::machine::EVICTION_REFUSED))
    })
    .await?;
    let node = env.nodes().current().remove(&leaving);
    let closed = node.as_ref().and_then(|node| node.spec.as_ref()).and_then(|spec| spec.unschedulable);
    assert_eq!(closed, Some(true), "the node is cordoned");
    assert_eq!(app_pods_on(&pods, &leaving), on_it, "no pod has left");

    env.apply(&budget(PODS - 1)).await?;
    env.wait_for_running(1).await?;
    env.wait_for("all pods to run elsewhere", async || Ok(ready(&pods, "app") == PODS)).await?;
    pods.states(mark, |at, state| {
        let up = state.values().filter(|pod| is_of(pod, "app") && is_ready(pod)).count();
        ensure(up >= PODS - 1, || format!("at {at} only {up} pods were up"))
    })?;
    if env.cluster().control_plane().is_some() {
        requests_are_within_bounds(&env, before, &leaving, &on_it).await?;
    }
    env.end().await
}

/// Each pod was evicted once, no pod of the DaemonSet was, and the rest is the cost of a deletion.
async fn requests_are_within_bounds(
    env: &Environment,
    before: usize,
    machine: &str,
    pods: &BTreeSet<String>,
) -> TestResult {
    let requests = env.requests_since(before).await?;
    let evictions = requests.entries().iter().filter(|entry| entry.subresource == "eviction");
    let granted: Vec<_> = evictions.clone().filter(|entry| entry.code == 201).map(|entry| entry.name.clone()).collect();
    assert_eq!(granted.iter().cloned().collect::<BTreeSet<_>>(), *pods, "{requests}");
    assert_eq!(granted.len(), pods.len(), "{requests}");
    let writes = requests.writes_for_machines();
    let of_machine = writes.into_iter().filter(|entry| entry.name == machine);
    let (statuses, others): (Vec<_>, Vec<_>) =
        of_machine.partition(|entry| entry.resource == "machines" && entry.subresource == "status");
    assert!(others.len() <= WRITES, "{} writes\n{requests}", others.len());
    assert!(statuses.len() <= STATUSES, "{} statuses\n{requests}", statuses.len());
    let deleted = requests.entries().iter().filter(|entry| entry.resource == "pods" && entry.verb == "delete").count();
    assert_eq!(deleted, 0, "no pod is deleted without being asked");
    Ok(())
}

fn budget(available: usize) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "app"},
        "spec": {"minAvailable": available, "selector": {"matchLabels": {"app": "app"}}},
    })
}

/// A Deployment or DaemonSet on this environment's nodes.
fn workload(env: &Environment, kind: &str, name: &str) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "nodeSelector": {ENVIRONMENT_LABEL: env.namespace()},
                "terminationGracePeriodSeconds": 5,
                // On both nodes, so that the removed one has pods in either case.
                "topologySpreadConstraints": [{
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": name}},
                }],
                "containers": [{"name": "main", "image": "none"}],
            },
        },
    });
    if kind == "Deployment" {
        spec["replicas"] = PODS.into();
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn is_of(pod: &Pod, app: &str) -> bool {
    pod.labels().get("app").is_some_and(|label| label == app)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

fn ready(pods: &History<Pod>, app: &str) -> usize {
    pods.current().values().filter(|pod| is_of(pod, app) && is_ready(pod)).count()
}

fn app_pods_on(pods: &History<Pod>, node: &str) -> BTreeSet<String> {
    let is_there = |pod: &Pod| {
        let place = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        is_of(pod, "app") && place == Some(node) && pod.metadata.deletion_timestamp.is_none()
    };
    pods.current().into_iter().filter(|(_, pod)| is_there(pod)).map(|(name, _)| name).collect()
}
