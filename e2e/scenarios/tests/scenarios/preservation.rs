//! Machines that are kept for diagnosis.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, ServiceAccount};
use kube::{Api, ResourceExt};
use nodewright_api::{Machine, MachinePhase, annotations, conditions, reasons, taints};
use nodewright_e2e_cloud::KubeletOrder;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, history::State};
use serde_json::json;

/// Writes to preserve a machine and to end that, of the machine and its node.
const TO_PRESERVE: usize = 4;
const TO_END: usize = 3;

async fn pool_of(env: &Environment, replicas: u32, automatic: u32) -> TestResult<State<Machine>> {
    env.apply_class("small").await?;
    let pool = env.pool("a", replicas).machine("healthTimeout", "5s");
    env.apply(&pool.spec("autoPreserveFailedMachineMax", automatic)).await?;
    env.wait_for_running(replicas as usize).await
}

async fn break_node(env: &Environment, machine: &str, order: &KubeletOrder) -> TestResult {
    let vm = env.vms().await?.into_iter().find(|vm| vm.name == machine);
    let vm = vm.ok_or_else(|| Failure::new(format!("machine {machine} has no VM")))?;
    env.cloud().kubelet(&vm.id, order).await?;
    Ok(())
}

fn expiry(machine: &Machine) -> Option<Timestamp> {
    Some(machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0)
}

fn is_failed(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Failed
}

fn preserved(node: &Node) -> Option<&NodeCondition> {
    let all = node.status.as_ref()?.conditions.as_deref()?;
    all.iter().find(|condition| condition.type_ == conditions::node::PRESERVED)
}

fn is_drained(node: &Node) -> bool {
    preserved(node).is_some_and(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.status == "True" && message.starts_with("Preserved node drained successfully.")
    })
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == taints::PRESERVED && taint.effect == "NoSchedule")
}

fn is_kept_by_autoscaler(node: &Node) -> bool {
    node.annotations().get(annotations::SCALE_DOWN_DISABLED).is_some_and(|value| value == "true")
}

async fn node_is(env: &Environment, what: &str, name: &str, is_so: impl Fn(&Node) -> bool) -> TestResult {
    env.wait_for(what, async || Ok(env.nodes().current().get(name).is_some_and(|node| is_so(node)))).await
}

/// How often a machine and its node were written.
async fn writes(env: &Environment, mark: usize, name: &str) -> TestResult<Vec<String>> {
    let requests = env.requests_since(mark).await?;
    let of_machine = requests.writes_for_machines().into_iter().filter(|entry| entry.name == name);
    Ok(of_machine.map(|entry| format!("{} {}/{}", entry.verb, entry.resource, entry.subresource)).collect())
}

