//! All is deleted, and nothing stays.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::API_VERSION;
use nodewright_e2e_cloud::VmState;
use nodewright_e2e_scenarios::{TestResult, World, ensure};
use serde_json::json;

const KINDS: &str = "machinedeployments,machinesets,machines,machineclasses";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_all_objects_are_deleted() -> TestResult {
    let world = World::start("removal").await?;
    let secrets: Api<Secret> = Api::namespaced(world.client(), world.namespace());

    install(&world).await?;
    assert!(all(&secrets).await?.iter().all(|secret| !secret.finalizers().is_empty()), "secrets in use are held");
    // kubectl waits until all are gone.
    world.in_time("the end of all", world.kubectl(&format!("delete {KINDS},secrets --all"))).await??;
    world.wait_for_nothing().await?;
    assert!(all(&secrets).await?.is_empty());
    assert_eq!(tokens(&world).await?, Vec::<String>::new());

    install(&world).await?;
    world.in_time("the end of all", world.kubectl(&format!("delete {KINDS} --all"))).await??;
    world.wait_for_nothing().await?;
    world
        .wait_for("secrets without finalizers", async || {
            let secrets = all(&secrets).await?;
            Ok(secrets.len() == 2 && secrets.iter().all(|secret| secret.finalizers().is_empty()))
        })
        .await?;
    world.end().await
}

/// A Machine that somebody removed with its finalizer leaves VM and Node behind: the Node can be deleted all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_machine_was_removed_by_force_can_be_deleted() -> TestResult {
    let world = World::builder("widow").manager_flags(["--orphaned-node-grace=3s"]).start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 1)).await?;
    // Of no set, which would make it again.
    let lost = format!("{}-lost", world.namespace());
    let class = json!({"kind": "MachineClass", "name": "small"});
    let machine =
        json!({"apiVersion": API_VERSION, "kind": "Machine", "metadata": {"name": lost}, "spec": {"class": class}});
    world.apply(&machine).await?;
    world.wait_for_running(2).await?;
    {
        let mut manager = world.manager().await?;
        manager.terminate().await?;
        world
            .kubectl(&format!("patch machine {lost} --type=merge -p={{\"metadata\":{{\"finalizers\":null}}}}"))
            .await?;
        world.kubectl(&format!("delete machine {lost}")).await?;
        world.kubectl(&format!("delete node {lost} --wait=false")).await?;
        let begun = Instant::now();
        manager.start_again().await?;
        let nodes: Api<Node> = Api::all(world.target_client());
        let is_gone = async || Ok(nodes.get_opt(&lost).await?.is_none());
        world.wait_for("the node to go", is_gone).await?;
        ensure(begun.elapsed() >= Duration::from_secs(3), || "it went before its grace was over".to_owned())?;
    }
    world.wait_for_running(1).await?;
    let kept = world.only_machine()?.name_any();
    let nodes = world.nodes().current();
    ensure(nodes.get(&kept).is_some_and(|node| !node.finalizers().is_empty()), || format!("{nodes:?}"))?;
    let vms = world.vms().await?;
    ensure(vms.iter().any(|vm| vm.name == lost && vm.state == VmState::Running), || format!("{vms:?}"))?;
    world.end_unjudged().await
}

/// Two pools of two classes, each with a secret of its own.
async fn install(world: &World) -> TestResult {
    for class in ["small", "other"] {
        let user_data = "token=<<BOOTSTRAP_TOKEN>> name=<<MACHINE_NAME>>";
        world
            .apply(&json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": class}, "stringData": {"userData": user_data},
            }))
            .await?;
        world.apply(&world.class(class).secret(class)).await?;
        world.apply(&world.pool(class, 2).class(class)).await?;
    }
    world.wait_for_running(4).await?;
    Ok(())
}

async fn all(secrets: &Api<Secret>) -> TestResult<Vec<Secret>> {
    let ours = |secret: &Secret| matches!(secret.name_any().as_str(), "small" | "other");
    Ok(secrets.list(&ListParams::default()).await?.items.into_iter().filter(ours).collect())
}

/// The bootstrap tokens of this world's machines that are left, by what they say of themselves.
async fn tokens(world: &World) -> TestResult<Vec<String>> {
    let api: Api<Secret> = Api::namespaced(world.target_client(), "kube-system");
    let list = api.list(&ListParams::default().fields("type=bootstrap.kubernetes.io/token")).await?;
    let description = |secret: Secret| {
        let data = secret.data.unwrap_or_default();
        data.get("description").map(|text| String::from_utf8_lossy(&text.0).into_owned()).unwrap_or_default()
    };
    Ok(list.items.into_iter().map(description).filter(|text| text.contains(world.namespace())).collect())
}
