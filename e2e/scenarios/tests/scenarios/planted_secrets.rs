//! What is secret stands where users have put it, and nowhere else.

use std::fs;

use base64::{Engine, prelude::BASE64_STANDARD};
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{
    Collector, Environment, Failure, NodeAgents, TestResult, ensure,
    objects::ENVIRONMENT_LABEL,
    skip_on_external_cluster,
    worker_pool::{message, retarget, target, wait_for_all},
};
use serde_json::{Value, json};

use super::{
    machine_configs::manager,
    pool_plan::run as plan_pool,
    pool_rollout::{ROLE, WORKER},
    why::succeeds,
};

const USER_DATA: &str = "hunter2-of-the-user-data";
const CREDENTIALS: &str = "hunter2-of-the-credentials";
/// Libraries as well, which are quiet by default.
const FINEST: &str =
    "--log-level=trace,h2=trace,hyper=trace,hyper_util=trace,tower=trace,rustls=trace,tonic=trace,kube_client=trace";
const PROVIDER_SPEC: &str = "hunter2-of-the-provider-spec";
/// A text that begins as all secrets do, compressed by gzip, in base64.
const COMPRESSED: &str = "H4sIAAAAAAACA8sozStJLTLSzU/TLclI1U3Ozy0oSi0uTk3RTcvMSVXIoKU0AG4EyV98AAAA";

/// What no text may have: each secret begins so, and its base64 form.
fn traces_of_secrets() -> [String; 3] {
    ["hunter2".to_owned(), BASE64_STANDARD.encode("hunter2-o"), COMPRESSED[..24].to_owned()]
}

/// Checks that no text has a secret. Each text has a name.
fn ensure_clean(texts: &[(String, String)]) -> TestResult {
    let mut leaks = vec![];
    for (what, text) in texts {
        let lines = text.lines().filter(|line| traces_of_secrets().iter().any(|secret| line.contains(secret)));
        leaks.extend(lines.take(3).map(|line| format!("{what}: {line}")));
    }
    ensure(leaks.is_empty(), || leaks.join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_a_class_stand_nowhere_else() -> TestResult {
    if skip_on_external_cluster("planted", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    let collector = Collector::start().await?;
    let env = Environment::builder("planted")
        .with_webhooks()
        .manager_flags([format!("--otlp-endpoint={}", collector.url()).as_str(), FINEST])
        .start()
        .await?;
    let data = json!({"userData": USER_DATA, "token": CREDENTIALS});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "planted"}, "stringData": data});
    env.apply(&secret).await?;
    // A text where there must be a number: no error may quote it.
    let wrong = env.class("small").secret("planted").provider("bootSeconds", PROVIDER_SPEC);
    let refusal = env.apply_refused(&wrong).await?;
    ensure(refusal.contains("bootSeconds") && !refusal.contains("hunter2"), || refusal.clone())?;
    env.apply(&env.class("small").secret("planted")).await?;

    // A provider that quotes what it was given.
    let message = Some(format!("the user data {USER_DATA} and the token {CREDENTIALS} are refused"));
    let refuse = Effect::Error { code: Code::Unavailable, message, applied: false };
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, refuse)).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the refusal to be reported", async || {
        Ok(env
            .kubectl("get machines -o json")
            .await?
            .contains("the user data (removed) and the token (removed) are refused"))
    })
    .await?;
    env.cloud().clear_faults().await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?;
    let name = machine.metadata.name.clone().unwrap_or_default();
    let mut texts = printed(&env, &name).await?;
    panic_in_the_driver(&env).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    texts.extend(stored(&env, "").await?);
    texts.push(("the spans".to_owned(), format!("{:?}", collector.spans())));
    ensure(!collector.spans().is_empty(), || "there are no spans".to_owned())?;
    ensure_clean(&texts)?;
    env.end().await
}

/// A driver that panics when it creates a VM, and whose message quotes the user data. The manager relays what the driver prints.
async fn panic_in_the_driver(env: &Environment) -> TestResult {
    env.apply(&env.class("panics").secret("planted").provider("panics", true)).await?;
    env.apply(&env.pool("p", 1).class("panics")).await?;
    let log = env.log("manager");
    let panicked = async || Ok(fs::read_to_string(&log)?.contains("panicked at e2e/drivers/simulated/src/lib.rs"));
    env.wait_for("a panic", panicked).await?;
    env.scale("p", 0).await
}

