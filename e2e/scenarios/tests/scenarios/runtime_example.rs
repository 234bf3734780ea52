//! The example of the runtime's crate page, on a real API server.

#[allow(dead_code, unreachable_pub)] // its `main`; it is an executable of its own elsewhere
#[path = "../../../../runtime/examples/share.rs"]
mod share;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use nodewright_e2e_lab::control_plane::testing::eventually;
use nodewright_e2e_scenarios::{Cluster, TestResult, environment::turn, skip_on_external_cluster};
use nodewright_runtime::manager::{Manager, Options};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_of_the_crate_page_does_what_it_says() -> TestResult {
    if skip_on_external_cluster("example", "its namespaces are not ours") {
        return Ok(());
    }
    let _turn = turn(true).await?;
    let client = Cluster::shared().await?.client().await?;
    let mut manager = Manager::new(Options::new("share", "1", share::HOME, client.clone()));
    manager.add(share::Share);
    let stop = CancellationToken::new();
    let running = tokio::spawn(manager.run(vec![], stop.clone()));

    let namespaces: Api<Namespace> = Api::all(client.clone());
    for (name, labels) in [("reader", json!({"share": "true"})), ("other", json!({}))] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
    }
    let maps = |namespace: &str| Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let source = |value: &str| serde_json::from_value(json!({"metadata": {"name": "shared"}, "data": {"key": value}}));
    maps("default").create(&PostParams::default(), &source("one")?).await?;
    until_copied(&maps("reader"), Some("one")).await?;
    assert!(maps("other").get_opt("shared").await?.is_none(), "it has no label");

    maps("default").replace("shared", &PostParams::default(), &source("two")?).await?;
    until_copied(&maps("reader"), Some("two")).await?;
    // Other clients' changes to a copy are reverted.
    maps("reader").delete("shared", &DeleteParams::default()).await?;
    until_copied(&maps("reader"), Some("two")).await?;

    label(&namespaces, "other", json!("true")).await?;
    until_copied(&maps("other"), Some("two")).await?;
    label(&namespaces, "reader", Value::Null).await?;
    until_copied(&maps("reader"), None).await?;
    stop.cancel();
    running.await??;
    maps("default").delete("shared", &DeleteParams::default()).await?;
    for name in ["reader", "other"] {
        namespaces.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn label(namespaces: &Api<Namespace>, name: &str, share: Value) -> TestResult {
    let patch = json!({"metadata": {"labels": {"share": share}}});
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn until_copied(maps: &Api<ConfigMap>, value: Option<&str>) -> TestResult {
    eventually(&format!("a copy that says {value:?}"), async || {
        let copy = maps.get_opt("shared").await?;
        Ok(copy.and_then(|copy| copy.data?.remove("key")).as_deref() == value)
    })
    .await
}
