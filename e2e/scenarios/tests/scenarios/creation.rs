//! A MachineDeployment becomes nodes.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{
    Environment, Table, TestResult, ensure,
    tokens::{end_at, only_token, tokens},
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn three_machines_run_and_kubectl_shows_it() -> TestResult {
    let env = Environment::start("creation").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let machines = env.wait_for_running(3).await?;
    env.wait_for("the pool to be available", async || {
        let pools = env.table("mcd").await?;
        Ok(pools.column("AVAILABLE")? == ["3"] && pools.column("READY")? == ["3"])
    })
    .await?;
    let printed = env.kubectl("get mcd,mcs,mc,mcc").await?;
    let tables = printed.split("\n\n").map(Table::parse).collect::<TestResult<Vec<_>>>()?;
    let [pools, sets, listed, classes] = tables.as_slice() else { panic!("four tables, not {printed}") };
    for (column, value) in [("READY", "3"), ("DESIRED", "3"), ("UP-TO-DATE", "3"), ("AVAILABLE", "3")] {
        assert_eq!(pools.column(column)?, [value], "{column} of {printed}");
    }
    for (column, value) in [("DESIRED", "3"), ("CURRENT", "3"), ("READY", "3")] {
        assert_eq!(sets.column(column)?, [value], "{column} of {printed}");
    }
    assert_eq!(listed.column("STATUS")?, ["Running"; 3], "{printed}");
    let nodes: Vec<String> = env.nodes().current().into_keys().collect();
    assert_eq!(listed.column("NODE")?, nodes, "{printed}");
    assert_eq!(machines.len(), 3);
    assert!(classes.column("NAME")?[0].ends_with("/small"), "{printed}");
    for table in &tables {
        ensure(table.column("AGE")?.iter().all(|age| !age.is_empty()), || format!("an age is missing: {printed}"))?;
    }
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_what_its_template_says_and_follows_it() -> TestResult {
    let env = Environment::start("template").await?;
    env.apply(&env.class("small").provider("taints", json!([{"key": "boot", "effect": "NoSchedule"}]))).await?;
    let pool = |colour: &str| {
        let template = json!({
            "metadata": {"labels": {"colour": colour}, "annotations": {"note": "a"}},
            "spec": {"taints": [{"key": "own", "value": colour, "effect": "PreferNoSchedule"}]},
        });
        env.pool("a", 2).machine("nodeTemplate", template)
    };
    env.apply(&pool("red")).await?;
    let machines = env.wait_for_running(2).await?;
    env.wait_for("red nodes", async || Ok(env.nodes().current().values().all(|node| is_of(node, "red")))).await?;
    // An in-place change replaces no machine.
    env.apply(&pool("blue")).await?;
    env.wait_for("blue nodes", async || Ok(env.nodes().current().values().all(|node| is_of(node, "blue")))).await?;
    assert!(machines.keys().eq(env.wait_for_running(2).await?.keys()));
    assert_eq!(env.cloud().stats().await?.created, 2);
    env.end().await
}

/// Label, annotation and taint of the template, in addition to those that the kubelet was started with.
fn is_of(node: &Node, colour: &str) -> bool {
    let (labels, annotations) = (node.metadata.labels.as_ref(), node.metadata.annotations.as_ref());
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let has_taint =
        |key: &str, value: Option<&str>| taints.iter().any(|taint| taint.key == key && taint.value.as_deref() == value);
    labels.and_then(|all| all.get("colour")).is_some_and(|label| label == colour)
        && annotations.and_then(|all| all.get("note")).is_some_and(|note| note == "a")
        && has_taint("own", Some(colour))
        && has_taint("boot", None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_a_long_name_lives_and_dies_like_any_other() -> TestResult {
    let env = Environment::start("long").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("very-".repeat(9).trim_end_matches('-'), 2)).await?;
    let machines = env.wait_for_running(2).await?;
    assert!(machines.values().all(|machine| machine.name_any().len() <= 63));
    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_soon_is_renewed_before_its_vm_is_asked_for_again() -> TestResult {
    let env = Environment::start("renewed").await?;
    let refused = Effect::Error { code: Code::Unavailable, message: None, applied: false };
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, refused)).await?;
    apply_class_with_token(&env).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the token", async || Ok(tokens(&env).await?.len() == 1)).await?;
    let before = only_token(&env).await?;
    // The token is older than it looks. A VM that is asked for now has time to join all the same.
    let ends = Timestamp::now() + SignedDuration::from_mins(5);
    end_at(&env, ends).await?;
    env.wait_for("the token to last longer", async || {
        Ok(only_token(&env).await?.expires > Timestamp::now() + SignedDuration::from_mins(15))
    })
    .await?;
    assert_eq!(only_token(&env).await?.secret, before.secret, "a VM may know it already");
    env.cloud().clear_faults().await?;
    env.wait_for_running(1).await?;
    env.wait_for("the token to go", async || Ok(tokens(&env).await?.is_empty())).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_goes_before_it_joins_leaves_no_bootstrap_token() -> TestResult {
    let env = Environment::start("unjoined").await?;
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::NeverJoins)).await?;
    apply_class_with_token(&env).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the VM and its token", async || Ok(tokens(&env).await?.len() == 1 && env.vms().await?.len() == 1))
        .await?;
    env.kubectl("delete machinedeployments --all --wait=false").await?;
    env.wait_for_nothing().await?;
    ensure(tokens(&env).await?.is_empty(), || "the token is valid for twenty minutes".to_owned())?;
    env.end().await
}

async fn apply_class_with_token(env: &Environment) -> TestResult {
    env.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data"},
        "stringData": {"userData": "join with <<BOOTSTRAP_TOKEN>>"},
    }))
    .await?;
    env.apply(&env.class("small").secret("user-data")).await
}
