//! The MachineConfigPool `worker` of an environment.

use kube::{Api, ResourceExt};
use nodewright_api::{
    ConditionStatus, annotations,
    conditions::machine_config_pool as conditions,
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
};
use serde_json::Value;

use crate::{Environment, TestResult, ensure, node_agent::is_disrupted};

/// The pool as it is.
pub async fn pool(env: &Environment) -> TestResult<MachineConfigPool> {
    Ok(Api::all(env.client()).get("worker").await?)
}

/// The name of its target; empty if it has none.
pub async fn target(env: &Environment) -> TestResult<String> {
    Ok(pool(env).await?.spec.configuration.name.unwrap_or_default())
}

/// Whether a condition is true.
pub fn is(status: &MachineConfigPoolStatus, kind: &str) -> bool {
    status.conditions.iter().any(|it| it.condition_type == kind && it.status == ConditionStatus::True)
}

/// The message of a condition of the pool; empty if it has no such condition.
pub async fn message(env: &Environment, kind: &str) -> TestResult<String> {
    let status = pool(env).await?.status.unwrap_or_default();
    Ok(status.conditions.into_iter().find(|it| it.condition_type == kind).map(|it| it.message).unwrap_or_default())
}

/// Applies a change, and waits until the pool has another target; returns its name.
pub async fn retarget(env: &Environment, change: &Value) -> TestResult<String> {
    let before = target(env).await?;
    env.apply(change).await?;
    env.wait_for("another target", async || Ok(target(env).await? != before)).await?;
    target(env).await
}

/// Waits until so many nodes, all that the pool has, run the target, the pool reports that, and claims none of them.
pub async fn wait_for_all(env: &Environment, nodes: usize) -> TestResult {
    env.wait_for(&format!("{nodes} nodes to be updated"), async || {
        let pool = pool(env).await?;
        let status = pool.status.clone().unwrap_or_default();
        let is_done = usize::try_from(status.ready_machine_count)? == nodes
            && status.machine_count == status.ready_machine_count
            && is(&status, conditions::UPDATED)
            && !is(&status, conditions::UPDATING)
            && status.configuration.name == pool.spec.configuration.name;
        Ok(is_done && pool.annotations().get(annotations::DISRUPTIONS).is_some_and(|claims| claims == "{}"))
    })
    .await
}

/// Checks that at no moment since the mark more nodes were disrupted than these.
pub fn check_budget(env: &Environment, mark: usize, budget: usize) -> TestResult {
    env.nodes().states(mark, |at, nodes| {
        let disrupted: Vec<_> = nodes.values().filter(|node| is_disrupted(node)).map(|node| node.name_any()).collect();
        ensure(disrupted.len() <= budget, || format!("at {at} of {budget} at most: {disrupted:?}"))
    })
}
