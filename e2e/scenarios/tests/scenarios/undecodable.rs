//! Objects that no controller can decode, as users and tools leave them behind: all other work continues.

use http::{Method, Request, header};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use nodewright_api::{API_VERSION, Machine, annotations, conditions};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, has_mcm_crds, objects::ENVIRONMENT_LABEL, waits};
use serde_json::{Value, json};

/// The depth that an API server accepts; recursive parsers give up much earlier, or overflow their stack.
const DEPTH: usize = 9_000;
/// A text in the undecodable parts that must not appear in logs, events or objects.
const MARKER: &str = "Confidential-9000";
/// Of the 256 KiB that an object's annotations may have.
const LONG: usize = 200 << 10;

/// `{"a":{"a":…}}`, as text: a value of this depth cannot be built.
fn deep() -> String {
    format!(r#"{}"{MARKER}"{}"#, r#"{"a":"#.repeat(DEPTH), "}".repeat(DEPTH))
}

/// The path of a kind's collection, or of one of its objects.
fn path(env: &Environment, plural: &str, name: &str) -> String {
    let path = format!("/apis/{API_VERSION}/namespaces/{}/{plural}/{name}", env.namespace());
    path.trim_end_matches('/').to_owned()
}

/// Sends an object unchanged, without kubectl and types.
async fn send(env: &Environment, method: Method, path: &str, content: &str, body: String) -> TestResult {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content);
    env.client().request_text(request.body(body.into_bytes())?).await?;
    Ok(())
}

