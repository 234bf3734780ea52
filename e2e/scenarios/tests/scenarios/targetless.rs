//! Without a target cluster a Machine is its VM: nothing joins, nothing is drained.

use kube::ResourceExt;
use nodewright_api::MachinePhase;
use nodewright_e2e_lab::devcluster::{ManagerOptions, ManagerProcess};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn machines_without_a_target_cluster_come_roll_and_go() -> TestResult {
    let env = Environment::builder("targetless").without_manager().without_kubelets().start().await?;
    let mut manager = ManagerProcess::start(options(&env)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_machines("three available machines", |machines| {
        machines.len() == 3 && machines.values().all(|machine| *machine.phase() == MachinePhase::Available)
    })
    .await?;
    let are_available = async || Ok(env.table("mcd").await?.column("AVAILABLE")? == ["3"]);
    env.wait_for("the deployment to show three available machines", are_available).await?;
    let vms = env.vms().await?;
    for machine in env.machines().current().values() {
        let status = machine.status.clone().unwrap_or_default();
        let hostname = status.addresses.iter().find(|address| address.type_ == "Hostname").map(|it| it.address.clone());
        ensure(hostname.is_some(), || format!("{}: {:?}", machine.name_any(), status.addresses))?;
        ensure(machine.node_name().is_none(), || format!("{} names a node", machine.name_any()))?;
    }
    assert_eq!(vms.len(), 3);

    // A manager that takes over knows them again; a roll replaces each once.
    manager.kill_9();
    manager.start_again().await?;
    env.apply(&env.pool("a", 3).machine("nodeTemplate", json!({"metadata": {"labels": {"colour": "red"}}}))).await?;
    env.apply_class("large").await?;
    env.apply(&env.pool("a", 3).class("large")).await?;
    env.wait_for_machines("three machines of the new class", |machines| {
        machines.len() == 3
            && machines.values().all(|it| it.class_name() == "large" && *it.phase() == MachinePhase::Available)
    })
    .await?;
    assert_eq!(env.cloud().stats().await?.created, 6);

    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    manager.check()?;
    env.end().await
}

fn options(env: &Environment) -> ManagerOptions {
    ManagerOptions { target_kubeconfig: None, ..env.manager_options("manager", false, &[]) }
}
