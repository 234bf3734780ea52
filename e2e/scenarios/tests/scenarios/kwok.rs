//! A second opinion: KWOK plays the kubelets.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use nodewright_e2e_cloud::{CloudClient, VmState};
use nodewright_e2e_control_plane::kwok::Kwok;
use nodewright_e2e_scenarios::{TestResult, World, objects::WORLD_LABEL, skip_on_external_cluster};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn kwok_is_taken_for_kubelets() -> TestResult {
    if skip_on_external_cluster("kwok", "KWOK is not ours to start") {
        return Ok(());
    }
    let world = World::builder("kwok").without_kubelets().start().await?;
    let Some(plane) = world.cluster().control_plane() else { return Ok(()) };
    let mut kwok = Kwok::start(plane, &format!("{WORLD_LABEL}={}", world.namespace()))?;
    let booting = tokio::spawn(register(world.cloud().clone(), world.target_client(), world.namespace().to_owned()));
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world.wait_for_running(3).await?;
    world.scale("a", 1).await?;
    world.wait_for_running(1).await?;
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    kwok.check()?;
    assert!(!booting.is_finished(), "{:?}", booting.await?);
    booting.abort();
    world.end().await
}

/// What a VM does when it has booted: it registers its node. All else is KWOK's.
async fn register(cloud: CloudClient, client: Client, namespace: String) -> TestResult {
    let nodes: Api<Node> = Api::all(client);
    let mut known = std::collections::BTreeSet::new();
    loop {
        for vm in cloud.vms().await?.into_iter().filter(|vm| vm.state == VmState::Running) {
            if !known.insert(vm.id.clone()) {
                continue;
            }
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": vm.node_name, "labels": {WORLD_LABEL: namespace}},
                "spec": {"providerID": vm.provider_id},
            });
            nodes.patch(&vm.node_name, &PatchParams::apply("vm"), &Patch::Apply(node)).await?;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
