//! What a machine costs the API server.

use nodewright_e2e_scenarios::{TestResult, World, skip_on_external_cluster};

/// Writes per creation and per deletion of a machine without pods. Token, events, Leases and the writes to its set and
/// deployment are apart.
const CREATION: usize = 7;
const DELETION: usize = 9;
const MACHINES: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn births_and_deaths_stay_within_their_budgets_of_writes() -> TestResult {
    if skip_on_external_cluster("writes", "the audit log is not at hand") {
        return Ok(());
    }
    // The first one makes the set, too.
    let world = World::start("writes").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 1)).await?;
    world.wait_for_running(1).await?;

    let before = world.requests().await?.entries().len();
    world.scale("a", u32::try_from(MACHINES)? + 1).await?;
    world.wait_for_running(MACHINES + 1).await?;
    let births = world.requests_since(before).await?;
    let count = births.writes_for_machines().len();
    println!("{count} writes for {MACHINES} births\n{births}");
    assert!(count <= CREATION * MACHINES, "{count} writes for {MACHINES} births\n{births}");

    let before = world.requests().await?.entries().len();
    world.scale("a", 1).await?;
    world.wait_for_running(1).await?;
    let deaths = world.requests_since(before).await?;
    let count = deaths.writes_for_machines().len();
    println!("{count} writes for {MACHINES} deaths\n{deaths}");
    assert!(count <= DELETION * MACHINES, "{count} writes for {MACHINES} deaths\n{deaths}");
    world.end().await
}
