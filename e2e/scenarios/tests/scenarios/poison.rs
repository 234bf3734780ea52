//! Objects that no controller can read, as users and tools leave them behind: everything else goes on.

use http::{Method, Request, header};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use nodewright_api::{API_VERSION, Machine, annotations, conditions};
use nodewright_e2e_scenarios::{TestResult, World, ensure, has_mcm_crds, objects::WORLD_LABEL, waits};
use serde_json::{Value, json};

/// As deep as an API server lets through; parsers that recurse give up much earlier, or overflow their stack.
const DEPTH: usize = 9_000;
/// Stands in what is poisoned, and must not get into anything that people read.
const MARKER: &str = "Confidential-9000";
/// Of the 256 KiB that an object's annotations may have.
const LONG: usize = 200 << 10;

/// `{"a":{"a":…}}`, as text: a value of this depth cannot be made.
fn deep() -> String {
    format!(r#"{}"{MARKER}"{}"#, r#"{"a":"#.repeat(DEPTH), "}".repeat(DEPTH))
}

/// Where objects of a kind stand, or one of them.
fn path(world: &World, plural: &str, name: &str) -> String {
    let path = format!("/apis/{API_VERSION}/namespaces/{}/{plural}/{name}", world.namespace());
    path.trim_end_matches('/').to_owned()
}

/// Sends an object as it is, past kubectl and all types.
async fn send(world: &World, method: Method, path: &str, content: &str, body: String) -> TestResult {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content);
    world.client().request_text(request.body(body.into_bytes())?).await?;
    Ok(())
}

