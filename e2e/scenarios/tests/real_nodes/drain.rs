//! A scale-down: the pods end as they wish, and no more of them than their budget permits.

use std::process::Stdio;

use kube::ResourceExt;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};
use tokio::process::{Child, Command};

use crate::{
    finish, real_nodes,
    workload::{is_of, is_ready, node_of, record_pods, wait_for_ready, web},
};

const PODS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_pods_end_by_themselves_within_their_budget() -> TestResult {
    let Some(builder) = real_nodes("drain") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 4)).await?;
    wait_for_ready(&env, &pods, "web", PODS).await?;
    let mut logs = Vec::new();
    for pod in pods.current().into_values() {
        logs.push((pod.name_any(), node_of(&pod).to_owned(), follow_log(&env, &pod.name_any())?));
    }
    let mark = pods.mark();

    env.scale("a", 1).await?;
    let stays = env.wait_for_running(1).await?;
    wait_for_ready(&env, &pods, "web", PODS).await?;
    pods.states(mark, |at, state| {
        let up = state.values().filter(|pod| is_of(pod, "web") && is_ready(pod)).count();
        ensure(up >= PODS - 1, || format!("at {at} only {up} pods were up"))
    })?;
    let mut ended = 0;
    for (pod, _, log) in logs.into_iter().filter(|(_, node, _)| !stays.contains_key(node)) {
        let log = env.in_time("the end of a log", log.wait_with_output()).await??;
        let log = String::from_utf8_lossy(&log.stdout).into_owned();
        assert_eq!(log, "serving\nasked to end\nended\n", "the log of {pod}, whose grace period was long enough");
        ended += 1;
    }
    ensure(ended > 0, || "the scheduler left the node without pods".to_owned())?;
    finish(env).await
}

/// Follows the log of a pod until it ends.
fn follow_log(env: &Environment, pod: &str) -> TestResult<Child> {
    let mut command = Command::new(env.target().kubectl());
    command.args(["logs", "--follow", pod, "--namespace", env.namespace()]);
    command.env("KUBECONFIG", env.target().kubeconfig()).env("KUBECACHEDIR", env.directory().join("kubectl-cache"));
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?)
}
