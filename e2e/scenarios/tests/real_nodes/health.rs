//! Nodes that fail: the VM without power, the kubelet that hangs, the network that is cut, the Node that is deleted.

use kube::{Api, ResourceExt, api::DeleteParams};
use nodewright_api::MachinePhase;
use nodewright_e2e_cloud::{HardwareOrder, KubeletOrder, Vm};
use nodewright_e2e_scenarios::{Environment, History, TestResult, ensure};

use crate::{
    finish, real_nodes,
    workload::{node_of, record_pods, wait_for_ready, web},
};
use k8s_openapi::api::core::v1::{Node, Pod};

const PODS: usize = 4;

/// Three machines with pods.
///
/// Differs from the defaults: a machine is replaced after 5 s of bad health, not after 10 m, and its pods are deleted by force
/// 10 s after it, not 2 h, so that the scenario takes seconds.
async fn three_machines(name: &str) -> TestResult<Option<(Environment, History<Pod>)>> {
    let Some(builder) = real_nodes(name) else { return Ok(None) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3).machine("healthTimeout", "5s").machine("drainTimeout", "10s")).await?;
    env.wait_for_running(3).await?;
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 4)).await?;
    wait_for_ready(&env, &pods, "web", PODS).await?;
    Ok(Some((env, pods)))
}

/// Waits until a machine is replaced by exactly one, and its pods run elsewhere.
async fn is_replaced(env: &Environment, pods: &History<Pod>, lost: &Vm, mark: usize) -> TestResult {
    env.wait_for_machines("the lost machine to go", |machines| !machines.contains_key(&lost.name)).await?;
    env.wait_for_running(3).await?;
    wait_for_ready(env, pods, "web", PODS).await?;
    let is_there = |pod: &Pod| node_of(pod) == lost.node_name;
    env.wait_for("the pods of the lost node to go", async || Ok(!pods.current().values().any(|pod| is_there(pod))))
        .await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1));
    Ok(())
}

/// The phases of a machine, in order.
fn phases(env: &Environment, name: &str) -> TestResult<Vec<MachinePhase>> {
    let changes = env.machines().changes()?;
    let of = changes.iter().filter(|change| change.object.name_any() == name);
    let mut phases: Vec<_> = of.map(|change| change.object.phase().clone()).collect();
    phases.dedup();
    Ok(phases)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_without_power_is_replaced_and_its_pods_run_elsewhere() -> TestResult {
    let Some((env, pods)) = three_machines("power").await? else { return Ok(()) };
    let (mark, lost) = (env.machines().mark(), env.vms().await?.swap_remove(0));
    env.cloud().kill(&lost.id).await?;
    is_replaced(&env, &pods, &lost, mark).await?;
    assert!(phases(&env, &lost.name)?.contains(&MachinePhase::Unknown));
    finish(env).await
}

/// A power cut that is shorter than the health timeout: the VM boots again with its disk, its certificate and its Node.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_vm_that_is_switched_on_again_in_time_is_kept() -> TestResult {
    let Some(builder) = real_nodes("cycle") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    // Not the default of 10 m, which a slow computer would not need: the cut lasts until the machine is missed.
    env.apply(&env.pool("a", 1).machine("healthTimeout", "5m")).await?;
    env.wait_for_running(1).await?;
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 1)).await?;
    wait_for_ready(&env, &pods, "web", 1).await?;
    let (mark, vm) = (env.machines().mark(), env.vms().await?.swap_remove(0));
    env.cloud().kill(&vm.id).await?;
    env.wait_for_machines("the machine to be missed", |machines| {
        machines.values().all(|machine| *machine.phase() == MachinePhase::Unknown)
    })
    .await?;
    env.cloud().start(&vm.id).await?;
    env.wait_for_running(1).await?;
    wait_for_ready(&env, &pods, "web", 1).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (0, 0));
    finish(env).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_machine_whose_kubelet_hangs_is_replaced() -> TestResult {
    let Some((env, pods)) = three_machines("hang").await? else { return Ok(()) };
    let (mark, lost) = (env.machines().mark(), env.vms().await?.swap_remove(0));
    env.cloud().kubelet(&lost.id, &KubeletOrder::Silence).await?;
    is_replaced(&env, &pods, &lost, mark).await?;
    assert!(phases(&env, &lost.name)?.contains(&MachinePhase::Unknown));
    finish(env).await
}

/// A cut network that is restored in time does no harm; one that stays costs the machine.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_machine_whose_network_is_cut_is_replaced() -> TestResult {
    let Some((env, pods)) = three_machines("cut").await? else { return Ok(()) };
    let (mark, lost) = (env.machines().mark(), env.vms().await?.swap_remove(0));
    env.cloud().hardware(&lost.id, HardwareOrder::CutNetwork).await?;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    env.cloud().hardware(&lost.id, HardwareOrder::RestoreNetwork).await?;
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert_eq!(phases(&env, &lost.name)?.last(), Some(&MachinePhase::Running));
    assert_eq!(env.machines().gone_since(mark)?, 0);
    env.cloud().hardware(&lost.id, HardwareOrder::CutNetwork).await?;
    is_replaced(&env, &pods, &lost, mark).await?;
    finish(env).await
}

/// To delete a Node is to delete its machine, which is drained first, while its kubelet lives.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_machine_whose_node_is_deleted_is_drained_and_replaced() -> TestResult {
    let Some((env, pods)) = three_machines("node").await? else { return Ok(()) };
    let (mark, lost) = (env.machines().mark(), env.vms().await?.swap_remove(0));
    let nodes: Api<Node> = Api::all(env.target_client());
    nodes.delete(&lost.node_name, &DeleteParams::default()).await?;
    is_replaced(&env, &pods, &lost, mark).await?;
    // The Node does not come back.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    ensure(!env.nodes().current().contains_key(&lost.node_name), || "the deleted Node is back".to_owned())?;
    finish(env).await
}
