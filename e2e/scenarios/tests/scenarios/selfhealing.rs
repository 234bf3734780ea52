//! Situations that must not block the replacement of dead machines, or the removal of machines.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nodewright_api::{Machine, MachineDeployment, MachinePhase, conditions};
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};
use nodewright_e2e_lab::control_plane::Component;
use nodewright_e2e_scenarios::{
    Environment, TestResult, clusters, ensure, history::State, objects::ENVIRONMENT_LABEL, skip_on_external_cluster,
};
use serde_json::{Value, json};

/// Status and reason of a condition of a machine.
fn condition(machine: &Machine, kind: &str) -> Option<(String, String)> {
    let condition = machine.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}

fn says(machines: &State<Machine>, kind: &str, reason: &str) -> bool {
    let said = Some(("False".to_owned(), reason.to_owned()));
    machines.values().any(|machine| condition(machine, kind) == said)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_to_a_secret_that_does_not_exist_is_taken_back_and_dead_machines_are_replaced() -> TestResult {
    let env = Environment::builder("typo").cloud_flags(["--delete-seconds=0"]).start().await?;
    env.apply_class("small").await?;
    let pool = || env.pool("a", 3).machine("healthTimeout", "5s");
    env.apply(&pool()).await?;
    env.wait_for_running(3).await?;

    env.apply(&env.class("typo").secret("no-such-secret")).await?;
    env.apply(&pool().class("typo")).await?;
    let reported = |machines: &State<Machine>| {
        says(machines, conditions::machine::CONFIGURATION_VALID, "SecretNotFound") && machines.len() == 4
    };
    env.wait_for_machines("a machine to miss its secret", reported).await?;
    env.apply(&pool()).await?;
    env.wait_for_running(3).await?;

    let mark = env.machines().mark();
    let dead = env.vms().await?.swap_remove(0);
    env.cloud().kill(&dead.id).await?;
    env.wait_for_machines("the dead machine to go", |machines| !machines.contains_key(&dead.name)).await?;
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1));
    assert_eq!(env.cloud().stats().await?.created, 4);
    env.end().await
}

/// The set that is scaled up again waits for its unhealthy machine. The replacement of that machine waits for the budget's
/// place, which the machine without a VM takes. Nothing depends on the latter, whose class has been edited meanwhile, so it
/// must not keep the place.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_never_worked_is_taken_back_while_a_machine_is_dead() -> TestResult {
    let env = Environment::builder("deadlock").cloud_flags(["--delete-seconds=0"]).start().await?;
    env.apply_class("small").await?;
    let pool = || env.pool("a", 3).machine("healthTimeout", "1m");
    env.apply(&pool()).await?;
    env.wait_for_running(3).await?;

    let mark = env.machines().mark();
    let dead = env.vms().await?.swap_remove(0);
    env.cloud().kill(&dead.id).await?;
    let is_sick = |machine: &Machine| machine.name_any() == dead.name && *machine.phase() == MachinePhase::Unknown;
    env.wait_for_machines("the machine to be unhealthy", |machines| machines.values().any(|it| is_sick(it))).await?;
    for secret in ["no-such-secret", "nor-this-one"] {
        env.apply(&env.class("typo").secret(secret)).await?;
    }
    env.apply(&pool().class("typo")).await?;
    let reported = |machines: &State<Machine>| {
        says(machines, conditions::machine::CONFIGURATION_VALID, "SecretNotFound") && machines.len() == 4
    };
    env.wait_for_machines("a machine to miss its secret", reported).await?;
    env.apply(&pool()).await?;
    let is_back = |machines: &State<Machine>| machines.values().all(|machine| machine.class_name() == "small");
    env.wait_for_machines("the machine without a VM to go", is_back).await?;
    ensure(env.machines().current().values().any(|it| is_sick(it)), || "before the dead one is replaced".to_owned())?;
    env.wait_for_machines("the dead machine to go", |machines| !machines.contains_key(&dead.name)).await?;
    env.wait_for_running(3).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (2, 2));
    env.end().await
}