/// What the manager and the plugin print while the machine runs.
async fn printed(env: &Environment, machine: &str) -> TestResult<Vec<(String, String)>> {
    let mut texts = vec![("the metrics".to_owned(), env.manager().await?.metrics().await?)];
    let archive = tempfile::tempdir()?;
    let archive = archive.path().join("report.tar");
    for command in [
        "tree -o json".to_owned(),
        format!("why machine/{machine}"),
        format!("trace {machine} -o json"),
        format!("plan rollout {} -o json", env.pool("a", 1).name()),
        format!("report -f {}", archive.display()),
    ] {
        texts.push((command.clone(), succeeds(env, &command).await?));
    }
    texts.push(("the report".to_owned(), String::from_utf8_lossy(&fs::read(&archive)?).into_owned()));
    Ok(texts)
}

/// The objects of the namespace but Secrets, those of other kinds of the cluster, and the logs of all processes of the product.
async fn stored(env: &Environment, others: &str) -> TestResult<Vec<(String, String)>> {
    let mut texts = vec![];
    let kinds = format!("machinedeployments,machinesets,machines,machineclasses,events,leases,configmaps{others}");
    let all: Value = serde_json::from_str(&env.kubectl(&format!("get {kinds} -o json")).await?)?;
    let events = env.kubectl("get events --namespace=default -o json").await?;
    texts.push(("the events of objects without a namespace".to_owned(), events));
    texts.push(("the objects".to_owned(), serde_json::to_string_pretty(&all)?));
    let log = env.log("manager");
    let folder = log.parent().unwrap_or(&log);
    for file in fs::read_dir(folder)? {
        let file = file?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The cloud is the provider, which is given the secrets.
        if file.extension().is_some_and(|of| of == "log") && !name.starts_with("cloud") {
            texts.push((name, String::from_utf8_lossy(&fs::read(&file)?).into_owned()));
        }
    }
    let is_finest = |(what, text): &(String, String)| what == "manager.log" && text.contains(" TRACE ");
    ensure(texts.iter().any(is_finest), || "the manager's log lacks the finest level".to_owned())?;
    Ok(texts)
}

/// A MachineConfig of the pool.
fn machine_config(name: &str, config: &Value) -> Value {
    let mut object = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {ROLE: "worker"}}, "spec": {"config": config}});
    object["spec"]["config"]["ignition"]["version"] = "3.5.0".into();
    object
}

/// With a secret wherever a node may get one.
fn with_secrets(round: u32) -> Value {
    let secret = |of: &str| format!("hunter2-of-{of}-{round}");
    let base64 = BASE64_STANDARD.encode(secret("base64"));
    let unit = format!("[Service]\nEnvironment=TOKEN={}\n", secret("unit"));
    let file = |path: &str, source: String| json!({"path": path, "contents": {"source": source}});
    let mut compressed = file("/etc/compressed", format!("data:;base64,{COMPRESSED}"));
    compressed["contents"]["compression"] = "gzip".into();
    machine_config(
        "00-worker",
        &json!({
            "storage": {"files": [
                file("/etc/plain", format!("data:,{}", secret("plain"))),
                file("/etc/base64", format!("data:text/plain;charset=utf-8;base64,{base64}")),
                compressed,
            ]},
            "systemd": {"units": [{"name": "a.service", "contents": unit, "dropins": [{"name": "b.conf", "contents": unit}]}]},
            "passwd": {"users": [{"name": "core", "passwordHash": secret("password"),
                "sshAuthorizedKeys": [format!("ssh-ed25519 {}", secret("key"))]}]},
        }),
    )
}

/// Each is refused, with a secret in or beside what is wrong.
fn invalid() -> Vec<Value> {
    let secret = "hunter2-of-an-invalid-one";
    let files = |contents: Value| json!({"storage": {"files": [{"path": "/etc/a", "contents": contents}]}});
    let users = |user: Value| json!({"passwd": {"users": [user]}});
    let units = |text: &str| json!({"systemd": {"units": [{"name": "a.service", "contents": text}]}});
    [
        files(json!({"source": format!("data:;base64,%{secret}")})),
        files(json!({"source": format!("data:{secret}")})),
        files(json!({"source": secret})),
        files(json!({"source": format!("https://user:{secret}@[")})),
        files(json!(secret)),
        files(json!({"inline": secret, "source": 7})),
        files(json!({"source": "data:,a", "verification": {"hash": secret}})),
        units(&format!("[Service\nEnvironment={secret}")),
        units(&format!("[Service]\n{secret}\n")),
        users(json!({"name": "core", "passwordHash": [secret]})),
        users(json!({"name": "core", "sshAuthorizedKeys": [secret, secret]})),
        users(json!({"name": "core", "sshAuthorizedKeys": secret})),
        users(json!(secret)),
    ]
    .into_iter()
    .enumerate()
    .map(|(at, config)| machine_config(&format!("50-invalid-{at}"), &config))
    .collect()
}

