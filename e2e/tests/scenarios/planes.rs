//! Custom resources in one cluster, nodes in another.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use nodewright_e2e::harness::{TestResult, World, objects::WORLD_LABEL, skip_without_plane};

#[tokio::test(flavor = "multi_thread")]
async fn control_and_target_cluster_may_be_apart() -> TestResult {
    if skip_without_plane("planes", "there is no second control plane") {
        return Ok(());
    }
    let world = World::builder("apart").with_target_apart().start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world.wait_for_running(3).await?;
    let ours = ListParams::default().labels(&format!("{WORLD_LABEL}={}", world.namespace()));
    assert_eq!(Api::<Node>::all(world.target_client()).list(&ours).await?.items.len(), 3);
    assert!(Api::<Node>::all(world.client()).list(&ours).await?.items.is_empty());
    world.scale("a", 1).await?;
    world.wait_for_running(1).await?;
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    world.end().await
}
