//! An independent implementation: KWOK plays the kubelets.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use nodewright_e2e_cloud::{CloudClient, VmState};
use nodewright_e2e_lab::control_plane::kwok::Kwok;
use nodewright_e2e_scenarios::{Environment, TestResult, objects::ENVIRONMENT_LABEL, skip_on_external_cluster};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn kwok_is_taken_for_kubelets() -> TestResult {
    if skip_on_external_cluster("kwok", "KWOK is not ours to start") {
        return Ok(());
    }
    let env = Environment::builder("kwok").without_kubelets().start().await?;
    let Some(plane) = env.cluster().control_plane() else { return Ok(()) };
    let mut kwok = Kwok::start(plane, &format!("{ENVIRONMENT_LABEL}={}", env.namespace()))?;
    let booting = tokio::spawn(register(env.cloud().clone(), env.target_client(), env.namespace().to_owned()));
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    kwok.check()?;
    assert!(!booting.is_finished(), "{:?}", booting.await?);
    booting.abort();
    env.end().await
}

/// A booted VM only registers its node. KWOK does the rest.
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
                "metadata": {"name": vm.node_name, "labels": {ENVIRONMENT_LABEL: namespace}},
                "spec": {"providerID": vm.provider_id},
            });
            nodes.patch(&vm.node_name, &PatchParams::apply("vm"), &Patch::Apply(node)).await?;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
