//! Errors: one line or condition reports each of them with a remedy, and all other work continues.

use std::{net::TcpListener, time::Duration};

use kube::{Api, ResourceExt};
use nodewright_api::{Machine, MachineClass, conditions};
use nodewright_e2e_lab::devcluster::{ManagerOptions, ManagerProcess};
use nodewright_e2e_scenarios::{
    Environment, Failure, TestResult, clusters, ensure, has_mcm_crds, history::State, waits,
};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_cannot_start_says_why_in_one_line() -> TestResult {
    let env = Environment::builder("start").without_manager().start().await?;
    let options = || env.manager_options("failing", false, &[]);

    let missing = env.directory().join("no-such-kubeconfig");
    let wrong = ManagerOptions { target_kubeconfig: Some(missing), ..options() };
    fails_with(wrong, &["--target-kubeconfig", "no-such-kubeconfig"]).await?;

    let garbled = env.directory().join("garbled");
    std::fs::write(&garbled, "clusters: [{name: a")?;
    let wrong = ManagerOptions { control_kubeconfig: garbled, ..options() };
    fails_with(wrong, &["--control-kubeconfig", "garbled"]).await?;

    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    fails_with(options().with_flags([format!("--port={port}")]), &["--port", &port.to_string(), "in use"]).await?;

    let serving = env.manager_options("failing", true, &[]).with_flags([format!("--webhook-port={port}")]);
    fails_with(serving, &["--webhook-port", &port.to_string(), "in use"]).await?;

    fails_with(options().with_flags(["--controllers=machine,nodes"]), &["--controllers", "\"nodes\""]).await?;
    if env.cluster().control_plane().is_some() {
        let bare = clusters::bare().await?;
        let wrong = ManagerOptions { control_kubeconfig: bare.kubeconfig().to_owned(), ..options() };
        fails_with(wrong, &["MachineDeployment", "kubectl apply --server-side -k config/crd"]).await?;
    }
    env.end().await
}

/// The manager cannot distinguish an unreachable API server from a wrong address: it waits, logs that it waits, and is alive
/// and not ready meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_waits_for_an_api_server_and_says_so() -> TestResult {
    let env = Environment::builder("waiting").without_manager().start().await?;
    let silent = env.directory().join("silent");
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    std::fs::write(&silent, kubeconfig_of(&format!("http://{nobody}")))?;
    let options = ManagerOptions { control_kubeconfig: silent, ..env.manager_options("manager", false, &[]) };
    let mut manager = ManagerProcess::spawn(options)?;
    let said = || std::fs::read_to_string(env.log("manager")).unwrap_or_default();
    let hint = "failed to reach the API server of the control cluster";
    env.wait_for("a line about the wait", async || Ok(said().contains(hint))).await?;
    ensure(said().contains("check the server address in its kubeconfig"), said)?;
    assert_eq!(manager.answer("/healthz").await?.0, 200);
    let (code, why) = manager.answer("/readyz").await?;
    ensure(code != 200 && why.contains(hint), || format!("/readyz: {code} {why}"))?;
    manager.check()?;
    let status = manager.terminate().await?;
    ensure(status.is_some_and(|status| status.success()), || format!("asked to end, it ended with {status:?}"))?;
    env.end().await
}

fn kubeconfig_of(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: \"{server}\"}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
    )
}

