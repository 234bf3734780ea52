//! Everything is deleted, and nothing stays.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::API_VERSION;
use nodewright_e2e_cloud::VmState;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, tokens::tokens};
use serde_json::json;

const KINDS: &str = "machinedeployments,machinesets,machines,machineclasses";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_all_objects_are_deleted() -> TestResult {
    let env = Environment::start("removal").await?;
    let secrets: Api<Secret> = Api::namespaced(env.client(), env.namespace());

    install(&env).await?;
    assert!(all(&secrets).await?.iter().all(|secret| !secret.finalizers().is_empty()), "secrets in use are held");
    // kubectl waits until all objects are gone.
    env.in_time("the end of all", env.kubectl(&format!("delete {KINDS},secrets --all"))).await??;
    env.wait_for_nothing().await?;
    assert!(all(&secrets).await?.is_empty());
    assert_eq!(tokens(&env).await?, Vec::<String>::new());

    install(&env).await?;
    env.in_time("the end of all", env.kubectl(&format!("delete {KINDS} --all"))).await??;
    env.wait_for_nothing().await?;
    env.wait_for("secrets without finalizers", async || {
        let secrets = all(&secrets).await?;
        Ok(secrets.len() == 2 && secrets.iter().all(|secret| secret.finalizers().is_empty()))
    })
    .await?;
    env.end().await
}

/// A Machine that a user removed together with its finalizer leaves VM and Node behind: the Node can still be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_machine_was_removed_by_force_can_be_deleted() -> TestResult {
    let env = Environment::builder("widow").manager_flags(["--orphaned-node-grace=3s"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    // Without a set, which would create it again.
    let lost = format!("{}-lost", env.namespace());
    let class = json!({"kind": "MachineClass", "name": "small"});
    let machine =
        json!({"apiVersion": API_VERSION, "kind": "Machine", "metadata": {"name": lost}, "spec": {"class": class}});
    env.apply(&machine).await?;
    env.wait_for_running(2).await?;
    {
        let mut manager = env.manager().await?;
        manager.terminate().await?;
        env.release(&lost).await?;
        env.kubectl(&format!("delete machine {lost}")).await?;
        env.kubectl(&format!("delete node {lost} --wait=false")).await?;
        let begun = Instant::now();
        manager.start_again().await?;
        let nodes: Api<Node> = Api::all(env.target_client());
        let is_gone = async || Ok(nodes.get_opt(&lost).await?.is_none());
        env.wait_for("the node to go", is_gone).await?;
        ensure(begun.elapsed() >= Duration::from_secs(3), || "it went before its grace was over".to_owned())?;
    }
    env.wait_for_running(1).await?;
    let kept = env.only_machine()?.name_any();
    let nodes = env.nodes().current();
    ensure(nodes.get(&kept).is_some_and(|node| !node.finalizers().is_empty()), || format!("{nodes:?}"))?;
    // One that somebody took for a node without a machine.
    let (key, since) = (nodewright_api::annotations::NOT_MANAGED, env.nodes().mark());
    env.kubectl(&format!("annotate node {kept} {key}=1")).await?;
    let is_marked = |node: Option<&std::sync::Arc<Node>>| node.is_some_and(|node| node.annotations().contains_key(key));
    let came_and_went = async || {
        let mut was_marked = false;
        env.nodes().states(since, |_, state| {
            was_marked |= is_marked(state.get(&kept));
            Ok(())
        })?;
        Ok(was_marked && !is_marked(env.nodes().current().get(&kept)))
    };
    env.wait_for("the mark to go", came_and_went).await?;
    let vms = env.vms().await?;
    ensure(vms.iter().any(|vm| vm.name == lost && vm.state == VmState::Running), || format!("{vms:?}"))?;
    env.end_unevaluated().await
}

/// Two pools with two classes, each with its own Secret.
async fn install(env: &Environment) -> TestResult {
    for class in ["small", "other"] {
        let user_data = "token=<<BOOTSTRAP_TOKEN>> name=<<MACHINE_NAME>>";
        env.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": class}, "stringData": {"userData": user_data},
        }))
        .await?;
        env.apply(&env.class(class).secret(class)).await?;
        env.apply(&env.pool(class, 2).class(class)).await?;
    }
    env.wait_for_running(4).await?;
    Ok(())
}

async fn all(secrets: &Api<Secret>) -> TestResult<Vec<Secret>> {
    let ours = |secret: &Secret| matches!(secret.name_any().as_str(), "small" | "other");
    Ok(secrets.list(&ListParams::default()).await?.items.into_iter().filter(ours).collect())
}
