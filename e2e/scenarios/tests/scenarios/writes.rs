//! The cost of a machine for the API server.

use std::time::Duration;

use kube::Api;
use nodewright_api::MachineDeployment;
use nodewright_e2e_cloud::KubeletOrder;
use nodewright_e2e_scenarios::{Environment, TestResult, skip_on_external_cluster, waits};

/// Writes per creation and per deletion of a machine without pods. Token, events, Leases and the writes to its set and
/// deployment are excluded.
const CREATION: usize = 5;
const DELETION: usize = 7;
const MACHINES: usize = 20;
/// Writes that races cost, such as a kubelet that reports twice before the first report is copied.
const RACES: usize = MACHINES / 4;

#[tokio::test(flavor = "multi_thread")]
async fn creations_and_deletions_stay_within_their_budgets_of_writes() -> TestResult {
    if skip_on_external_cluster("writes", "the audit log is not at hand") {
        return Ok(());
    }
    // The first creation also creates the set.
    let env = Environment::start("writes").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;

    let before = env.requests().await?.entries().len();
    env.scale("a", u32::try_from(MACHINES)? + 1).await?;
    env.wait_for_running(MACHINES + 1).await?;
    let creations = env.requests_since(before).await?;
    let count = creations.writes_for_machines().len();
    println!("{count} writes for {MACHINES} creations\n{creations}");
    assert!(count <= CREATION * MACHINES + RACES, "{count} writes for {MACHINES} creations\n{creations}");

    let before = env.requests().await?.entries().len();
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;
    let deaths = env.requests_since(before).await?;
    let count = deaths.writes_for_machines().len();
    println!("{count} writes for {MACHINES} deaths\n{deaths}");
    assert!(count <= DELETION * MACHINES + RACES, "{count} writes for {MACHINES} deaths\n{deaths}");
    env.end().await
}

/// A Node that is not ready for some seconds: the Machine waits whether that passes, and so nobody else hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_health_flip_of_seconds_costs_at_most_one_write_of_machine_set_and_deployment() -> TestResult {
    if skip_on_external_cluster("flips", "the audit log is not at hand") {
        return Ok(());
    }
    let env = Environment::start("flips").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let machines = env.wait_for_running(3).await?;
    env.wait_for("the deployment to say that all are available", async || {
        let pool: MachineDeployment =
            Api::namespaced(env.client(), env.namespace()).get(env.pool("a", 3).name()).await?;
        Ok(pool.status.is_some_and(|status| status.available_replicas == 3))
    })
    .await?;
    let vm = env.vms().await?.swap_remove(0);
    let node = |ready: bool| env.nodes().current().get(&vm.name).is_some_and(|node| waits::is_ready(node) == ready);
    let before = env.requests().await?.entries().len();
    env.cloud().kubelet(&vm.id, &KubeletOrder::NotReady).await?;
    env.wait_for("the node not to be ready", async || Ok(node(false))).await?;
    env.cloud().kubelet(&vm.id, &KubeletOrder::Ready).await?;
    env.wait_for("the node to be ready again", async || Ok(node(true))).await?;
    // Longer than a controller waits whether a trouble passes: what it writes by then is what the flip costs.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let requests = env.requests_since(before).await?;
    let of = |resource: &str| {
        requests.entries().iter().filter(|entry| entry.is_write() && entry.resource == resource).count()
    };
    let costs = ["machines", "machinesets", "machinedeployments"].map(|resource| (resource, of(resource)));
    println!("{costs:?}");
    assert!(costs.iter().all(|(_, writes)| *writes <= 1), "{costs:?}\n{requests}");
    assert!(machines.contains_key(&vm.name), "{machines:?}");
    env.end().await
}
