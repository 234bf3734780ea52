//! Many machines at once: on a poor cloud, and when all of them are in trouble.

use std::collections::BTreeMap;

use kube::{Api, ResourceExt, api::PostParams};
use nodewright_api::{Machine, MachinePhase, annotations};
use nodewright_e2e_cloud::{ClientError, Code, Effect, FaultOperation, FaultOrder, KubeletOrder};
use nodewright_e2e_scenarios::{
    Environment, Failure, TestResult, ensure, history::State, objects::ENVIRONMENT_LABEL, waits,
};
use serde_json::{Value, json};

use crate::health::one_at_a_time;

const NO_CAPACITY: &str = r#"exhausted for MachineClass "full" in zone "full""#;

/// One call in a hundred hangs, one in twenty is throttled, and one zone has no capacity.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_machines_on_a_poor_cloud_run_except_those_without_capacity() -> TestResult {
    const RUN: usize = 80;
    const WAIT: usize = 20;
    let env = Environment::start("poor").await?;
    let often = |effect, probability| {
        let order = FaultOrder::always(FaultOperation::Any, effect);
        FaultOrder { probability: Some(probability), ..order }
    };
    let full = FaultOrder::always(FaultOperation::Create, Effect::NoCapacity).in_zone("full");
    for order in [full, often(Effect::Hang { applied: true }, 0.01), often(Effect::Throttled, 0.05)] {
        env.cloud().fault(&order).await?;
    }
    for (zone, replicas) in [("free", RUN), ("full", WAIT)] {
        let labels = json!({ENVIRONMENT_LABEL: env.namespace(), "topology.kubernetes.io/zone": zone});
        env.apply(&env.class(zone).provider("labels", labels)).await?;
        env.apply(&env.pool(zone, u32::try_from(replicas)?).class(zone)).await?;
    }
    let is_exhausted = |machine: &Machine| {
        let Some(operation) = machine.status.as_ref().map(|status| &status.last_operation) else { return false };
        *machine.phase() == MachinePhase::CrashLoopBackOff
            && operation.error_code == "ResourceExhausted"
            && operation.description.contains(NO_CAPACITY)
    };
    env.wait_for_machines("all to run, or to say that there is no capacity", |machines| {
        let count = |is: &dyn Fn(&Machine) -> bool| machines.values().filter(|machine| is(machine)).count();
        (count(&|machine| waits::is_running(machine)), count(&is_exhausted)) == (RUN, WAIT)
    })
    .await?;
    let name = env.pool("full", 0).name().to_owned();
    env.wait_for("the deployment to say which zone has no capacity", async || {
        let status: Value =
            serde_json::from_str(&env.kubectl(&format!("get mcd {name} -o jsonpath={{.status}}")).await?)?;
        let failed = status["failedMachines"].as_array().map(Vec::as_slice).unwrap_or_default();
        let says = |failed: &&Value| {
            failed["lastOperation"]["description"].as_str().is_some_and(|it| it.contains(NO_CAPACITY))
        };
        Ok(failed.iter().filter(says).count() == WAIT)
    })
    .await?;
    let stats = env.cloud().stats().await?;
    let calls: u64 = stats.calls.values().flat_map(BTreeMap::values).sum();
    let per_machine = f64::from(u32::try_from(calls)?) / f64::from(u32::try_from(RUN + WAIT)?);
    println!("{calls} calls for {} machines, {per_machine:.2} for each: {:?}", RUN + WAIT, stats.calls);
    assert_eq!(
        (stats.created, env.machines().born_since(0)?),
        (RUN as u64, RUN + WAIT),
        "no VM and no machine too many"
    );
    // A look whether there is a VM and its creation, and a retry for each fault.
    ensure(per_machine <= 3.0, || format!("{per_machine} calls for each machine"))?;
    env.cloud().clear_faults().await?;
    env.end().await
}

