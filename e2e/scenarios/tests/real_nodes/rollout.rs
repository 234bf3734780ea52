//! A rollout of all machines under a load.

use nodewright_e2e_scenarios::{Environment, TestResult, ensure, waits};
use serde_json::{Value, json};

use crate::{
    finish, real_nodes,
    workload::{ready, record_pods, script, wait_for_ready, web},
};

const MACHINES: u32 = 5;
const PODS: usize = 5;
/// Asks the Service, on a new connection each time, and says what became of it.
const CLIENT: &str = "while :; do
if timeout 3 wget -q -O /dev/null http://$WEB_SERVICE_HOST; then echo answered; else echo lost; fi; sleep 0.05; done";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_rollout_of_five_nodes_loses_no_request() -> TestResult {
    let Some(builder) = real_nodes("roll") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.class("medium").provider("size", "medium")).await?;
    // The client has a machine of its own, which is not replaced.
    env.apply(&env.pool("client", 1).machine("nodeTemplate", json!({"spec": {"taints": [client_taint()]}}))).await?;
    env.wait_for_running(1).await?;
    let nodes = env.nodes().current();
    let client_node = nodes.keys().next().cloned().unwrap_or_default();
    env.apply(&env.pool("a", MACHINES)).await?;
    env.wait_for_running(MACHINES as usize + 1).await?;
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 5)).await?;
    wait_for_ready(&env, &pods, "web", PODS).await?;
    env.apply(&script(&env, "client", Some(&client_node), CLIENT)).await?;
    env.wait_for("answers to the client", async || Ok(answers(&env).await.is_ok_and(|(answered, _)| answered > 20)))
        .await?;

    let mark = env.machines().mark();
    env.apply(&env.pool("a", MACHINES).class("medium")).await?;
    env.wait_for_machines("all machines to be of class medium", |machines| {
        let of_pool =
            machines.values().filter(|machine| machine.class_name() == "medium" && waits::is_running(machine));
        of_pool.count() == MACHINES as usize && machines.len() == MACHINES as usize + 1
    })
    .await?;
    wait_for_ready(&env, &pods, "web", PODS).await?;
    let (answered, lost) = answers(&env).await?;
    println!("{answered} requests were answered, {lost} were lost");
    assert_eq!(lost, 0, "of {answered} requests");
    assert_eq!(env.machines().born_since(mark)?, MACHINES as usize);
    ensure(ready(&pods, "web").len() == PODS, || "a pod is missing".to_owned())?;
    finish(env).await
}

fn client_taint() -> Value {
    json!({"key": "client", "value": "only", "effect": "NoSchedule"})
}

/// How many requests of the client were answered, and how many were not.
async fn answers(env: &Environment) -> TestResult<(usize, usize)> {
    let log = env.kubectl("logs client").await?;
    let count = |word: &str| log.lines().filter(|line| *line == word).count();
    Ok((count("answered"), count("lost")))
}