/// The annotation of the node counts, as machine-controller-manager tells users. The machine is drained, keeps its VM, and goes when
/// the annotation does.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_machine_whose_node_is_annotated_is_kept_until_the_annotation_goes() -> TestResult {
    let env = Environment::builder("kept-by-node").cloud_flags(["--delete-seconds=0"]).start().await?;
    let machines = pool_of(&env, 2, 0).await?;
    let name = machines.keys().next().cloned().unwrap_or_default();
    let has_log = env.cluster().control_plane().is_some();
    let mark = async || if has_log { env.requests().await.map(|all| all.entries().len()) } else { Ok(0) };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"},
        "spec": {"nodeName": name, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "none"}]}});
    let accounts: Api<ServiceAccount> = Api::namespaced(env.target_client(), env.namespace());
    env.wait_for("the account of pods", async || Ok(accounts.get_opt("default").await?.is_some())).await?;
    env.apply(&pod).await?;

    let before = mark().await?;
    let keep = annotations::PRESERVE;
    env.kubectl(&format!("annotate node {name} {keep}={}", annotations::PRESERVE_WHEN_FAILED)).await?;
    let value = annotations::LAST_APPLIED_NODE_PRESERVE_VALUE;
    env.wait_for_machines("the machine to bear what its node asks for", |all| {
        all[&name].annotations().get(value).is_some_and(|value| value == annotations::PRESERVE_WHEN_FAILED)
    })
    .await?;
    assert_eq!(env.machines().current().get(&name).and_then(|machine| expiry(machine)), None, "it has not failed");
    break_node(&env, &name, &KubeletOrder::NotReady).await?;
    node_is(&env, "the node to be drained", &name, is_drained).await?;
    let node = env.nodes().current().remove(&name).ok_or_else(|| Failure::new("the node is gone"))?;
    assert!(is_tainted(&node) && is_kept_by_autoscaler(&node), "{:?}", node.metadata);
    assert_eq!(preserved(&node).and_then(|it| it.reason.as_deref()), Some(reasons::node::PRESERVED_BY_USER));
    let kept = env.machines().current().remove(&name).ok_or_else(|| Failure::new("the machine is gone"))?;
    assert!(is_failed(&kept) && expiry(&kept).is_some(), "{:?}", kept.status);
    ensure(env.vms().await?.iter().any(|vm| vm.name == name), || "its VM is gone".to_owned())?;
    if has_log {
        // The health of the machine costs two statuses, and the pod an eviction, which is of another name.
        let all = writes(&env, before, &name).await?;
        assert!(all.len() <= TO_PRESERVE + 2, "{all:?}");
    }

    let before = mark().await?;
    env.kubectl(&format!("annotate node {name} {keep}-")).await?;
    let going = |all: &State<Machine>| all.get(&name).is_none_or(|machine| machine.is_deleting());
    env.wait_for_machines("the machine to be replaced", going).await?;
    env.wait_for_machines("it to be gone", |all| !all.contains_key(&name)).await?;
    env.wait_for_running(2).await?;
    if has_log {
        let all = writes(&env, before, &name).await?;
        let end = all.iter().position(|write| write.starts_with("delete machines")).unwrap_or(all.len());
        assert!(end <= TO_END, "{all:?}");
    }
    let changes = env.machines().changes()?;
    let was_cleared =
        changes.iter().any(|it| it.object.name_any() == name && is_failed(&it.object) && expiry(&it.object).is_none());
    ensure(was_cleared, || "its time was not taken back first".to_owned())?;
    env.end().await
}

/// For as long as the flag says. The event and the status say until when.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_machine_that_a_user_keeps_goes_when_its_time_is_over() -> TestResult {
    let flags = ["--machine-preserve-timeout=15s"];
    let builder = Environment::builder("kept").cloud_flags(["--delete-seconds=3"]).manager_flags(flags);
    let env = builder.start().await?;
    let before = pool_of(&env, 2, 0).await?;
    let name = before.keys().next().cloned().unwrap_or_default();
    let keep = format!("{}={}", annotations::PRESERVE, annotations::PRESERVE_WHEN_FAILED);
    env.kubectl(&format!("annotate machine {name} {keep}")).await?;
    break_node(&env, &name, &KubeletOrder::Silence).await?;
    let is_kept = |machine: &Machine| is_failed(machine) && expiry(machine).is_some();
    let kept = env.wait_for_machines("it to be kept", |all| all.get(&name).is_some_and(|it| is_kept(it))).await?;
    let until = expiry(&kept[&name]).unwrap_or_default();
    let text = format!("the failed machine is kept for diagnosis until {until:.0}");
    let waiting = kept[&name].condition(conditions::machine::WAITING).and_then(|waiting| waiting.message.as_deref());
    ensure(waiting.is_some_and(|message| message.starts_with(&text)), || format!("it says {waiting:?}"))?;
    let get =
        format!("get events --field-selector=reason={} -o jsonpath={{.items[*].message}}", reasons::machine::PRESERVED);
    env.wait_for("the event of it", async || Ok(env.kubectl(&get).await?.contains(&text))).await?;
    let going =
        env.wait_for_machines("it to go", |all| all.get(&name).is_some_and(|machine| machine.is_deleting())).await?;
    let deleted = going[&name].metadata.deletion_timestamp.as_ref().map(|time| time.0).unwrap_or_default();
    ensure(deleted >= until, || format!("it went at {deleted}, before {until}"))?;
    let events = env.kubectl(&get).await?;
    assert_eq!(events.matches(&text).count(), 1, "{events}");
    let after = env.wait_for_running(2).await?;
    ensure(!after.contains_key(&name), || "it is still there".to_owned())?;
    env.end().await
}

