//! Custom resources in one cluster, nodes in another.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nodewright_api::{Machine, MachineDeployment};
use nodewright_e2e_lab::control_plane::Component;
use nodewright_e2e_scenarios::{
    Environment, Failure, TestResult, clusters, ensure, history::State, objects::ENVIRONMENT_LABEL,
    skip_on_external_cluster,
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn control_and_target_cluster_may_be_apart() -> TestResult {
    if skip_on_external_cluster("planes", "there is no second control plane") {
        return Ok(());
    }
    let env = Environment::builder("apart").with_target_apart().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    let ours = ListParams::default().labels(&format!("{ENVIRONMENT_LABEL}={}", env.namespace()));
    assert_eq!(Api::<Node>::all(env.target_client()).list(&ours).await?.items.len(), 3);
    assert!(Api::<Node>::all(env.client()).list(&ours).await?.items.is_empty());
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Work that needs only the control cluster is done, and work that needs the other one continues when that returns.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_starts_while_the_target_cluster_is_away_does_what_it_can() -> TestResult {
    if skip_on_external_cluster("alone", "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder("alone").cloud_flags(["--delete-seconds=0"]).with_webhooks().with_target(&target);
    let env = env.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let machines = env.wait_for_running(2).await?;
    let forced = machines.values().next().ok_or_else(|| Failure::new("no machine"))?;

    env.manager().await?.terminate().await?;
    plane.stop(Component::ApiServer)?;
    // The manager is then ready, and the API server calls its webhooks.
    env.manager().await?.start_again().await?;
    let pid = env.manager().await?.pid();
    tolerates_unavailable_target(&env).await?;
    delete_by_force(&env, forced).await?;
    is_well(&env).await?;
    let waits = "machines wait: failed to reach the API server of the target cluster";
    let log = std::fs::read_to_string(env.log("manager"))?;
    ensure(log.contains(waits), || format!("it does not say what machines wait for:\n{log}"))?;
    let says = |machine: &Machine| {
        machine.condition("Waiting").is_some_and(|waiting| waiting.reason.as_deref() == Some("ListingNodes"))
    };
    env.wait_for_machines("each machine to say what it waits for", |machines| {
        machines.values().all(|machine| says(machine))
    })
    .await?;
    let stats = env.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted), (2, 1), "machines without nodes wait");

    plane.start_again(Component::ApiServer).await?;
    forget_node(&env, forced).await?;
    // Two, one of them a replacement for the deleted one, and those created meanwhile.
    env.wait_for_running(5).await?;
    is_well(&env).await?;
    let stats = env.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted, env.manager().await?.pid()), (6, 1, pid));
    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Deployments and sets are created, scaled and removed, statuses written, and objects admitted.
async fn tolerates_unavailable_target(env: &Environment) -> TestResult {
    let wrong = env.pool("wrong", 1).spec("selector", json!({"matchLabels": {"pool": "another"}}));
    let said = env.apply_refused(&wrong).await?;
    ensure(said.contains("spec.template.metadata.labels: Invalid value"), || format!("it was not reviewed: {said}"))?;
    env.apply(&env.pool("b", 2).spec("strategy", Value::Null)).await?;
    let prefix = format!("{}-b-", env.namespace());
    for count in [2, 3] {
        env.scale("b", count).await?;
        let are_made = |machines: &State<Machine>| {
            machines.keys().filter(|name| name.starts_with(&prefix)).count() == count as usize
        };
        env.wait_for_machines(&format!("{count} machines of pool b"), are_made).await?;
    }
    let deployments: Api<MachineDeployment> = Api::namespaced(env.client(), env.namespace());
    let reported = async |pool: &str, replicas: i32| {
        let deployment = deployments.get(env.pool(pool, 0).name()).await?;
        let status = deployment.status.unwrap_or_default();
        TestResult::Ok(
            status.replicas == replicas && Some(status.observed_generation) == deployment.metadata.generation,
        )
    };
    env.wait_for("the status to count machines", async || reported("b", 3).await).await?;
    env.apply(&env.pool("c", 0)).await?;
    env.wait_for("the status of an empty pool", async || reported("c", 0).await).await?;
    env.kubectl(&format!("delete machinedeployment {} --timeout=60s", env.pool("c", 0).name())).await.map(drop)
}

/// A forced deletion makes no request to the target cluster.
async fn delete_by_force(env: &Environment, machine: &Machine) -> TestResult {
    let (machines, name) = (Api::<Machine>::namespaced(env.client(), env.namespace()), machine.name_any());
    let label = json!({"metadata": {"labels": {"force-deletion": "true"}}});
    machines.patch(&name, &PatchParams::default(), &Patch::Merge(label)).await?;
    machines.delete(&name, &DeleteParams::default()).await?;
    let left = async || Ok(env.vms().await?.iter().all(|vm| vm.name != name));
    env.wait_for("the VM to go", left).await?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&name)).await?;
    // Its set has created another one in its place.
    env.wait_for_machines("a machine in its place", |machines| machines.len() == 5).await?;
    Ok(())
}

/// Deletes the Node that a forcibly deleted machine has left behind.
async fn forget_node(env: &Environment, machine: &Machine) -> TestResult {
    let (nodes, name) = (Api::<Node>::all(env.target_client()), machine.node_name().unwrap_or_default());
    let free = json!({"metadata": {"finalizers": null}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(free)).await?;
    nodes.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Both endpoints report a healthy manager.
async fn is_well(env: &Environment) -> TestResult {
    let manager = env.manager().await?;
    for endpoint in ["/healthz", "/readyz"] {
        let (code, text) = manager.answer(endpoint).await?;
        ensure(code == 200, || format!("{endpoint} answers {code}: {text}"))?;
    }
    Ok(())
}
