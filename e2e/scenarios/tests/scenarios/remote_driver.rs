//! The driver in a process of its own.

use std::time::Duration;

use nodewright_e2e_lab::{cloud::DriverProgram, devcluster::ManagerProcess};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, has_mcm_crds, skip_on_external_cluster};
use serde_json::{Value, json};

/// How many VMs have been created, and later deleted, when the driver is killed.
const CREATIONS: [u64; 2] = [4, 13];
const DELETIONS: [u64; 2] = [2, 11];

async fn start_manager(env: &Environment, program: &DriverProgram, webhooks: bool) -> TestResult<ManagerProcess> {
    let driver = format!("--driver={}", program.path().display());
    Ok(ManagerProcess::start(env.manager_options("manager", webhooks, &[driver])).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_makes_neither_too_many_vms_nor_too_few() -> TestResult {
    let env = Environment::builder("driver")
        .cloud_flags(["--create-latency-ms=150", "--boot-seconds=0.5", "--delete-seconds=0.5"])
        .without_manager()
        .start()
        .await?;
    let program = DriverProgram::new(env.directory(), "driver", env.cloud().url(), &[])?;
    let mut manager = start_manager(&env, &program, false).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;

    let mut missed = false;
    env.scale("a", 20).await?;
    for created in CREATIONS {
        missed |=
            kill_when(&env, &program, &manager, async || Ok(env.cloud().stats().await?.created >= 3 + created)).await?;
    }
    env.wait_for_running(20).await?;
    counts_are(&env, 20, 0).await?;

    env.scale("a", 3).await?;
    for deleted in DELETIONS {
        missed |=
            kill_when(&env, &program, &manager, async || Ok(env.cloud().stats().await?.deleted >= deleted)).await?;
    }
    ensure(missed, || "the manager was ready without a driver each time".to_owned())?;
    env.wait_for_machines("three machines", |machines| machines.len() == 3).await?;
    env.wait_for_running(3).await?;
    env.wait_for("three VMs", async || Ok(env.vms().await?.len() == 3)).await?;
    counts_are(&env, 20, 17).await?;

    manager.check()?;
    env.kubectl("delete mcd,mcs,mc,mcc --all").await?;
    env.wait_for_nothing().await?;
    drop(manager);
    env.end().await
}

/// Kills the driver at a moment, and waits until the manager is connected to another one. Returns whether it was seen without one: a
/// look may come too late for that.
async fn kill_when(
    env: &Environment,
    program: &DriverProgram,
    manager: &ManagerProcess,
    mut is_due: impl AsyncFnMut() -> TestResult<bool>,
) -> TestResult<bool> {
    let moment = async {
        while !is_due().await? {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let connections = connections(env)?;
        ensure(program.kill_9(), || "there is no driver to kill".to_owned())?;
        TestResult::Ok(connections)
    };
    let before = env.in_time("the moment to kill the driver", moment).await??;
    let is_ready = async || TestResult::Ok(manager.answer("/readyz/driver").await?.0 == 200);
    let mut missed = false;
    env.wait_for("a connection to another driver", async || {
        missed |= !is_ready().await?;
        Ok(connections(env)? > before)
    })
    .await?;
    env.wait_for("a manager that has a driver", is_ready).await?;
    Ok(missed)
}

/// How often the manager has connected to a driver.
fn connections(env: &Environment) -> TestResult<usize> {
    Ok(std::fs::read_to_string(env.log("manager"))?.matches("connected to the driver").count())
}

/// This many VMs and machines were created in all, and this many deleted: none was replaced, and none was made twice.
async fn counts_are(env: &Environment, made: usize, gone: usize) -> TestResult {
    let stats = env.cloud().stats().await?;
    let vms = (usize::try_from(stats.created)?, usize::try_from(stats.deleted)?);
    ensure(vms == (made, gone), || format!("{vms:?} VMs were created and deleted, not {:?}", (made, gone)))?;
    let machines = (env.machines().born_since(0)?, env.machines().gone_since(0)?);
    ensure(machines == (made, gone), || format!("{machines:?} machines came and went, not {:?}", (made, gone)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_is_evaluated_by_the_driver_at_once_or_as_soon_as_it_answers() -> TestResult {
    if skip_on_external_cluster("driver-class", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    // A class of machine-controller-manager's has no status that could tell.
    if has_mcm_crds() {
        return Ok(());
    }
    let env = Environment::builder("evaluated").with_webhooks().without_manager().start().await?;
    let program = DriverProgram::new(env.directory(), "driver", env.cloud().url(), &[])?;
    let manager = start_manager(&env, &program, true).await?;
    let refused = env.apply_refused(&env.class("wrong").provider("size", "gigantic")).await?;
    ensure(refused.contains("providerSpec.size: "), || format!("the field is not named in: {refused}"))?;
    env.apply_class("good").await?;

    ensure(program.freeze(), || "there is no driver to freeze".to_owned())?;
    env.apply(&env.class("unevaluated").provider("size", "enormous")).await?;
    let found = async |class: &str| {
        let class: Value = serde_json::from_str(&env.kubectl(&format!("get machineclass {class} -o json")).await?)?;
        let conditions = class["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == "ProviderSpecValid");
        Ok::<_, nodewright_e2e_scenarios::Failure>(found.unwrap_or_default())
    };
    env.wait_for("a class of which nothing is known", async || Ok(found("unevaluated").await?["status"] == "Unknown"))
        .await?;
    ensure(program.thaw(), || "there is no driver to thaw".to_owned())?;
    env.wait_for("the driver's word", async || Ok(found("unevaluated").await?["status"] == "False")).await?;
    let text = found("unevaluated").await?["message"].to_string();
    ensure(text.contains("providerSpec.size"), || format!("the field is not named in: {text}"))?;
    ensure(found("good").await?["status"] == "True", || "the good class is not valid".to_owned())?;
    drop(manager);
    accepted_without_a_driver(&env).await?;
    let manager = start_manager(&env, &program, true).await?;
    env.wait_for("the driver's word", async || Ok(found("unheard").await?["status"] == "False")).await?;
    env.kubectl("delete mcc --all").await?;
    env.wait_for_nothing().await?;
    drop(manager);
    env.end().await
}

/// The webhooks of a manager whose driver has never answered accept a class, and refuse what they can evaluate themselves.
async fn accepted_without_a_driver(env: &Environment) -> TestResult {
    let nowhere = format!("--driver-socket={}", env.directory().join("none.sock").display());
    let manager = ManagerProcess::spawn(env.manager_options("deaf", true, &[nowhere]))?;
    let unheard = env.class("unheard").provider("size", "enormous");
    env.wait_for("webhooks without a driver", async || Ok(env.apply(&unheard).await.is_ok())).await?;
    let template =
        json!({"metadata": {"labels": {"a": "c"}}, "spec": {"class": {"kind": "MachineClass", "name": "unheard"}}});
    let faulty = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "faulty", "namespace": env.namespace()},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let refused = env.apply_refused(&faulty).await?;
    ensure(refused.contains("must match spec.selector"), || format!("the webhook was not asked: {refused}"))?;
    let (status, text) = manager.answer("/readyz").await?;
    ensure(status == 500 && text.contains("driver"), || format!("it is ready: {text}"))
}
