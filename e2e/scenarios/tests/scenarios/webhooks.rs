//! Admission: defaults are filled in, and invalid objects are rejected.

use nodewright_api::MachineDeployment;
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, skip_on_external_cluster};
use serde_json::{Value, json};

const WHY: &str = "the API server may not reach webhooks on this machine";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_is_filled_in_and_what_is_wrong_is_refused() -> TestResult {
    if skip_on_external_cluster("webhooks", WHY) {
        return Ok(());
    }
    let env = Environment::builder("admission").with_webhooks().start().await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 1).spec("strategy", Value::Null);
    env.apply(&pool).await?;
    let stored = env.kubectl(&format!("get mcd {} -o json", pool.name())).await?;
    let stored: Value = serde_json::from_str(&stored)?;
    let expected = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    assert_eq!(stored["spec"]["strategy"], expected);
    serde_json::from_value::<MachineDeployment>(stored)?;
    env.wait_for_running(1).await?;
    for (annotation, value) in
        [("health-timeouts", "Ready"), ("remediation-max-in-flight", "-1"), ("deletion-order", "x")]
    {
        let arguments = format!("annotate mcd {} nodewright.dev/{annotation}={value}", pool.name());
        let field = format!("metadata.annotations[nodewright.dev/{annotation}]: ");
        refused(&env.kubectl_refused(&arguments).await?, "MachineDeployment", &field)?;
    }

    let wrong = env.pool("b", 1).spec("selector", json!({"matchLabels": {"pool": "another"}}));
    refused(&env.apply_refused(&wrong).await?, "MachineDeployment", "spec.template.metadata.labels: Invalid value")?;
    let wrong = env.pool("b", 1).machine("class", json!({"kind": "MachineClass", "name": ""}));
    refused(&env.apply_refused(&wrong).await?, "MachineDeployment", "spec.template.spec.class.name: Required value")?;
    let wrong = env.class("wrong").provider("size", "gigantic");
    refused(&env.apply_refused(&wrong).await?, "MachineClass", "providerSpec.size: ")?;
    let wrong = env.class("wrong").provider("taints", json!([{"key": "a", "effect": "Never"}]));
    refused(&env.apply_refused(&wrong).await?, "MachineClass", "providerSpec.taints[0]: ")?;
    env.end().await
}

/// The page promises what kubectl prints.
#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_the_page_is_refused_as_it_says() -> TestResult {
    if skip_on_external_cluster("webhooks", WHY) {
        return Ok(());
    }
    let page = include_str!("../../../../docs/tasks/try-it.md");
    let (_, example) = page.split_once("$ kubectl apply -f - <<END\n").unwrap_or_default();
    let (manifest, rest) = example.split_once("END\n").unwrap_or_default();
    let (promised, _) = rest.split_once("\n```").unwrap_or_default();
    let env = Environment::builder("mistake").with_webhooks().start().await?;
    let manifest: Value = serde_saphyr::from_str(manifest)?;
    let said = env.apply_refused(&manifest).await?;
    // kubectl ends the second line with a space.
    let is_as_promised = said.lines().map(str::trim_end).eq(promised.lines());
    ensure(is_as_promised, || format!("kubectl prints\n{said}\nand docs/tasks/try-it.md has\n{promised}"))?;
    env.end().await
}

/// kubectl's message has the format of that for an invalid Deployment.
fn refused(said: &str, kind: &str, field: &str) -> TestResult {
    let is_clear = said.contains(kind) && said.contains("is invalid: ") && said.contains(field);
    ensure(is_clear, || format!("{kind} with {field:?} is not named in: {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_managers_own_writes_do_not_need_the_webhook() -> TestResult {
    if skip_on_external_cluster("webhooks", WHY) {
        return Ok(());
    }
    let env = Environment::builder("down").with_webhooks().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let machines = env.wait_for_running(2).await?;
    // The registration stays, and no webhook answers.
    let mut stopped = env.manager().await?;
    stopped.terminate().await?;
    let refused = env.apply_refused(&env.pool("b", 1)).await?;
    ensure(refused.contains("failed calling webhook"), || format!("the webhook is down, and yet: {refused}"))?;
    let mut manager = ManagerProcess::start(env.manager_options("without-webhooks", false, &[])).await?;

    let victim = machines.keys().next().map(String::as_str).unwrap_or_default();
    env.kubectl(&format!("delete machine {victim}")).await?;
    env.wait_for_running(2).await?;
    env.kubectl("delete mcd,mcs,mc,mcc --all").await?;
    env.wait_for_nothing().await?;
    manager.check()?;
    drop(manager);
    // Its metrics are compared at the end.
    stopped.start_again().await?;
    drop(stopped);
    env.end().await
}
