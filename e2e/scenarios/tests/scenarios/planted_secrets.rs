//! What is secret stands where users have put it, and nowhere else.

use std::fs;

use base64::{Engine, prelude::BASE64_STANDARD};
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{Collector, Environment, TestResult, ensure, skip_on_external_cluster};
use serde_json::{Value, json};

use super::why::succeeds;

const USER_DATA: &str = "hunter2-of-the-user-data";
const CREDENTIALS: &str = "hunter2-of-the-credentials";
/// Libraries as well, which are quiet by default.
const FINEST: &str =
    "--log-level=trace,h2=trace,hyper=trace,hyper_util=trace,tower=trace,rustls=trace,tonic=trace,kube_client=trace";
const PROVIDER_SPEC: &str = "hunter2-of-the-provider-spec";

/// What no text may have: each secret begins so, and its base64 form.
fn traces_of_secrets() -> [String; 2] {
    ["hunter2".to_owned(), BASE64_STANDARD.encode("hunter2-o")]
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
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, refuse).for_seconds(5.0)).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the refusal to be reported", async || {
        Ok(env
            .kubectl("get machines -o json")
            .await?
            .contains("the user data (removed) and the token (removed) are refused"))
    })
    .await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?;
    let name = machine.metadata.name.clone().unwrap_or_default();
    let mut texts = printed(&env, &name).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    texts.extend(stored(&env).await?);
    texts.push(("the spans".to_owned(), format!("{:?}", collector.spans())));
    ensure(!collector.spans().is_empty(), || "there are no spans".to_owned())?;
    for (what, text) in texts {
        for secret in traces_of_secrets() {
            let line = text.lines().find(|line| line.contains(&secret));
            ensure(line.is_none(), || format!("{what}: {}", line.unwrap_or_default()))?;
        }
    }
    env.end().await
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

/// The objects of the namespace but Secrets, and the logs of all processes of the product.
async fn stored(env: &Environment) -> TestResult<Vec<(String, String)>> {
    let mut texts = vec![];
    let kinds = "machinedeployments,machinesets,machines,machineclasses,events,leases,configmaps";
    let all: Value = serde_json::from_str(&env.kubectl(&format!("get {kinds} -o json")).await?)?;
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
