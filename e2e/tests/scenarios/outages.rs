//! The control plane is away for a while.

use std::time::Duration;

use kube::ResourceExt;
use nodewright_e2e::{
    harness::{TestResult, World, ensure, skip_without_plane},
    plane::Component,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_is_killed_and_comes_back_costs_no_machine() -> TestResult {
    if skip_without_plane("outages", "the API server is not ours to kill") {
        return Ok(());
    }
    let world = World::builder("outage").with_own_plane().start().await?;
    let Some(plane) = world.cluster().plane() else { return Ok(()) };
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 2)).await?;
    world.wait_for_running(2).await?;

    for component in [Component::ApiServer, Component::Etcd] {
        let before = world.machines().current().len();
        let wanted = before + 6;
        world.scale("a", u32::try_from(wanted)?).await?;
        let some = |changes: &[nodewright_e2e::harness::Change<nodewright_api::Machine>]| {
            let names: std::collections::BTreeSet<_> = changes.iter().map(|change| change.object.name_any()).collect();
            names.len() > before
        };
        world.in_time("the first of the new machines", world.machines().until(some)).await?;
        plane.stop(component)?;
        // Long enough for requests to fail and to be tried again; shorter than the manager may be without its leases.
        tokio::time::sleep(Duration::from_secs(3)).await;
        plane.start_again(component).await?;
        world.wait_for_running(wanted).await?;
        let created = usize::try_from(world.cloud().stats().await?.created)?;
        ensure(created == wanted, || format!("{created} VMs were made for {wanted} machines"))?;
    }
    let machines = world.machines().current().len();
    assert!(world.machines().seen().iter().all(|change| !change.gone), "none of {machines} was replaced");
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    world.end().await
}