/// Revives the kubelets of all VMs. A VM that is being replaced may go between the list and the order.
async fn revive(env: &Environment) -> TestResult {
    let vms = env.vms().await?;
    let orders = vms.iter().map(|vm| env.cloud().kubelet(&vm.id, &KubeletOrder::Revive));
    for answer in futures::future::join_all(orders).await {
        match answer {
            Err(ClientError::Refused { failure, .. }) if failure.code == Code::NotFound => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

async fn sixty<const N: usize>(name: &str, health_timeout: &str, flags: [&str; N]) -> TestResult<Environment> {
    let env = Environment::builder(name).cloud_flags(["--delete-seconds=0"]).manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 60).machine("healthTimeout", health_timeout)).await?;
    env.wait_for_running(60).await?;
    Ok(env)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixty_silent_kubelets_one_is_replaced_at_a_time_and_none_once_they_are_back() -> TestResult {
    let env = sixty("silent", "5s", ["--fleet-brake-percent=100"]).await?;
    let mark = env.machines().mark();
    let silent = env.vms().await?;
    for vm in &silent {
        env.cloud().kubelet(&vm.id, &KubeletOrder::Silence).await?;
    }
    env.wait_for("two to be replaced", async || Ok(env.machines().born_since(mark)? >= 2)).await?;
    revive(&env).await?;
    env.wait_for("all kubelets to report", async || {
        Ok(env.nodes().current().values().all(|node| waits::is_ready(node)))
    })
    .await?;
    // One may have failed while the kubelets began to report: it is being replaced.
    let back = env.machines().mark();
    env.wait_for_running(60).await?;
    let late = env.machines().born_since(back)?;
    ensure(late <= 1, || format!("{late} were made after all kubelets were back"))?;
    let (born, gone) = (env.machines().born_since(mark)?, env.machines().gone_since(mark)?);
    ensure(born == gone, || format!("{born} were made and {gone} went"))?;
    one_at_a_time(&env, mark)?;
    let held = |machine: &Machine| machine.condition("RemediationAllowed").is_some();
    env.wait_for_machines("none to wait for a place", |machines| !machines.values().any(|machine| held(machine)))
        .await?;
    env.end().await
}

/// In a small fleet the brake would stop all replacements for good: after its timeout one machine after the other is replaced.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn three_machines_that_are_all_silent_are_replaced_one_by_one_in_the_end() -> TestResult {
    let builder = Environment::builder("small-fleet").cloud_flags(["--delete-seconds=0"]);
    let env = builder.manager_flags(["--fleet-brake-timeout=10s"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3).machine("healthTimeout", "5s")).await?;
    let before = env.wait_for_running(3).await?;
    let mark = env.machines().mark();
    for vm in env.vms().await? {
        env.cloud().kubelet(&vm.id, &KubeletOrder::NotReady).await?;
    }
    env.wait_for_machines("all to be replaced", |all| before.keys().all(|name| !all.contains_key(name))).await?;
    env.wait_for_running(3).await?;
    one_at_a_time(&env, mark)?;
    let events = "get events --field-selector=reason=FleetBrake -o jsonpath={.items[*].message}";
    let events = env.kubectl(events).await?;
    ensure(events.contains("the fleet brake ends for it after 10s"), || format!("no event says so: {events}"))?;
    env.end().await
}

/// The brake stops replacements as long as most machines are unhealthy, and lets go by itself.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn while_sixty_kubelets_are_silent_the_fleet_brake_holds() -> TestResult {
    const BRAKE: &str = r#"machine_fleet_brake{zone=""}"#;
    // So long that all are unhealthy before the first fails.
    let env = sixty("brake", "30s", []).await?;
    let mark = env.machines().mark();
    for vm in env.vms().await? {
        env.cloud().kubelet(&vm.id, &KubeletOrder::Silence).await?;
    }
    let is_braked = |machine: &Machine| {
        let held = machine.condition("RemediationAllowed");
        held.and_then(|held| held.message.as_deref()).is_some_and(|text| text.contains("the fleet brake holds"))
    };
    let braked = |machines: &State<Machine>| machines.values().filter(|machine| is_braked(machine)).count();
    let held = env.wait_for_machines("all to be held by the brake", |all| braked(all) == 60).await?;
    ensure(env.metric(BRAKE).await? == Some(2.0), || "the metric does not say that it holds".to_owned())?;
    let events = env.kubectl("get events -o jsonpath={.items[*].reason}").await?;
    ensure(events.contains("FleetBrake"), || events)?;

    revive(&env).await?;
    let after = env.wait_for_running(60).await?;
    ensure(held.keys().eq(after.keys()), || "a machine that was held is gone".to_owned())?;
    let (born, gone) = (env.machines().born_since(mark)?, env.machines().gone_since(mark)?);
    ensure((born, gone) == (0, 0), || format!("{born} were made and {gone} went"))?;
    env.wait_for("the brake to let go", async || Ok(env.metric(BRAKE).await? == Some(0.0))).await?;
    env.wait_for_machines("none to be held", |machines| braked(machines) == 0).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixty_deleted_nodes_one_machine_goes_at_a_time_and_says_who_goes_first() -> TestResult {
    let env = sixty("nodeless", "5s", []).await?;
    let mark = env.machines().mark();
    let namespace = env.namespace();
    env.kubectl(&format!("delete nodes --wait=false --selector={ENVIRONMENT_LABEL}={namespace}")).await?;
    env.wait_for("three to be replaced", async || Ok(env.machines().born_since(mark)? >= 3)).await?;
    one_at_a_time(&env, mark)?;
    let names_another = |machine: &Machine, all: &State<Machine>| {
        let message = machine.condition("RemediationAllowed").and_then(|condition| condition.message.as_deref());
        message.is_some_and(|text| all.keys().any(|name| *name != machine.name_any() && text.contains(name.as_str())))
    };
    env.wait_for_machines("one that waits to name another one", |all| {
        all.values().any(|machine| names_another(machine, all))
    })
    .await?;
    env.end().await
}

/// The freeze of a set is the last line of defence. Machines that somebody makes by hand look like those of a controller gone wrong.
#[tokio::test(flavor = "multi_thread")]
async fn machines_made_by_hand_freeze_their_set_until_they_are_gone() -> TestResult {
    let env = Environment::builder("byhand").cloud_flags(["--delete-seconds=0"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let wanted = env.wait_for_running(2).await?;
    env.manager().await?.terminate().await?;
    let machines: Api<Machine> = Api::namespaced(env.client(), env.namespace());
    let model = wanted.values().next().ok_or_else(|| Failure::new("no machine"))?;
    for number in 0..4 {
        let mut copy = Machine::new(&format!("by-hand-{number}"), model.spec.clone());
        copy.metadata.labels.clone_from(&model.metadata.labels);
        // Of those that run equally well the oldest would go first.
        copy.annotations_mut().insert(annotations::MACHINE_PRIORITY.to_owned(), "1".to_owned());
        copy.spec.provider_id = String::new();
        machines.create(&PostParams::default(), &copy).await?;
    }
    env.manager().await?.start_again().await?;
    let reasons = async || env.kubectl("get events -o jsonpath={.items[*].reason}").await;
    env.wait_for("the freeze to begin", async || Ok(reasons().await?.contains("FrozeMachineSet"))).await?;
    env.wait_for("the freeze to end", async || Ok(reasons().await?.contains("UnfrozeMachineSet"))).await?;
    let after = env.wait_for_running(2).await?;
    ensure(after.keys().eq(wanted.keys()), || format!("others stay: {:?}", after.keys()))?;
    env.wait_for("the other VMs to go", async || Ok(env.vms().await?.len() == 2)).await?;
    let labels =
        async || env.kubectl("get machinesets,machinedeployments -o jsonpath={.items[*].metadata.labels.freeze}").await;
    env.wait_for("no label to be left", async || Ok(labels().await?.trim().is_empty())).await?;
    env.scale("a", 3).await?;
    env.wait_for_running(3).await?;
    env.end().await
}
