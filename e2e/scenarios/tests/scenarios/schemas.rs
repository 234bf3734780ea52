//! The definitions change under a running manager: a gardenlet applies machine-controller-manager's over ours.

use kube::Api;
use nodewright_api::MachineDeployment;
use nodewright_e2e_lab::control_plane::{apply_file, machine_controller_manager_crds, testing::crds};
use nodewright_e2e_scenarios::{Environment, TestResult, has_mcm_crds, skip_on_external_cluster};

/// An apply with an undeclared field fails as a whole: statuses would not be updated until a restart.
#[tokio::test(flavor = "multi_thread")]
async fn statuses_go_on_when_other_definitions_are_applied_over_ours() -> TestResult {
    if skip_on_external_cluster("schemas", "the definitions are not ours to change") || has_mcm_crds() {
        return Ok(());
    }
    let env = Environment::builder("schemas").with_own_plane().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    until_reported(&env, 1, true).await?;

    apply_file(&env.client(), &machine_controller_manager_crds().await?).await?;
    env.scale("a", 2).await?;
    until_reported(&env, 2, false).await?;

    apply_file(&env.client(), &crds().await?).await?;
    let seen = || std::fs::read_to_string(env.log("manager")).unwrap_or_default();
    let changes = "the CRDs have changed";
    env.wait_for("the manager to see our CRDs", async || Ok(seen().matches(changes).count() >= 2)).await?;
    env.scale("a", 3).await?;
    until_reported(&env, 3, true).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Waits until the status of the deployment counts this many available machines, and has a selector or not, as wanted.
async fn until_reported(env: &Environment, available: i32, has_selector: bool) -> TestResult {
    let deployments: Api<MachineDeployment> = Api::namespaced(env.client(), env.namespace());
    let what = format!("the status to say {available}");
    env.wait_for(&what, async || {
        let status = deployments.get(env.pool("a", 0).name()).await?.status.unwrap_or_default();
        Ok(status.available_replicas == available && (!has_selector || !status.selector.is_empty()))
    })
    .await?;
    Ok(())
}