/// Of two that fail the set keeps one by itself. `false` gives it up, and the set keeps no other instead, because none is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_keeps_as_many_failed_machines_as_it_is_asked_to() -> TestResult {
    let builder = Environment::builder("auto-kept").cloud_flags(["--delete-seconds=0"]);
    let env = builder.manager_flags(["--fleet-brake-percent=100"]).start().await?;
    let before = pool_of(&env, 3, 1).await?;
    let broken: Vec<_> = before.keys().take(2).cloned().collect();
    for name in &broken {
        break_node(&env, name, &KubeletOrder::NotReady).await?;
    }
    let is_auto = |machine: &Machine| {
        machine.annotations().get(annotations::PRESERVE).is_some_and(|value| value == annotations::PRESERVE_AUTO)
    };
    env.wait_for_machines("one of both to be replaced", |all| {
        let [kept, others] = [true, false].map(|kept| all.values().filter(|machine| is_auto(machine) == kept).count());
        kept == 1 && others == 2 && broken.iter().filter(|name| all.contains_key(*name)).count() == 1
    })
    .await?;
    let kept = env.machines().current().into_iter().find(|(_, machine)| is_auto(machine));
    let (kept, _) = kept.ok_or_else(|| Failure::new("none is kept"))?;
    node_is(&env, "the node to be drained", &kept, is_drained).await?;
    let numbers = "jsonpath={.items[0].status.preservedFailedReplicas},{.items[0].status.autoPreserveFailedMachineCount},\
                   {.items[0].status.failedMachines}";
    env.wait_for("the set to count it", async || {
        Ok(env.kubectl(&format!("get machinesets -o {numbers}")).await? == "1,1,")
    })
    .await?;
    let available = "jsonpath={.items[0].status.conditions[?(@.type==\"Available\")].status}";
    env.wait_for("the deployment to be available", async || {
        Ok(env.kubectl(&format!("get machinedeployments -o {available}")).await? == "True")
    })
    .await?;
    env.kubectl(&format!(
        "annotate machine {kept} {}={} --overwrite",
        annotations::PRESERVE,
        annotations::PRESERVE_FALSE
    ))
    .await?;
    env.wait_for_machines("the last one to be replaced", |all| !all.contains_key(&kept)).await?;
    env.wait_for_running(3).await?;
    env.end().await
}

/// A machine that works is preserved with `now`: the autoscaler leaves its node, a scale-down takes the others first, and when it has
/// failed and works again, pods come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_works_is_preserved_and_goes_last() -> TestResult {
    let flags = ["--machine-preserve-timeout=1h"];
    let env = Environment::builder("now").cloud_flags(["--delete-seconds=0"]).manager_flags(flags).start().await?;
    let before = pool_of(&env, 3, 0).await?;
    let name = before.keys().next().cloned().unwrap_or_default();
    env.kubectl(&format!("annotate machine {name} {}={}", annotations::PRESERVE, annotations::PRESERVE_NOW)).await?;
    let is_marked = |node: &Node| is_kept_by_autoscaler(node) && preserved(node).is_some_and(|it| it.status == "True");
    node_is(&env, "the node to be marked", &name, is_marked).await?;
    env.scale("a", 1).await?;
    let left = env.wait_for_running(1).await?;
    ensure(left.contains_key(&name), || format!("{:?} is left", left.keys()))?;
    ensure(!is_tainted(&env.nodes().current()[&name]), || "a node that works is tainted".to_owned())?;

    break_node(&env, &name, &KubeletOrder::NotReady).await?;
    node_is(&env, "the node of the failed machine to be drained", &name, |node| is_drained(node) && is_tainted(node))
        .await?;
    break_node(&env, &name, &KubeletOrder::Ready).await?;
    let is_open =
        |node: &Node| !is_tainted(node) && preserved(node).is_some_and(|it| it.status == "True") && !is_drained(node);
    node_is(&env, "pods to be let in again", &name, is_open).await?;
    assert!(env.machines().current().get(&name).and_then(|machine| expiry(machine)).is_some(), "it is still preserved");
    // An operator gives it less time.
    let soon = Timestamp::now() - SignedDuration::from_secs(1);
    let status = format!(r#"{{"status":{{"currentStatus":{{"preserveExpiryTime":"{soon:.0}"}}}}}}"#);
    env.kubectl(&format!("patch machine {name} --subresource=status --type=merge -p={status}")).await?;
    let is_over = |node: &Node| !is_kept_by_autoscaler(node) && preserved(node).is_some_and(|it| it.status == "False");
    node_is(&env, "the marks to go", &name, is_over).await?;
    env.wait_for_machines("the machine to forget", |all| {
        all.get(&name).is_some_and(|it| expiry(it).is_none() && !it.annotations().contains_key(annotations::PRESERVE))
    })
    .await?;
    env.wait_for_running(1).await?;
    env.end().await
}
