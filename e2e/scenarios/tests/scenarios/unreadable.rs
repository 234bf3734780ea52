//! Objects that decode badly or not at all, present when a manager starts: they exist, so the manager must not act as if they
//! did not.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{ConditionStatus, Machine, MachineSet, annotations, conditions, reasons};
use nodewright_e2e_cloud::VmState;
use nodewright_e2e_cloud::kubelet::TERMINATION_ANNOTATION;
use nodewright_e2e_scenarios::{Change, Environment, Failure, TestResult, ensure, has_mcm_crds, waits::is_running};
use serde_json::{Value, json};

use crate::undecodable::{pool_runs, restart_manager};

/// The last second that Go can represent; it is later than jiff's last one.
const FAR: &str = "9999-12-31T23:59:59Z";
/// Longer than Go's longest duration.
const LONG: &str = "9999999h";
const POD: &str = "last";

async fn patch(env: &Environment, object: &str, patch: &Value) -> TestResult {
    env.kubectl(&format!("patch {object} --type=merge -p={patch}")).await.map(drop)
}

/// Checks that this many VMs were ever created, that all of them exist, and that each has its own Machine.
async fn ensure_made(env: &Environment, count: usize) -> TestResult {
    let stats = env.cloud().stats().await?;
    ensure((stats.created, stats.deleted, stats.live) == (count as u64, 0, count as u64), || format!("{stats:?}"))?;
    let machines = env.kubectl("get machines -o jsonpath={.items[*].metadata.name}").await?;
    let machines: BTreeSet<_> = machines.split_whitespace().map(str::to_owned).collect();
    let vms: BTreeSet<_> = env.vms().await?.into_iter().map(|vm| vm.name).collect();
    ensure(machines == vms, || format!("machines {machines:?}, VMs {vms:?}"))
}

/// Runs a Pod on a Node. The Pod stays when it is evicted, until [`let_pod_go`].
async fn run_pod(env: &Environment, node: &str) -> TestResult {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": POD, "annotations": {TERMINATION_ANNOTATION: "never"}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 3600, "containers": [{"name": "main", "image": "none"}],
        },
    });
    // Rejected while the namespace has no service account.
    env.wait_for("a pod to be accepted", async || Ok(env.apply(&pod).await.is_ok())).await?;
    env.wait_for("the pod to run", async || {
        Ok(pods(env).get(POD).await?.status.is_some_and(|status| status.phase.as_deref() == Some("Running")))
    })
    .await
}

async fn let_pod_go(env: &Environment) -> TestResult {
    patch(env, &format!("pod {POD}"), &json!({"metadata": {"annotations": {TERMINATION_ANNOTATION: null}}})).await
}

fn pods(env: &Environment) -> Api<Pod> {
    Api::namespaced(env.target_client(), env.namespace())
}

/// Checks that the Machines that existed at a mark were `Running` ever since, and that none of them is being deleted.
fn ensure_undisturbed(env: &Environment, mark: usize) -> TestResult {
    let changes = env.machines().changes()?;
    let (before, after) = changes.split_at(mark);
    let known: BTreeSet<_> = before.iter().map(|change| change.object.name_any()).collect();
    let is_wrong = |change: &&Change<Machine>| {
        known.contains(&change.object.name_any()) && (change.gone || !is_running(&change.object))
    };
    let wrong = after.iter().find(is_wrong);
    ensure(wrong.is_none(), || format!("a machine did not go on running: {wrong:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_node_has_a_far_taint_is_kept_and_drained() -> TestResult {
    let env = Environment::start("far").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2).machine("healthTimeout", "5s")).await?;
    let machines = env.wait_for_running(2).await?;
    let machine = machines.into_keys().next().ok_or_else(|| Failure::new("no machine"))?;
    run_pod(&env, &machine).await?;
    let taint = json!({"key": "example.com/far", "effect": "NoSchedule", "timeAdded": FAR});
    patch(&env, &format!("node {machine}"), &json!({"spec": {"taints": [taint]}})).await?;

    let mark = env.machines().mark();
    restart_manager(&env).await?;
    env.scale("a", 3).await?;
    pool_runs(&env, "a", 3).await?;
    ensure_made(&env, 3).await?;
    ensure_undisturbed(&env, mark)?;

    // A deletion in progress continues where it was: it waits for the pod.
    env.kubectl(&format!("delete machine {machine} --wait=false")).await?;
    let is_ending = async || Ok(pods(&env).get(POD).await?.metadata.deletion_timestamp.is_some());
    env.wait_for("the pod to be evicted", is_ending).await?;
    restart_manager(&env).await?;
    env.scale("a", 4).await?;
    pool_runs(&env, "a", 4).await?;
    let vms = env.vms().await?;
    let vm = vms.iter().find(|vm| vm.name == machine);
    ensure(vm.is_some_and(|vm| vm.state == VmState::Running), || format!("its pod runs, its VM is {vm:?}"))?;
    ensure(pods(&env).get_opt(POD).await?.is_some(), || "the pod is gone, and nobody ended it".to_owned())?;
    let taints = env.kubectl(&format!("get node {machine} -o jsonpath={{.spec.taints}}")).await?;
    ensure(taints.contains(FAR), || format!("the taint was changed: {taints}"))?;

    let_pod_go(&env).await?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&machine)).await?;
    ensure(pods(&env).get_opt(POD).await?.is_none(), || "the machine went before its pod".to_owned())?;
    ensure(env.vms().await?.len() == 4, || "not four VMs are left".to_owned())?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_a_timeout_beyond_gos_range_counts() -> TestResult {
    let env = Environment::start("long").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 5)).await?;
    let machines = env.wait_for_running(5).await?;
    let machine = machines.into_keys().next().ok_or_else(|| Failure::new("no machine"))?;
    patch(&env, &format!("machine {machine}"), &json!({"spec": {"drainTimeout": LONG}})).await?;

    let mark = env.machines().mark();
    restart_manager(&env).await?;
    // The manager's first creations show what it has counted.
    env.scale("a", 6).await?;
    env.wait_for_running(6).await?;
    ensure_made(&env, 6).await?;
    ensure_undisturbed(&env, mark)?;

    env.kubectl(&format!("delete machine {machine} --wait=false")).await?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&machine)).await?;
    env.wait_for_running(6).await?;
    env.end().await
}

