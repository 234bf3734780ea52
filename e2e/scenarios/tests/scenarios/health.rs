//! VMs that die on their own.

use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase};
use nodewright_e2e_cloud::{Effect, FaultOperation, FaultOrder, KubeletOrder, Vm};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, history::State, waits};

async fn world_of(name: &str, replicas: u32) -> TestResult<Environment> {
    // VMs are deleted at once: the checks here need no slow deletion. The fleet brake would keep machines from being replaced
    // while most of them are dead; `fleet.rs` is about that.
    let builder = Environment::builder(name).cloud_flags(["--delete-seconds=0"]);
    let env = builder.manager_flags(["--fleet-brake-percent=100"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", replicas).machine("healthTimeout", "5s")).await?;
    env.wait_for_running(replicas as usize).await?;
    Ok(env)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_vm_dies_is_replaced_by_exactly_one() -> TestResult {
    let env = world_of("dead", 3).await?;
    let mark = env.machines().mark();
    let dead = env.vms().await?.swap_remove(0);
    env.cloud().kill(&dead.id).await?;
    env.wait_for_machines("the dead machine to go", |machines| !machines.contains_key(&dead.name)).await?;
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1));
    assert_eq!(phases(&env, &dead.name)?, ["", "Pending", "Running", "Unknown", "Failed", "Terminating"]);
    env.end().await
}

/// All phases of a machine, in order.
fn phases(env: &Environment, name: &str) -> TestResult<Vec<String>> {
    let changes = env.machines().changes()?;
    let of = changes.iter().filter(|change| change.object.name_any() == name);
    let mut phases: Vec<String> = of.map(|change| change.object.phase().as_str().to_owned()).collect();
    phases.dedup();
    Ok(phases)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_that_die_at_once_one_is_replaced_at_a_time() -> TestResult {
    let env = world_of("ten", 10).await?;
    let mark = env.machines().mark();
    let dead = env.vms().await?;
    for vm in &dead {
        env.cloud().kill(&vm.id).await?;
    }
    env.wait_for_machines("all dead machines to go", |machines| dead.iter().all(|vm| !machines.contains_key(&vm.name)))
        .await?;
    env.wait_for_running(10).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (10, 10));
    one_at_a_time(&env, mark)?;
    env.end().await
}

/// Fails if more than one machine failed or being deleted at any time since a mark, or more than one new one was not up.
pub(crate) fn one_at_a_time(env: &Environment, mark: usize) -> TestResult {
    env.machines().states(mark, |at, state| {
        let (failed, unborn) = in_replacement(state);
        ensure(failed <= 1 && unborn <= 1, || format!("at {at}, {failed} failed and {unborn} not up"))
    })
}

/// The number of machines that are being replaced or deleted, and the number of new ones that are not running yet.
fn in_replacement(state: &State<Machine>) -> (usize, usize) {
    let has_failed = |machine: &Machine| machine.is_deleting() || *machine.phase() == MachinePhase::Failed;
    let is_up = |machine: &Machine| matches!(machine.phase(), MachinePhase::Running | MachinePhase::Unknown);
    let failed = state.values().filter(|machine| has_failed(machine)).count();
    let unborn = state.values().filter(|machine| !has_failed(machine) && !is_up(machine)).count();
    (failed, unborn)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_in_time_keeps_its_machine() -> TestResult {
    let env = Environment::start("back").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1).machine("healthTimeout", "10m")).await?;
    env.wait_for_running(1).await?;
    let mark = env.machines().mark();
    let vm = env.vms().await?.swap_remove(0);
    env.cloud().kubelet(&vm.id, &KubeletOrder::Silence).await?;
    env.wait_for_machines("the machine to be missed", |machines| {
        machines.values().all(|machine| *machine.phase() == MachinePhase::Unknown)
    })
    .await?;
    env.cloud().kubelet(&vm.id, &KubeletOrder::Revive).await?;
    env.wait_for_running(1).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (0, 0));
    assert_eq!(phases(&env, &vm.name)?, ["", "Pending", "Running", "Unknown", "Running"]);
    env.end().await
}

