//! `kubectl scale`: exactly as many machines as asked for.

use nodewright_e2e_scenarios::{TestResult, World};

#[tokio::test(flavor = "multi_thread")]
async fn scaling_up_and_down_creates_and_deletes_exactly_what_is_asked_for() -> TestResult {
    let world = World::start("scale").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world.wait_for_running(3).await?;
    let mark = world.machines().mark();

    world.scale("a", 50).await?;
    world.wait_for_running(50).await?;
    assert_eq!(world.machines().born_since(mark)?, 47);
    assert_eq!(world.vms().await?.len(), 50);
    if world.cluster().control_plane().is_some() {
        assert_eq!(world.requests().await?.exactly("patch", "machines", 201), 50, "3 at first, 47 after");
    }

    world.scale("a", 5).await?;
    let machines = world.wait_for_running(5).await?;
    world.wait_for("the last of the other VMs to go", async || Ok(world.vms().await?.len() == 5)).await?;
    assert_eq!(world.machines().gone_since(mark)?, 45);
    assert_eq!(world.machines().born_since(mark)?, 47);
    if world.cluster().control_plane().is_some() {
        let requests = world.requests().await?;
        assert_eq!(requests.exactly("patch", "machines", 201), 50);
        assert_eq!(requests.exactly("delete", "machines", 200), 45);
    }
    let names = |vms: Vec<nodewright_e2e_cloud::Vm>| vms.into_iter().map(|vm| vm.name).collect::<Vec<_>>();
    let mut vms = names(world.vms().await?);
    vms.sort();
    assert_eq!(vms, machines.into_keys().collect::<Vec<_>>());
    assert_eq!(world.cloud().stats().await?.created, 50);
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_at_once_ends_as_it_was() -> TestResult {
    let world = World::start("flip").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world.wait_for_running(3).await?;
    for _ in 0..3 {
        world.scale("a", 5).await?;
        world.scale("a", 1).await?;
        world.scale("a", 3).await?;
    }
    // The pool's status speaks of its last change only when that has come through.
    world
        .wait_for("the pool to be settled", async || {
            let pool: nodewright_api::MachineDeployment =
                kube::Api::namespaced(world.client(), world.namespace()).get(world.pool("a", 3).name()).await?;
            let status = pool.status.unwrap_or_default();
            let is_seen = pool.metadata.generation == Some(status.observed_generation);
            Ok(is_seen && status.replicas == 3 && status.available_replicas == 3)
        })
        .await?;
    world.wait_for_running(3).await?;
    world.wait_for("no VM to be too many", async || Ok(world.vms().await?.len() == 3)).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_down_begins_with_the_machine_that_is_marked_for_it() -> TestResult {
    let world = World::start("order").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 4)).await?;
    let before: Vec<String> = world.wait_for_running(4).await?.into_keys().collect();
    for chosen in [2, 1] {
        let name = world.machines().current().into_keys().nth(chosen).unwrap_or_default();
        let mark = format!("{}=1", nodewright_api::annotations::MACHINE_PRIORITY);
        world.kubectl(&format!("annotate --overwrite machine {name} {mark}")).await?;
        let left = u32::try_from(world.machines().current().len())? - 1;
        world.scale("a", left).await?;
        let after = world.wait_for_running(left as usize).await?;
        assert!(!after.contains_key(&name), "{name} was to go, not another of {before:?}");
    }
    world.end().await
}
