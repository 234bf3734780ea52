//! Two managers: one leads, the other takes over.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nodewright_e2e::{
    harness::{TestResult, World, ensure},
    running_set::ManagerProcess,
};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_millis(500);
/// What a busy machine may add: the standby's requests, our own looks.
const SLACK: Duration = Duration::from_secs(3);
const FLAGS: [&str; 3] =
    ["--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms"];

#[tokio::test(flavor = "multi_thread")]
async fn a_second_manager_stands_by_and_takes_over() -> TestResult {
    let world = World::builder("leaders").manager_flags(FLAGS).start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 2)).await?;
    world.wait_for_running(2).await?;
    let first = holder(&world).await?;

    let flags = FLAGS.map(str::to_owned);
    let mut standby = ManagerProcess::start(world.manager_options("standby", false, &flags)).await?;
    world.scale("a", 3).await?;
    world.wait_for_running(3).await?;
    assert_eq!(holder(&world).await?, first, "it stands by");

    let killed = Instant::now();
    world.manager().await?.kill_9();
    let both_change = async || Ok(holder(&world).await.is_ok_and(|now| now != first && !now.is_empty()));
    world.wait_for("the standby to hold both leases", both_change).await?;
    let waited = killed.elapsed();
    ensure(waited <= LEASE + RETRY + SLACK, || format!("it took over after {waited:?}"))?;
    let second = holder(&world).await?;
    world.scale("a", 1).await?;
    world.wait_for_running(1).await?;

    // One that is asked to end gives the leases back: nobody has to wait for their end.
    let status = standby.terminate().await?;
    ensure(status.is_some_and(|status| status.success()), || format!("asked to end, it ended with {status:?}"))?;
    ensure(holder(&world).await? != second, || "the leases were not given back".to_owned())?;
    world.manager().await?.start_again().await?;
    world.scale("a", 2).await?;
    world.wait_for_running(2).await?;
    assert_eq!(world.cloud().stats().await?.created, 4, "2, 1 more, and after the scale-down 1 again");
    world.end().await
}

/// Who holds both leases; an error if they are not held by one.
async fn holder(world: &World) -> TestResult<String> {
    let leases: Api<Lease> = Api::namespaced(world.client(), world.namespace());
    let mut holders = BTreeSet::new();
    for name in ["machine-controller-manager", "machine-controller"] {
        let spec = leases.get(name).await?.spec.unwrap_or_default();
        holders.insert(spec.holder_identity.unwrap_or_default());
    }
    ensure(holders.len() == 1, || format!("the leases are held by {holders:?}"))?;
    Ok(holders.into_iter().next().unwrap_or_default())
}