/// A kubelet may write its Node. Whatever its record declares as applied, the manager removes none of it because of that.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_says_of_itself_takes_nothing_from_it() -> TestResult {
    let env = Environment::start("forged").await?;
    env.apply_class("small").await?;
    let pool = |labels: Value| env.pool("a", 1).machine("nodeTemplate", json!({"metadata": {"labels": labels}}));
    env.apply(&pool(json!({"ours": "1"}))).await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?;
    let record = machine.annotations().get("nodewright.dev/applied-node-template").map(String::as_str);
    assert_eq!(record, Some(r#"{"labels":["ours"]}"#), "written with the link");

    let forged = json!({"metadata": {"labels": {"foreign": "1", "kubernetes.io/hostname": "h", "ours": "1"}},
        "spec": {"taints": [{"key": "quarantine", "effect": "NoExecute"}]}});
    let annotation = "node.machine.sapcloud.io/last-applied-anno-labels-taints";
    let nodes: Api<Node> = Api::all(env.target_client());
    let name = machine.node_name().unwrap_or_default().to_owned();
    let node = nodes.get(&name).await?;
    let mut taints = serde_json::to_value(node.spec.and_then(|spec| spec.taints).unwrap_or_default())?;
    taints.as_array_mut().into_iter().for_each(|all| all.push(json!({"key": "quarantine", "effect": "NoExecute"})));
    let patch = json!({"metadata": {"labels": {"foreign": "1", "kubernetes.io/hostname": "h"},
        "annotations": {annotation: forged.to_string()}}, "spec": {"taints": taints}});
    nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;

    // The label that the template no longer has is removed, and nothing else.
    env.apply(&pool(json!({"other": "1"}))).await?;
    let has_other = |node: &Node| node.labels().contains_key("other") && !node.labels().contains_key("ours");
    env.wait_for("the node to follow the template", async || Ok(has_other(&nodes.get(&name).await?))).await?;
    let node = nodes.get(&name).await?;
    let labels = ["foreign", "kubernetes.io/hostname"].map(|label| node.labels().contains_key(label));
    assert_eq!(labels, [true, true]);
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure(taints.iter().any(|taint| taint.key == "quarantine"), || format!("{taints:?}"))?;
    let recorded = |machines: &State<Machine>| {
        let mut records = machines.values().map(|it| it.annotations().get("nodewright.dev/applied-node-template"));
        records.all(|record| record.is_some_and(|record| record == r#"{"labels":["other"]}"#))
    };
    env.wait_for_machines("the record to follow", recorded).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_ends_while_the_target_cluster_is_away() -> TestResult {
    if skip_on_external_cluster("forced", "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder("forced").cloud_flags(["--delete-seconds=0"]).with_target(&target).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?;
    let id = env.vms().await?.swap_remove(0).id;

    plane.stop(Component::ApiServer)?;
    let machines: Api<Machine> = Api::namespaced(env.client(), env.namespace());
    let label = json!({"metadata": {"labels": {"force-deletion": "true"}}});
    machines.patch(&machine.name_any(), &PatchParams::default(), &Patch::Merge(label)).await?;
    machines.delete(&machine.name_any(), &DeleteParams::default()).await?;
    env.wait_for("the VM to go", async || Ok(env.vms().await?.iter().all(|vm| vm.id != id))).await?;
    let is_gone = |machines: &State<Machine>| !machines.contains_key(&machine.name_any());
    env.wait_for_machines("the machine to go", is_gone).await?;

    plane.start_again(Component::ApiServer).await?;
    forget_node(&env, &machine).await?;
    env.wait_for_running(1).await?;
    env.end().await
}

/// Deletes the Node that a machine left behind whose deletion was forced.
pub(crate) async fn forget_node(env: &Environment, machine: &Machine) -> TestResult {
    let nodes: Api<Node> = Api::all(env.target_client());
    let name = machine.node_name().unwrap_or_default();
    let free = json!({"metadata": {"finalizers": null}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(free)).await?;
    nodes.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_whose_nodes_are_deleted_at_once_are_replaced_one_at_a_time() -> TestResult {
    let env = Environment::builder("nodes").cloud_flags(["--delete-seconds=0"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 6)).await?;
    let before = env.wait_for_running(6).await?;
    let mark = env.machines().mark();
    let nodes: Api<Node> = Api::all(env.target_client());
    let ours = ListParams::default().labels(&format!("{ENVIRONMENT_LABEL}={}", env.namespace()));
    nodes.delete_collection(&DeleteParams::default(), &ours).await?;
    let held =
        |machines: &State<Machine>| says(machines, conditions::machine::REMEDIATION_ALLOWED, "ReplacementBlocked");
    env.wait_for_machines("the machines to say why they wait", held).await?;
    env.wait_for_machines("all to be replaced", |machines| before.keys().all(|name| !machines.contains_key(name)))
        .await?;
    env.wait_for_running(6).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (6, 6));
    env.machines().states(mark, |at, state| {
        let leaving = state.values().filter(|machine| machine.is_deleting()).count();
        ensure(leaving <= 1, || format!("at {at}, {leaving} machines were leaving"))
    })?;
    env.end().await
}

/// With the full messages the status would exceed etcd's limit, and would not be updated any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_says_at_length_of_many_machines_fits_into_the_status() -> TestResult {
    let env = Environment::start("words").await?;
    let refusal = Effect::Error { code: Code::Internal, message: Some("x".repeat(30_000)), applied: false };
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, refusal)).await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 70);
    env.apply(&pool).await?;
    let deployments: Api<MachineDeployment> = Api::namespaced(env.client(), env.namespace());
    env.wait_for("the status to count all failures", async || {
        let status = deployments.get(pool.name()).await?.status.unwrap_or_default();
        let is_truncated = |it: &&nodewright_api::MachineDeploymentCondition| {
            it.condition_type == conditions::machine_deployment::FAILED_MACHINES_TRUNCATED
        };
        let said = status.conditions.iter().find(is_truncated).map(|it| it.message.clone()).unwrap_or_default();
        Ok(status.failed_machines.len() == 50 && said.contains("20 are left out"))
    })
    .await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}
