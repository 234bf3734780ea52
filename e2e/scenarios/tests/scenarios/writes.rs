//! The cost of a machine for the API server.

use nodewright_e2e_scenarios::{Environment, TestResult, skip_on_external_cluster};

/// Writes per creation and per deletion of a machine without pods. Token, events, Leases and the writes to its set and
/// deployment are excluded.
const CREATION: usize = 5;
const DELETION: usize = 7;
const MACHINES: usize = 20;
/// Writes that races cost, such as a kubelet that reports twice before the first report is copied.
const RACES: usize = MACHINES / 4;

#[tokio::test(flavor = "multi_thread")]
async fn births_and_deaths_stay_within_their_budgets_of_writes() -> TestResult {
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
    let births = env.requests_since(before).await?;
    let count = births.writes_for_machines().len();
    println!("{count} writes for {MACHINES} births\n{births}");
    assert!(count <= CREATION * MACHINES + RACES, "{count} writes for {MACHINES} births\n{births}");

    let before = env.requests().await?.entries().len();
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;
    let deaths = env.requests_since(before).await?;
    let count = deaths.writes_for_machines().len();
    println!("{count} writes for {MACHINES} deaths\n{deaths}");
    assert!(count <= DELETION * MACHINES + RACES, "{count} writes for {MACHINES} deaths\n{deaths}");
    env.end().await
}