/// The process exits with an error, and its last line is the only one about it.
async fn fails_with(options: ManagerOptions, words: &[&str]) -> TestResult {
    let log = options.log.clone().ok_or_else(|| Failure::new("no log"))?;
    let _ = std::fs::remove_file(&log);
    let status = ManagerProcess::spawn(options)?.wait_for_end(SOON).await?;
    let said = std::fs::read_to_string(&log)?;
    let (errors, others): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.starts_with("error: "));
    ensure(!status.success() && status.code().is_some(), || format!("it ended with {status}: {said}"))?;
    ensure(errors.len() == 1 && said.lines().last() == errors.last().copied(), || format!("not one line: {said}"))?;
    ensure(others.iter().all(|line| line.contains(" INFO ")), || format!("more than one line: {said}"))?;
    for word in words {
        ensure(errors[0].contains(word), || format!("{word:?} is missing in: {}", errors[0]))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_class_is_reported_and_heals_and_other_machines_go_on() -> TestResult {
    let env = Environment::start("class").await?;
    env.apply_class("small").await?;
    let wrong = env.pool("wrong", 1).class("nowhere");
    env.apply(&wrong).await?;
    until_refused(&env, wrong.name(), "ClassNotFound").await?;
    env.apply(&env.pool("right", 2)).await?;
    env.wait_for_machines("the other machines to run", |machines| {
        machines.values().filter(|machine| waits::is_running(machine)).count() == 2
    })
    .await?;
    // A class of another provider is unusable as well, until it is corrected.
    env.apply(&env.class("nowhere").of_provider("elsewhere")).await?;
    until_refused(&env, wrong.name(), "ProviderMismatch").await?;
    env.apply_class("nowhere").await?;
    env.wait_for_running(3).await?;
    // Also the remedy that the message proposes: another class. The machine of the class that never existed must be deleted
    // without help.
    let typo = env.pool("typo", 1).class("smal");
    env.apply(&typo).await?;
    until_refused(&env, typo.name(), "ClassNotFound").await?;
    env.apply(&typo.class("small")).await?;
    env.wait_for_running(4).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_provider_spec_is_reported_and_heals_and_other_machines_go_on() -> TestResult {
    let env = Environment::start("spec").await?;
    env.apply_class("small").await?;
    env.apply(&env.class("wrong").provider("size", "gigantic")).await?;
    let wrong = env.pool("wrong", 1).class("wrong");
    env.apply(&wrong).await?;
    env.wait_for_machines("the machine to say what is wrong with its class", |machines| {
        let machine = machines.values().find(|machine| machine.name_any().starts_with(wrong.name()));
        machine.is_some_and(|machine| tells(machine, "size"))
    })
    .await?;
    if !has_mcm_crds() {
        let classes: Api<MachineClass> = Api::namespaced(env.client(), env.namespace());
        env.wait_for("the class to say what is wrong", async || {
            let class = classes.get("wrong").await?;
            let condition = class.condition(conditions::machine_class::PROVIDER_SPEC_VALID);
            Ok(condition.is_some_and(|it| it.message.contains("providerSpec.size")))
        })
        .await?;
    }
    env.apply(&env.pool("right", 2)).await?;
    env.wait_for_machines("the other machines to run", |machines| {
        machines.values().filter(|machine| waits::is_running(machine)).count() == 2
    })
    .await?;
    env.apply(&env.class("wrong").provider("size", "large")).await?;
    env.wait_for_running(3).await?;
    env.end().await
}

/// Waits until the machine of a pool reports why its class is unusable.
async fn until_refused(env: &Environment, pool: &str, reason: &str) -> TestResult {
    let reported = Some(("False".to_owned(), reason.to_owned()));
    let what = format!("the machine to say {reason} of its class");
    let is_reported =
        |machines: &State<Machine>| condition(machines, pool, conditions::machine::CONFIGURATION_VALID) == reported;
    env.wait_for_machines(&what, is_reported).await?;
    Ok(())
}

/// Status and reason of a condition of the machine of a pool.
fn condition(machines: &State<Machine>, pool: &str, kind: &str) -> Option<(String, String)> {
    let machine = machines.values().find(|machine| machine.name_any().starts_with(pool))?;
    let condition = machine.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}

/// Whether a machine without a VM names a field in its last operation or in a condition.
fn tells(machine: &Machine, field: &str) -> bool {
    let Some(status) = &machine.status else { return false };
    let mut messages = status.conditions.iter().filter_map(|condition| condition.message.as_deref());
    status.last_operation.description.contains(field) || messages.any(|message| message.contains(field))
}

/// A class that names another program's Secret reads nothing from it, and adds no finalizer to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_class_cannot_name_the_secrets_of_other_programs() -> TestResult {
    let env = Environment::start("reach").await?;
    env.apply_class("small").await?;
    let create = "create secret generic foreign --from-literal=userData=hunter2";
    env.kubectl(&format!("{create} --type=helm.sh/release.v1")).await?;
    env.kubectl(r#"patch machineclass small --type=merge -p={"secretRef":{"name":"foreign"}}"#).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the machine to say so", async || {
        Ok(env.kubectl("get machines -o json").await?.contains("or is not of type Opaque: create it"))
    })
    .await?;
    let finalizers = "get secret foreign -o jsonpath={.metadata.finalizers}";
    let found = env.kubectl(finalizers).await?;
    ensure(found.is_empty(), || format!("another program's secret has {found}"))?;
    // A replacement of the right type is noticed.
    env.kubectl("delete secret foreign").await?;
    env.kubectl(create).await?;
    env.wait_for_running(1).await?;
    let found = env.kubectl(finalizers).await?;
    ensure(found.contains("machine-controller"), || format!("the secret of the class has only {found}"))?;
    env.end().await
}