/// A node that runs the first target of the pool.
async fn start_pool(env: &Environment) -> TestResult<NodeAgents> {
    env.apply(&env.class("small").provider("labels", json!({ENVIRONMENT_LABEL: env.namespace(), WORKER: ""}))).await?;
    env.apply(&env.pool("a", 1)).await?;
    let spec = json!({"nodeSelector": {"matchLabels": {WORKER: ""}}, "machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
    env.apply(&json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": "worker"}, "spec": spec}))
        .await?;
    env.apply(&with_secrets(1)).await?;
    env.wait_for_running(1).await?;
    env.wait_for("the first target", async || Ok(!target(env).await?.is_empty())).await?;
    let agents = NodeAgents::start(env, &target(env).await?).await?;
    wait_for_all(env, 1).await?;
    Ok(agents)
}

/// What the pool says of all invalid MachineConfigs at once.
async fn refused(env: &Environment) -> TestResult {
    let objects = invalid();
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects})).await?;
    for object in &objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("the refusal of {name}");
        let said = env.wait_for(&what, async || {
            Ok(message(env, "RenderDegraded").await?.contains(&format!("MachineConfig {name}: spec.config.")))
        });
        if let Err(failure) = said.await {
            return Err(failure.and(&message(env, "RenderDegraded").await?));
        }
        env.kubectl(&format!("delete machineconfig {name}")).await?;
    }
    Ok(())
}

/// What managers and plugin print about the pool.
async fn printed_of_pool(env: &Environment, manager: &ManagerProcess) -> TestResult<Vec<(String, String)>> {
    let mut texts = vec![("the metrics".to_owned(), manager.metrics().await?)];
    let folder = tempfile::tempdir()?;
    let (archive, change) = (folder.path().join("report.tar"), folder.path().join("change.json"));
    fs::write(&change, with_secrets(3).to_string())?;
    let node = env.nodes().current().into_keys().next().ok_or_else(|| Failure::new("no node"))?;
    for command in [
        "tree -o json".to_owned(),
        "why machineconfigpool/worker -o json".to_owned(),
        format!("why node/{node} -o json"),
        format!("plan {} -o json", change.display()),
        "plan pool worker -o json".to_owned(),
        format!("report -f {}", archive.display()),
    ] {
        texts.push((command.clone(), succeeds(env, &command).await?));
    }
    texts.push(("the report".to_owned(), String::from_utf8_lossy(&fs::read(&archive)?).into_owned()));
    let file = change.to_str().unwrap_or_default();
    for output in [["-f", file, "-o", "json"].as_slice(), &["-f", file]] {
        let planned = plan_pool(env.cluster().kubeconfig(), output).await?.map_err(Failure::new)?;
        texts.push((format!("nodewright plan pool {output:?}"), planned));
    }
    Ok(texts)
}

/// They stand in MachineConfigs, also in those that are rendered, and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_machine_configs_stand_nowhere_else() -> TestResult {
    if skip_on_external_cluster("planted", "the kinds are cluster-scoped") {
        return Ok(());
    }
    let collector = Collector::start().await?;
    let env = Environment::builder("configs").for_node_configuration().without_manager().start().await?;
    let mut manager = manager(&env, "manager", &[&format!("--otlp-endpoint={}", collector.url()), FINEST]).await?;
    let agents = start_pool(&env).await?;
    let second = retarget(&env, &with_secrets(2)).await?;
    wait_for_all(&env, 1).await?;
    let rendered = env.kubectl(&format!("get machineconfig {second} -o json")).await?;
    ensure(rendered.contains("hunter2-of-plain-2"), || format!("it is not planted: {rendered}"))?;
    let mut texts = printed_of_pool(&env, &manager).await?;
    refused(&env).await?;
    texts.extend(stored(&env, ",nodes,machineconfigpools,kubeletconfigs,controllerconfigs").await?);
    texts.push(("the spans".to_owned(), format!("{:?}", collector.spans())));
    ensure(!collector.spans().is_empty(), || "there are no spans".to_owned())?;
    ensure_clean(&texts)?;
    manager.check()?;
    drop((manager, agents));
    env.end_unevaluated().await
}