/// Creates an object with `DEEP` in it, which stands for what is poisoned.
async fn create(world: &World, plural: &str, object: &Value) -> TestResult {
    let body = object.to_string().replace(r#""DEEP""#, &deep());
    send(world, Method::POST, &path(world, plural, ""), "application/json", body).await
}

/// Waits until so many machines of a pool run, whatever the others do.
pub(super) async fn pool_runs(world: &World, pool: &str, count: usize) -> TestResult {
    let prefix = format!("{}-{pool}-", world.namespace());
    let what = format!("{count} machines of pool {pool} to run");
    world
        .wait_for_machines(&what, |machines| {
            let of_pool = machines.values().filter(|machine| machine.name_any().starts_with(&prefix));
            of_pool.filter(|machine| waits::is_running(machine)).count() == count
        })
        .await?;
    Ok(())
}

/// What is confidential stands neither in the log nor in an event, nor in what the manager writes into objects.
async fn nothing_is_told(world: &World) -> TestResult {
    let log = std::fs::read_to_string(world.log("manager"))?;
    let told = log.lines().find(|line| line.contains(MARKER));
    ensure(told.is_none(), || format!("it is in the log: {told:?}"))?;
    let events = world.kubectl("get events -o json").await?;
    ensure(!events.contains(MARKER), || format!("it is in an event: {events}"))?;
    let kinds = "machines,machinesets,machinedeployments,machineclasses";
    let statuses = world.kubectl(&format!("get {kinds} -o jsonpath={{.items[*].status}}")).await?;
    ensure(!statuses.contains(MARKER), || format!("it is in a status: {statuses}"))
}

/// Creates a class whose providerSpec nobody can read, and a pool that wants machines of it.
async fn apply_poisoned_class(world: &World) -> TestResult {
    let class = json!({
        "apiVersion": API_VERSION, "kind": "MachineClass", "metadata": {"name": "poisoned"},
        "provider": "simulated", "providerSpec": {
            "cluster": world.namespace(), "labels": {WORLD_LABEL: world.namespace()}, "size": "DEEP",
        },
    });
    create(world, "machineclasses", &class).await?;
    world.apply(&world.pool("wrong", 1).class("poisoned")).await
}

async fn heal_class(world: &World) -> TestResult {
    let healed = json!({"providerSpec": {"size": "small"}}).to_string();
    let class = path(world, "machineclasses", "poisoned");
    send(world, Method::PATCH, &class, "application/merge-patch+json", healed).await
}

pub(super) async fn restart_manager(world: &World) -> TestResult {
    let mut manager = world.manager().await?;
    manager.terminate().await?;
    Ok(manager.start_again().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_class_holds_up_nobody_else() -> TestResult {
    let world = World::start("poison").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("right", 1)).await?;
    pool_runs(&world, "right", 1).await?;
    // The manager watches it come …
    apply_poisoned_class(&world).await?;
    world.scale("right", 3).await?;
    pool_runs(&world, "right", 3).await?;
    // … and the next one finds it there.
    restart_manager(&world).await?;
    world.scale("right", 4).await?;
    pool_runs(&world, "right", 4).await?;
    nothing_is_told(&world).await?;
    heal_class(&world).await?;
    world.wait_for_running(5).await?;
    world.end().await
}

/// By the metric, by an event, and, where the schema has one, by its status; whether it came or was there before.
#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_class_is_named_until_it_is_well() -> TestResult {
    let world = World::start("named").await?;
    let series = format!(r#"machine_class_invalid{{namespace="{}",name="poisoned"}}"#, world.namespace());
    apply_poisoned_class(&world).await?;
    let events: Api<Event> = Api::namespaced(world.client(), world.namespace());
    let told = ListParams::default().fields("involvedObject.name=poisoned,reason=InvalidProviderSpec");
    for _ in ["live", "from the start"] {
        world.wait_for("the metric to name the class", async || Ok(world.metric(&series).await? == Some(1.0))).await?;
        world.wait_for("an event of the class", async || Ok(!events.list(&told).await?.items.is_empty())).await?;
        if !has_mcm_crds() {
            let invalid = || says_so(&world);
            world.wait_for("the class to say what is wrong", async || invalid().await).await?;
        }
        restart_manager(&world).await?;
    }
    world
        .wait_for_machines("the machine to say that its class is at fault", |machines| {
            let said =
                |machine: &Machine| machine.status.as_ref().map(|status| status.last_operation.description.clone());
            machines.values().any(|machine| said(machine).is_some_and(|said| said.contains("providerSpec")))
        })
        .await?;
    nothing_is_told(&world).await?;
    heal_class(&world).await?;
    world.wait_for_running(1).await?;
    world.wait_for("the metric to forget it", async || Ok(world.metric(&series).await?.is_none())).await?;
    world.end().await
}

/// Whether the poisoned class has the condition. As kubectl shows it: types cannot hold all of it.
async fn says_so(world: &World) -> TestResult<bool> {
    let status = world.kubectl("get machineclass poisoned -o jsonpath={.status}").await?;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let is_false = |it: &Value| it["type"] == conditions::machine_class::PROVIDER_SPEC_VALID && it["status"] == "False";
    Ok(all.iter().any(|it| is_false(it) && it["message"].as_str().is_some_and(|text| text.contains("providerSpec"))))
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_machines_and_sets_do_not_hold_up_the_others() -> TestResult {
    let world = World::start("venom").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("right", 1)).await?;
    pool_runs(&world, "right", 1).await?;
    let machine = |name: &str, annotations: Value, template: Value| {
        json!({
            "apiVersion": API_VERSION, "kind": "Machine",
            "metadata": {"name": format!("{}-{name}", world.namespace()), "annotations": annotations},
            "spec": {"class": {"kind": "MachineClass", "name": "small"}, "nodeTemplate": {"metadata": template}},
        })
    };
    // One that is long, and is to live …
    create(&world, "machines", &machine("long", json!({"long": MARKER.repeat(LONG / MARKER.len())}), json!({})))
        .await?;
    // … and two that are no machine and no set.
    create(&world, "machines", &machine("none", json!({}), json!({"labels": "DEEP"}))).await?;
    let none = format!("{}-none", world.namespace());
    create(
        &world,
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
    world.scale("right", 3).await?;
    world.wait_for_running(4).await?;
    are_named(&world).await?;

    restart_manager(&world).await?;
    world.scale("right", 4).await?;
    world.wait_for_running(5).await?;
    are_named(&world).await?;
    nothing_is_told(&world).await?;

    for plural in ["machines", "machinesets"] {
        send(&world, Method::DELETE, &path(&world, plural, &none), "application/json", String::new()).await?;
        let named = named(&world, plural);
        world.wait_for("the metric to forget it", async || Ok(world.metric(&named).await?.is_none())).await?;
    }
    let machines: Api<Machine> = Api::namespaced(world.client(), world.namespace());
    machines.delete(&format!("{}-long", world.namespace()), &DeleteParams::default()).await?;
    world.wait_for_running(4).await?;
    world.end().await
}

fn named(world: &World, plural: &str) -> String {
    let namespace = world.namespace();
    let labels = format!(r#"cluster="control",resource="{plural}.machine.sapcloud.io",namespace="{namespace}""#);
    format!(r#"watch_undecodable_object_info{{{labels},name="{namespace}-none"}}"#)
}

/// Of each kind one object cannot be decoded: it is counted, and named by a metric and an event.
async fn are_named(world: &World) -> TestResult {
    let events: Api<Event> = Api::namespaced(world.client(), world.namespace());
    for (plural, kind) in [("machines", "Machine"), ("machinesets", "MachineSet")] {
        let named = named(world, plural);
        let what = format!("one object of {plural} to be named as undecodable");
        world.wait_for(&what, async || Ok(world.metric(&named).await? == Some(1.0))).await?;
        let told = ListParams::default().fields(&format!("involvedObject.kind={kind},reason=Undecodable"));
        world.wait_for("an event of it", async || Ok(!events.list(&told).await?.items.is_empty())).await?;
        let series =
            format!(r#"watch_undecodable_objects{{cluster="control",resource="{plural}.machine.sapcloud.io"}}"#);
        let what = format!("one object of {plural} to be counted as undecodable");
        world.wait_for(&what, async || Ok(world.metric(&series).await? == Some(1.0))).await?;
    }
    Ok(())
}

/// An annotation is anyone's to write, and ours are read: what stands in one must not stop the writes of its object.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_context_that_is_none_stops_no_write() -> TestResult {
    let world = World::builder("traceparent").start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 1)).await?;
    world.wait_for_running(1).await?;
    let broken = json!({"metadata": {"annotations": {annotations::TRACEPARENT: "x\n"}}});
    for kind in ["machinedeployment", "machineset", "machine"] {
        let names = world.kubectl(&format!("get {kind} -o name")).await?;
        for name in names.lines() {
            world.kubectl(&format!("patch {name} --type=merge -p={broken}")).await?;
        }
    }
    world.scale("a", 3).await?;
    world.wait_for_running(3).await?;
    world.kubectl("delete machinedeployments --all").await?;
    world.wait_for_nothing().await?;
    world.end().await
}