/// Creates an object in which `DEEP` stands for the undecodable part.
async fn create(env: &Environment, plural: &str, object: &Value) -> TestResult {
    let body = object.to_string().replace(r#""DEEP""#, &deep());
    send(env, Method::POST, &path(env, plural, ""), "application/json", body).await
}

/// Waits until this many machines of a pool run, whatever the others do.
pub(super) async fn pool_runs(env: &Environment, pool: &str, count: usize) -> TestResult {
    let prefix = format!("{}-{pool}-", env.namespace());
    let what = format!("{count} machines of pool {pool} to run");
    env.wait_for_machines(&what, |machines| {
        let of_pool = machines.values().filter(|machine| machine.name_any().starts_with(&prefix));
        of_pool.filter(|machine| waits::is_running(machine)).count() == count
    })
    .await?;
    Ok(())
}

/// The confidential text is in neither the log, nor an event, nor the manager's writes.
async fn nothing_is_reported(env: &Environment) -> TestResult {
    let log = std::fs::read_to_string(env.log("manager"))?;
    let reported = log.lines().find(|line| line.contains(MARKER));
    ensure(reported.is_none(), || format!("it is in the log: {reported:?}"))?;
    let events = env.kubectl("get events -o json").await?;
    ensure(!events.contains(MARKER), || format!("it is in an event: {events}"))?;
    let kinds = "machines,machinesets,machinedeployments,machineclasses";
    let statuses = env.kubectl(&format!("get {kinds} -o jsonpath={{.items[*].status}}")).await?;
    ensure(!statuses.contains(MARKER), || format!("it is in a status: {statuses}"))
}

/// Creates a class whose providerSpec cannot be decoded, and a pool that needs it.
async fn apply_undecodable_class(env: &Environment) -> TestResult {
    let class = json!({
        "apiVersion": API_VERSION, "kind": "MachineClass", "metadata": {"name": "undecodable"},
        "provider": "simulated", "providerSpec": {
            "cluster": env.namespace(), "labels": {ENVIRONMENT_LABEL: env.namespace()}, "size": "DEEP",
        },
    });
    create(env, "machineclasses", &class).await?;
    env.apply(&env.pool("wrong", 1).class("undecodable")).await
}

async fn heal_class(env: &Environment) -> TestResult {
    let healed = json!({"providerSpec": {"size": "small"}}).to_string();
    let class = path(env, "machineclasses", "undecodable");
    send(env, Method::PATCH, &class, "application/merge-patch+json", healed).await
}

pub(super) async fn restart_manager(env: &Environment) -> TestResult {
    let mut manager = env.manager().await?;
    manager.terminate().await?;
    Ok(manager.start_again().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_class_blocks_no_other() -> TestResult {
    let env = Environment::start("undecodable").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("right", 1)).await?;
    pool_runs(&env, "right", 1).await?;
    // The manager sees its creation …
    apply_undecodable_class(&env).await?;
    env.scale("right", 3).await?;
    pool_runs(&env, "right", 3).await?;
    // … and the next manager finds it at its start.
    restart_manager(&env).await?;
    env.scale("right", 4).await?;
    pool_runs(&env, "right", 4).await?;
    nothing_is_reported(&env).await?;
    heal_class(&env).await?;
    env.wait_for_running(5).await?;
    env.end().await
}

/// A metric, an event and, where the schema has one, its status name the class, whether it was created later or existed before.
#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_class_is_named_until_it_is_well() -> TestResult {
    let env = Environment::start("named").await?;
    let series = format!(r#"machine_class_invalid{{namespace="{}",name="undecodable"}}"#, env.namespace());
    apply_undecodable_class(&env).await?;
    let events: Api<Event> = Api::namespaced(env.client(), env.namespace());
    let reported = ListParams::default().fields("involvedObject.name=undecodable,reason=InvalidProviderSpec");
    for _ in ["live", "from the start"] {
        env.wait_for("the metric to name the class", async || Ok(env.metric(&series).await? == Some(1.0))).await?;
        env.wait_for("an event of the class", async || Ok(!events.list(&reported).await?.items.is_empty())).await?;
        if !has_mcm_crds() {
            let invalid = || says_so(&env);
            env.wait_for("the class to say what is wrong", async || invalid().await).await?;
        }
        restart_manager(&env).await?;
    }
    env.wait_for_machines("the machine to say that its class is at fault", |machines| {
        let said = |machine: &Machine| machine.status.as_ref().map(|status| status.last_operation.description.clone());
        machines.values().any(|machine| said(machine).is_some_and(|said| said.contains("providerSpec")))
    })
    .await?;
    nothing_is_reported(&env).await?;
    heal_class(&env).await?;
    env.wait_for_running(1).await?;
    env.wait_for("the metric to forget it", async || Ok(env.metric(&series).await?.is_none())).await?;
    env.end().await
}

/// Whether the undecodable class has the condition, according to kubectl: types cannot hold the whole object.
async fn says_so(env: &Environment) -> TestResult<bool> {
    let status = env.kubectl("get machineclass undecodable -o jsonpath={.status}").await?;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let is_false = |it: &Value| it["type"] == conditions::machine_class::PROVIDER_SPEC_VALID && it["status"] == "False";
    Ok(all.iter().any(|it| is_false(it) && it["message"].as_str().is_some_and(|text| text.contains("providerSpec"))))
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_machines_and_sets_do_not_block_the_others() -> TestResult {
    let env = Environment::start("venom").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("right", 1)).await?;
    pool_runs(&env, "right", 1).await?;
    let machine = |name: &str, annotations: Value, template: Value| {
        json!({
            "apiVersion": API_VERSION, "kind": "Machine",
            "metadata": {"name": format!("{}-{name}", env.namespace()), "annotations": annotations},
            "spec": {"class": {"kind": "MachineClass", "name": "small"}, "nodeTemplate": {"metadata": template}},
        })
    };
    // One that is long, and must survive …
    create(&env, "machines", &machine("long", json!({"long": MARKER.repeat(LONG / MARKER.len())}), json!({}))).await?;
    // … and two whose content is no machine and no set.
    create(&env, "machines", &machine("none", json!({}), json!({"labels": "DEEP"}))).await?;
    let none = format!("{}-none", env.namespace());
    create(
        &env,
        "machinesets",
        &json!({
            "apiVersion": API_VERSION, "kind": "MachineSet", "metadata": {"name": none},
            "spec": {
                "replicas": 2, "selector": {"matchLabels": {"pool": "none"}},
                "template": {
                    "metadata": {"labels": "DEEP"},
                    "spec": {"class": {"kind": "MachineClass", "name": "small"}},
                },
            },
        }),
    )
    .await?;
    env.scale("right", 3).await?;
    env.wait_for_running(4).await?;
    are_named(&env).await?;

    restart_manager(&env).await?;
    env.scale("right", 4).await?;
    env.wait_for_running(5).await?;
    are_named(&env).await?;
    nothing_is_reported(&env).await?;

    for plural in ["machines", "machinesets"] {
        send(&env, Method::DELETE, &path(&env, plural, &none), "application/json", String::new()).await?;
        let named = named(&env, plural);
        env.wait_for("the metric to forget it", async || Ok(env.metric(&named).await?.is_none())).await?;
    }
    let machines: Api<Machine> = Api::namespaced(env.client(), env.namespace());
    machines.delete(&format!("{}-long", env.namespace()), &DeleteParams::default()).await?;
    env.wait_for_running(4).await?;
    env.end().await
}

fn named(env: &Environment, plural: &str) -> String {
    let namespace = env.namespace();
    let labels = format!(r#"api_server="control",resource="{plural}.machine.sapcloud.io",namespace="{namespace}""#);
    format!(r#"watch_undecodable_object_info{{{labels},name="{namespace}-none"}}"#)
}

/// One object of each kind cannot be decoded: it is counted, and a metric and an event name it.
async fn are_named(env: &Environment) -> TestResult {
    let events: Api<Event> = Api::namespaced(env.client(), env.namespace());
    for (plural, kind) in [("machines", "Machine"), ("machinesets", "MachineSet")] {
        let named = named(env, plural);
        let what = format!("one object of {plural} to be named as undecodable");
        env.wait_for(&what, async || Ok(env.metric(&named).await? == Some(1.0))).await?;
        let reported = ListParams::default().fields(&format!("involvedObject.kind={kind},reason=Undecodable"));
        env.wait_for("an event of it", async || Ok(!events.list(&reported).await?.items.is_empty())).await?;
        let series =
            format!(r#"watch_undecodable_objects{{api_server="control",resource="{plural}.machine.sapcloud.io"}}"#);
        let what = format!("one object of {plural} to be counted as undecodable");
        env.wait_for(&what, async || Ok(env.metric(&series).await? == Some(1.0))).await?;
    }
    Ok(())
}

/// Any client can write an annotation, and the manager reads ours: its content must not block the writes of its object.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_context_that_is_none_stops_no_write() -> TestResult {
    let env = Environment::builder("traceparent").start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let broken = json!({"metadata": {"annotations": {annotations::TRACEPARENT: "x\n"}}});
    for kind in ["machinedeployment", "machineset", "machine"] {
        let names = env.kubectl(&format!("get {kind} -o name")).await?;
        for name in names.lines() {
            env.kubectl(&format!("patch {name} --type=merge -p={broken}")).await?;
        }
    }
    env.scale("a", 3).await?;
    env.wait_for_running(3).await?;
    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    env.end().await
}
