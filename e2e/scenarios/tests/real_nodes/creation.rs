//! From a MachineDeployment to pods, by nothing but the user data.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_e2e_cloud::KubeletOrder;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, tokens::tokens};
use serde_json::json;

use crate::{
    finish, real_nodes,
    workload::{ready, record_pods, script, wait_for_ready, web},
};

#[tokio::test(flavor = "multi_thread")]
async fn vms_join_by_their_user_data_and_run_pods() -> TestResult {
    let Some(builder) = real_nodes("join") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply(&env.class("small").provider("taints", json!([{"key": "boot", "effect": "PreferNoSchedule"}]))).await?;
    let template = json!({
        "metadata": {"labels": {"colour": "red"}, "annotations": {"note": "a"}},
        "spec": {"taints": [{"key": "own", "value": "red", "effect": "PreferNoSchedule"}]},
    });
    env.apply(&env.pool("a", 2).machine("nodeTemplate", template)).await?;
    let machines = env.wait_for_running(2).await?;
    let nodes = env.nodes().current();
    for (name, machine) in &machines {
        let provider_id = nodes.get(name).and_then(|node| node.spec.as_ref()?.provider_id.clone());
        assert_eq!(provider_id.as_deref(), machine.provider_id(), "of {name}");
    }
    env.wait_for("what the template and the class say", async || {
        Ok(env.nodes().current().values().all(|node| has_template(node)))
    })
    .await?;
    env.wait_for("the end of all bootstrap tokens", async || Ok(tokens(&env).await?.is_empty())).await?;
    pods_run_and_are_reached(&env).await?;
    a_restarted_kubelet_changes_nothing(&env).await?;
    finish(env).await
}

fn has_template(node: &Node) -> bool {
    let (labels, annotations) = (node.metadata.labels.as_ref(), node.metadata.annotations.as_ref());
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let has_taint = |key: &str| taints.iter().any(|taint| taint.key == key && taint.effect == "PreferNoSchedule");
    labels.and_then(|all| all.get("colour")).is_some_and(|label| label == "red")
        && annotations.and_then(|all| all.get("note")).is_some_and(|note| note == "a")
        && has_taint("own")
        && has_taint("boot")
}

/// The API server reaches kubelets (logs, exec), pods reach one another by a Service across nodes.
async fn pods_run_and_are_reached(env: &Environment) -> TestResult {
    let pods = record_pods(env).await?;
    env.apply(&web(env, 4)).await?;
    wait_for_ready(env, &pods, "web", 4).await?;
    let first = ready(&pods, "web").swap_remove(0);
    assert_eq!(env.kubectl(&format!("logs {first}")).await?.trim(), "serving");
    assert_eq!(env.kubectl(&format!("exec {first} -- hostname")).await?.trim(), first);
    let address = env.kubectl("get service web --output jsonpath={.spec.clusterIP}").await?;
    // A node's proxy learns of the endpoints later than this program, and of one after the other.
    let ask = format!("while true; do timeout 5 wget -q -O- http://{address} || sleep 1; sleep 0.1; done");
    env.apply(&script(env, "asker", None, &ask)).await?;
    let backends = ready(&pods, "web").into_iter().collect::<BTreeSet<_>>();
    let printed = async || env.kubectl("logs asker --tail=400 --ignore-errors").await.unwrap_or_default();
    let answered = env.wait_for("answers of all pods", async || {
        Ok(printed().await.lines().map(str::to_owned).collect::<BTreeSet<_>>() == backends)
    });
    match answered.await {
        Ok(()) => Ok(()),
        Err(error) => Err(Failure::new(format!("{error}\nof {backends:?} answered: {}", printed().await))),
    }
}

async fn a_restarted_kubelet_changes_nothing(env: &Environment) -> TestResult {
    let (machines, nodes, pods) = (env.machines().mark(), env.nodes().mark(), record_pods(env).await?);
    let mark = pods.mark();
    let since = started(env).await?;
    for vm in env.vms().await? {
        env.cloud().kubelet(&vm.id, &KubeletOrder::Restart).await?;
    }
    env.wait_for("kubelets that have started again", async || {
        let now = started(env).await?;
        Ok(now.len() == since.len() && now.iter().zip(&since).all(|(now, before)| now > before))
    })
    .await?;
    // Longer than the control plane takes to miss a node.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert_eq!((env.machines().born_since(machines)?, env.machines().gone_since(machines)?), (0, 0));
    assert_eq!((env.nodes().born_since(nodes)?, env.nodes().gone_since(nodes)?), (0, 0));
    assert_eq!((pods.born_since(mark)?, pods.gone_since(mark)?), (0, 0));
    env.machines().states(machines, |at, state| {
        let all = state.values().all(|machine| nodewright_e2e_scenarios::waits::is_running(machine));
        ensure(all, || format!("at {at} a machine was in doubt"))
    })
}

/// How often the kubelets have reported that they started, by node.
async fn started(env: &Environment) -> TestResult<Vec<usize>> {
    let mut starts = Vec::new();
    for node in env.nodes().current().into_values() {
        let about = format!("involvedObject.name={},reason=Starting", node.name_any());
        let events: Api<Event> = Api::namespaced(env.target_client(), "default");
        starts.push(events.list(&ListParams::default().fields(&about)).await?.items.len());
    }
    Ok(starts)
}
