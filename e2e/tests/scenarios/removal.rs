//! All is deleted, and nothing stays.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_e2e::harness::{TestResult, World};
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