/// Values that the served schema accepts and no valid Machine has: [`Value::Null`] removes them again.
fn broken() -> Vec<(Value, Value)> {
    let labels = |labels: Value| json!({"spec": {"nodeTemplate": {"metadata": {"labels": labels}}}});
    let timeout = |timeout: Value| json!({"spec": {"drainTimeout": timeout}});
    let mut all = vec![(labels("text".into()), json!({"spec": {"nodeTemplate": null}}))];
    if has_mcm_crds() {
        all.push((timeout("soon".into()), timeout(Value::Null)));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_be_read_counts_and_its_set_says_so() -> TestResult {
    let env = Environment::start("unread").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let machines = env.wait_for_running(3).await?;
    let machine = machines.into_keys().next().ok_or_else(|| Failure::new("no machine"))?;
    let mut count = 3;
    for (broken, mended) in broken() {
        let mark = env.machines().mark();
        patch(&env, &format!("machine {machine}"), &broken).await?;
        restart_manager(&env).await?;
        wait_for_said(&env, Some((reasons::unreadable::MACHINE, &machine))).await?;
        count += 1;
        env.scale("a", u32::try_from(count)?).await?;
        pool_runs(&env, "a", count).await?;
        ensure_made(&env, count).await?;
        patch(&env, &format!("machine {machine}"), &mended).await?;
        wait_for_said(&env, None).await?;
        ensure_made(&env, count).await?;
        ensure_undisturbed(&env, mark)?;
    }
    env.kubectl(&format!("delete machine {machine} --wait=false")).await?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&machine)).await?;
    env.wait_for_running(count).await?;
    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Waits until the set reports a failure with this reason and text, or no failure.
async fn wait_for_said(env: &Environment, said: Option<(&str, &str)>) -> TestResult {
    let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    let what = format!("the set to say {said:?}");
    env.wait_for(&what, async || {
        let sets = sets.list(&ListParams::default()).await?.items;
        let mut all = sets.iter().filter_map(|set| set.status.as_ref()).flat_map(|status| &status.conditions);
        let failure = all.find(|it| it.condition_type == conditions::machine_set::REPLICA_FAILURE);
        Ok(match (failure, said) {
            (None, None) => true,
            (Some(failure), Some((reason, text))) => {
                let has_time = failure.last_transition_time.is_some();
                failure.status == ConditionStatus::True
                    && has_time
                    && failure.reason == reason
                    && failure.message.contains(text)
            }
            _ => false,
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_whose_ledger_cannot_be_read_says_so_and_waits() -> TestResult {
    let env = Environment::start("ledger").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    let set = sets.list(&ListParams::default()).await?.items.pop().ok_or_else(|| Failure::new("no set"))?;
    let ledger = set.annotations().get(annotations::LEDGER).ok_or_else(|| Failure::new("no ledger"))?;
    let write = async |text: &str| {
        let annotation = json!({"metadata": {"annotations": {annotations::LEDGER: text}}});
        patch(&env, &format!("machineset {}", set.name_any()), &annotation).await
    };
    write("spoilt").await?;
    let invalid = Some((reasons::unreadable::LEDGER, "`spoilt` is no ledger"));
    wait_for_said(&env, invalid).await?;
    // The deployment reports it as well, and the next manager finds it at its start.
    restart_manager(&env).await?;
    env.scale("a", 3).await?;
    let deployment = format!("machinedeployment {}", env.pool("a", 3).name());
    let failure = "jsonpath={.status.conditions[?(@.type==\"ReplicaFailure\")].reason}";
    let said =
        async || Ok(env.kubectl(&format!("get {deployment} -o {failure}")).await? == reasons::unreadable::LEDGER);
    env.wait_for("the deployment to say it", said).await?;
    let sees_three = |set: &MachineSet| {
        let seen = set.status.as_ref().map(|status| status.observed_generation);
        set.spec.replicas == 3 && seen == set.metadata.generation
    };
    env.wait_for("the set to see its new size", async || Ok(sees_three(&sets.get(&set.name_any()).await?))).await?;
    wait_for_said(&env, invalid).await?;
    ensure_made(&env, 2).await?;

    write(ledger).await?;
    wait_for_said(&env, None).await?;
    env.wait_for_running(3).await?;
    ensure_made(&env, 3).await?;
    env.end().await
}