/// The view of a manager that starts after an outage of the API server: all nodes silent, all timeouts expired. The kubelets
/// get time to report. A node that is silent afterwards is treated as dead.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_were_silent_before_the_manager_led_may_speak_first() -> TestResult {
    let flags = ["--log-level=info,nodewright_runtime=debug"];
    let env = Environment::builder("spoken").cloud_flags(["--delete-seconds=0"]).manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3).machine("healthTimeout", "5s")).await?;
    env.wait_for_running(3).await?;
    let mut manager = env.manager().await?;
    manager.terminate().await?;
    let vms = env.vms().await?;
    for vm in &vms {
        env.cloud().kubelet(&vm.id, &KubeletOrder::Silence).await?;
    }
    let all_silent = async || Ok(env.nodes().current().values().all(|node| !waits::is_ready(node)));
    env.wait_for("all nodes to be missed", all_silent).await?;
    let mark = env.machines().mark();
    manager.start_again().await?;
    drop(manager);
    let holds = |log: &str, vm: &Vm| {
        log.lines().any(|line| line.contains("ReportAwaited") && line.contains(&format!("/{}", vm.name)))
    };
    env.wait_for("each machine to wait for a report", async || {
        let log = std::fs::read_to_string(env.log("manager"))?;
        Ok(vms.iter().all(|vm| holds(&log, vm)))
    })
    .await?;
    // Longer than the health timeout, which has long expired for all of them.
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    for vm in &vms {
        env.cloud().kubelet(&vm.id, &KubeletOrder::Revive).await?;
    }
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (0, 0));
    for vm in &vms {
        assert_eq!(phases(&env, &vm.name)?, ["", "Pending", "Running"], "nobody even doubted it");
    }

    let dead = &vms[0];
    env.cloud().kubelet(&dead.id, &KubeletOrder::Silence).await?;
    env.wait_for_machines("the dead machine to go", |machines| !machines.contains_key(&dead.name)).await?;
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1));
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_never_joins_is_replaced_by_exactly_one() -> TestResult {
    let env = Environment::start("mute").await?;
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::NeverJoins).times(1)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2).machine("creationTimeout", "10s")).await?;
    env.wait_for_machines("the mute machine to fail", |machines| {
        machines.values().any(|machine| *machine.phase() == MachinePhase::Failed || machine.is_deleting())
    })
    .await?;
    env.wait_for_running(2).await?;
    assert_eq!((env.machines().born_since(0)?, env.machines().gone_since(0)?), (3, 1));
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_machine_of_a_node_that_is_being_repaired_stays() -> TestResult {
    let env = world_of("repair", 3).await?;
    let mark = env.machines().mark();
    let mut vms = env.vms().await?;
    let (repaired, dead) = (vms.swap_remove(0), vms.swap_remove(0));
    let machine_of = |vm: &Vm| env.machines().current().remove(&vm.name);
    let node = machine_of(&repaired).and_then(|machine| machine.node_name().map(str::to_owned)).unwrap_or_default();
    let key = nodewright_api::annotations::DISABLE_HEALTH_TIMEOUT;
    env.kubectl(&format!("annotate node {node} {key}=true")).await?;
    env.cloud().kubelet(&repaired.id, &KubeletOrder::Silence).await?;
    let is_kept = |machine: &Machine| {
        let timeout = machine.condition(nodewright_api::conditions::machine::HEALTH_TIMEOUT);
        *machine.phase() == MachinePhase::Unknown && timeout.is_some_and(|timeout| timeout.status == "False")
    };
    env.wait_for_machines("the machine to be missed", |machines| {
        machines.get(&repaired.name).is_some_and(|it| is_kept(it))
    })
    .await?;
    // Its health timeout is over by the time that another one, which was missed later, has been replaced.
    env.cloud().kubelet(&dead.id, &KubeletOrder::Silence).await?;
    env.wait_for_machines("the dead machine to go", |machines| !machines.contains_key(&dead.name)).await?;
    ensure(machine_of(&repaired).is_some_and(|machine| is_kept(&machine)), || "it is not kept".to_owned())?;
    env.kubectl(&format!("annotate node {node} {key}-")).await?;
    env.wait_for_machines("the repaired machine to go", |machines| !machines.contains_key(&repaired.name)).await?;
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (2, 2));
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_slower_than_the_timeout_gets_more_time() -> TestResult {
    let env = Environment::builder("slow").manager_flags(["--machine-creation-timeout-max=2m"]).start().await?;
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::Boot { seconds: 13.0 })).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2).machine("creationTimeout", "10s")).await?;
    let machines = env.wait_for_running(2).await?;
    assert_eq!(
        (env.machines().born_since(0)?, env.machines().gone_since(0)?),
        (4, 2),
        "two of each did not join in time"
    );
    let key = nodewright_api::annotations::EFFECTIVE_CREATION_TIMEOUT;
    let timeouts: Vec<_> = machines.values().map(|machine| machine.annotations().get(key).cloned()).collect();
    assert_eq!(timeouts, [Some("20s".to_owned()), Some("20s".to_owned())]);
    env.end().await
}
