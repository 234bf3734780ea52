//! `kubectl scale`: exactly the wanted number of machines.

use nodewright_e2e_cloud::{Effect, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};

#[tokio::test(flavor = "multi_thread")]
async fn scaling_up_and_down_creates_and_deletes_exactly_what_is_asked_for() -> TestResult {
    let env = Environment::start("scale").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    let mark = env.machines().mark();

    env.scale("a", 50).await?;
    env.wait_for_running(50).await?;
    assert_eq!(env.machines().born_since(mark)?, 47);
    assert_eq!(env.vms().await?.len(), 50);
    if env.cluster().control_plane().is_some() {
        assert_eq!(env.requests().await?.exactly("patch", "machines", 201), 50, "3 at first, 47 after");
    }

    env.scale("a", 5).await?;
    let machines = env.wait_for_running(5).await?;
    env.wait_for("the last of the other VMs to go", async || Ok(env.vms().await?.len() == 5)).await?;
    assert_eq!(env.machines().gone_since(mark)?, 45);
    assert_eq!(env.machines().born_since(mark)?, 47);
    if env.cluster().control_plane().is_some() {
        let requests = env.requests().await?;
        assert_eq!(requests.exactly("patch", "machines", 201), 50);
        assert_eq!(requests.exactly("delete", "machines", 200), 45);
    }
    let names = |vms: Vec<nodewright_e2e_cloud::Vm>| vms.into_iter().map(|vm| vm.name).collect::<Vec<_>>();
    let mut vms = names(env.vms().await?);
    vms.sort();
    assert_eq!(vms, machines.into_keys().collect::<Vec<_>>());
    assert_eq!(env.cloud().stats().await?.created, 50);
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_at_once_ends_as_it_was() -> TestResult {
    let env = Environment::start("flip").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    for _ in 0..3 {
        env.scale("a", 5).await?;
        env.scale("a", 1).await?;
        env.scale("a", 3).await?;
    }
    // The pool's status reports its last change only after that has completed.
    env.wait_for("the pool to be settled", async || {
        let pool: nodewright_api::MachineDeployment =
            kube::Api::namespaced(env.client(), env.namespace()).get(env.pool("a", 3).name()).await?;
        let status = pool.status.unwrap_or_default();
        let is_seen = pool.metadata.generation == Some(status.observed_generation);
        Ok(is_seen && status.replicas == 3 && status.available_replicas == 3)
    })
    .await?;
    env.wait_for_running(3).await?;
    env.wait_for("no VM to be too many", async || Ok(env.vms().await?.len() == 3)).await?;
    env.end().await
}

/// Issue 1091 of machine-controller-manager, which then had about 43 machines too many.
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issue_1091_many_machines_that_are_taken_back_within_seconds_leave_the_first_ones_alone() -> TestResult {
    const MOST: usize = 131;
    let env = Environment::start("revert").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let first = env.wait_for_running(3).await?;
    // No new machine runs before the change is taken back, however slow the computer is.
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::Boot { seconds: 600.0 })).await?;
    let mark = env.machines().mark();
    env.scale("a", 131).await?;
    env.wait_for_machines("most of the machines", |machines| machines.len() > 100).await?;
    env.scale("a", 3).await?;
    let left = env.wait_for_running(3).await?;
    ensure(left.keys().eq(first.keys()), || format!("{:?} are left of {:?}", left.keys(), first.keys()))?;
    let (born, gone) = (env.machines().born_since(mark)?, env.machines().gone_since(mark)?);
    ensure(born == gone && born <= MOST - 3, || format!("{born} machines were created and {gone} deleted"))?;
    env.machines().states(mark, |at, state| {
        ensure(state.len() <= MOST, || format!("at {at} there were {} machines", state.len()))
    })?;
    env.wait_for("no VM to be too many", async || Ok(env.vms().await?.len() == 3)).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_down_begins_with_the_machine_that_is_marked_for_it() -> TestResult {
    let env = Environment::start("order").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 4)).await?;
    let before: Vec<String> = env.wait_for_running(4).await?.into_keys().collect();
    for chosen in [2, 1] {
        let name = env.machines().current().into_keys().nth(chosen).unwrap_or_default();
        let mark = format!("{}=1", nodewright_api::annotations::MACHINE_PRIORITY);
        env.kubectl(&format!("annotate --overwrite machine {name} {mark}")).await?;
        let left = u32::try_from(env.machines().current().len())? - 1;
        env.scale("a", left).await?;
        let after = env.wait_for_running(left as usize).await?;
        assert!(!after.contains_key(&name), "{name} was to go, not another of {before:?}");
    }
    env.end().await
}
