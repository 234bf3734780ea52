//! The environment of a scenario: machine-controller-manager's CRDs, and no controllers yet.

use nodewright_e2e_scenarios::{Environment, TestResult, clusters, skip_on_external_cluster};

/// Plays a scenario, unless the cluster is an external one.
pub(crate) async fn play(
    scenario: &str,
    prefix: &str,
    work: impl AsyncFnOnce(&Environment) -> TestResult,
) -> TestResult {
    if skip_on_external_cluster(scenario, "machine-controller-manager would manage all of its nodes") {
        return Ok(());
    }
    within(scenario, prefix, work).await
}

/// Does `work` in an environment of its own, whose name begins with `prefix`. A failure says in which scenario it was.
pub(crate) async fn within<T>(
    scenario: &str,
    prefix: &str,
    work: impl AsyncFnOnce(&Environment) -> TestResult<T>,
) -> TestResult<T> {
    let cluster = clusters::with_mcm_crds().await?;
    let env = Environment::builder(prefix).without_manager().mostly_waiting().on(&cluster).start().await?;
    match Box::pin(work(&env)).await {
        Ok(value) => env.end_unevaluated().await.map(|()| value),
        Err(failure) => Err(env.explain(failure.and(&format!("in {scenario}"))).await),
    }
}
