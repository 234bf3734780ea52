//! The node part of a cloud controller manager: kubelets run with `--cloud-provider=external`, and no such manager runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use nodewright_api::{Machine, MachinePhase, annotations, labels, taints};
use nodewright_e2e_cloud::{
    Address, AddressOrder, Code, CreateVm, Effect, FaultMatch, FaultOperation, FaultOrder, KubeletOrder, NodeTemplate,
    Vm,
};
use nodewright_e2e_lab::control_plane::audit::Entry;
use nodewright_e2e_scenarios::{
    Environment, EnvironmentBuilder, Failure, TestResult,
    cloud_nodes::{addresses, check_untainted, check_writes, has_taint, is_initialized},
    ensure,
    history::State,
    waits,
};
use serde_json::json;

const ON: [&str; 3] = ["--cloud-node=on", "--node-deletion-grace=2s", "--node-deletion-after-start=1s"];

async fn started(name: &str, replicas: u32) -> TestResult<Environment> {
    started_by(Environment::builder(name).manager_flags(ON), replicas).await
}

async fn started_by(builder: EnvironmentBuilder, replicas: u32) -> TestResult<Environment> {
    let env = builder.cloud_flags(["--delete-seconds=0"]).start().await?;
    // A zone for each scenario: its nodes are all that the brake counts.
    let zone = env.namespace().to_owned();
    let class = env.class("small").provider("externalCloudProvider", true);
    env.apply(&class.provider("zone", zone).provider("region", "here")).await?;
    env.apply(&env.pool("a", replicas)).await?;
    env.wait_for_running(usize::try_from(replicas)?).await?;
    Ok(env)
}

fn reports_missing_vm(machine: &Machine) -> bool {
    machine.status.iter().flat_map(|status| &status.conditions).any(|it| it.type_ == "InstanceExists")
}

/// Lets the kubelet of a VM report that it is not ready, and waits until its machine is Unknown.
async fn becomes_unhealthy(env: &Environment, vm: &Vm) -> TestResult {
    env.cloud().kubelet(&vm.id, &KubeletOrder::NotReady).await?;
    let is_unknown = |machine: &Machine| *machine.phase() == MachinePhase::Unknown;
    env.wait_for_machines("the machine to be unhealthy", |machines| {
        machines.get(&vm.name).is_some_and(|it| is_unknown(it))
    })
    .await
    .map(drop)
}

fn no_node() -> Failure {
    Failure::new("there is no node of the VM")
}

async fn node_of(env: &Environment, vm: &Vm) -> TestResult<Option<Node>> {
    Ok(Api::<Node>::all(env.target_client()).get_opt(&vm.node_name).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_what_their_provider_knows_and_then_lose_the_taint() -> TestResult {
    let builder = Environment::builder("cloud-node").manager_flags(ON);
    let env = started_by(builder.manager_flags(["--node-status-update-frequency=2s"]), 3).await?;
    for vm in env.vms().await? {
        let node = node_of(&env, &vm).await?.ok_or_else(no_node)?;
        let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
        let got =
            (label("node.kubernetes.io/instance-type"), label(labels::ZONE), label("topology.kubernetes.io/region"));
        assert_eq!(got, ("small".to_owned(), env.namespace().to_owned(), "here".to_owned()));
        assert_eq!(label("failure-domain.beta.kubernetes.io/zone"), env.namespace());
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        assert_eq!((id.as_deref(), has_taint(&node, taints::UNINITIALIZED)), (Some(vm.provider_id.as_str()), false));
        let wanted = [("Hostname", &vm.node_name), ("InternalIP", &vm.address)];
        assert_eq!(addresses(&node), wanted.map(|(kind, address)| (kind.to_owned(), address.clone())).into());
    }
    check_untainted(&env)?;
    if env.cluster().control_plane().is_some() {
        check_writes(&env, 2).await?;
    }
    addresses_follow_the_vm(&env).await?;
    env.end().await
}

async fn addresses_follow_the_vm(env: &Environment) -> TestResult {
    let vm = env.vms().await?.swap_remove(0);
    let with = |address: &str| Address { kind: "ExternalIP".to_owned(), address: address.to_owned() };
    let order = |addresses: Option<Vec<Address>>| AddressOrder { addresses };
    env.cloud().addresses(&vm.id, &order(Some(vec![with("198.51.100.7")]))).await?;
    let shows = async |address: &str| {
        let node = node_of(env, &vm).await?.ok_or_else(no_node)?;
        Ok(addresses(&node).get("ExternalIP").is_some_and(|known| known == address))
    };
    env.wait_for("the node to show another address", async || shows("198.51.100.7").await).await?;
    env.cloud().addresses(&vm.id, &order(Some(vec![]))).await?;
    let before = gets(env).await?;
    // Each machine is asked about once in two seconds.
    env.wait_for("several answers without an address", async || Ok(gets(env).await? >= before + 12)).await?;
    ensure(shows("198.51.100.7").await?, || "an empty list took the addresses".to_owned())
}

async fn gets(env: &Environment) -> TestResult<u64> {
    calls(env, "get").await
}

async fn calls(env: &Environment, operation: &str) -> TestResult<u64> {
    Ok(env.cloud().stats().await?.calls.get(operation).map(|codes| codes.values().sum()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_vm_taints_its_node_and_one_that_is_gone_takes_it_along() -> TestResult {
    let env = started("cloud-gone", 5).await?;
    let stopped = env.vms().await?.swap_remove(0);
    env.cloud().kill(&stopped.id).await?;
    env.wait_for("the node of the stopped VM to be tainted", async || {
        Ok(node_of(&env, &stopped).await?.is_some_and(|node| has_taint(&node, taints::SHUTDOWN)))
    })
    .await?;
    env.cloud().start(&stopped.id).await?;
    env.wait_for("the taint to go once the node is ready", async || {
        let node = node_of(&env, &stopped).await?;
        Ok(node.is_some_and(|node| waits::is_ready(&node) && !has_taint(&node, taints::SHUTDOWN)))
    })
    .await?;

    let mark = env.machines().mark();
    let gone = env.vms().await?.swap_remove(1);
    env.cloud().delete(&gone.id).await?;
    env.wait_for_machines("the machine without a VM to go", |machines| !machines.contains_key(&gone.name)).await?;
    env.wait_for_running(5).await?;
    env.wait_for("its node to go", async || Ok(node_of(&env, &gone).await?.is_none())).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1), "one replacement");
    // The VM was deleted by others, which is no fault of the manager.
    env.end_unevaluated().await
}

/// Expired credentials say nothing about VMs, and neither does a list that is empty although it reports to be complete: of sixty nodes, of
/// which forty are not ready, none goes, and no machine reports that its VM is missing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn no_node_goes_for_an_answer_that_proves_nothing() -> TestResult {
    let builder = Environment::builder("cloud-kept").manager_flags(ON);
    let env = started_by(builder.manager_flags(["--machine-safety-orphan-vms-period=1s"]), 60).await?;
    let expired = Effect::Error { code: Code::Unauthenticated, message: None, applied: false };
    let vms = env.vms().await?;
    let unhealthy = &vms[..40];
    for fault in
        [FaultOrder::always(FaultOperation::Any, expired), FaultOrder::always(FaultOperation::List, Effect::ListEmpty)]
    {
        let (before, lists) = (gets(&env).await?, calls(&env, "list").await?);
        env.cloud().fault(&fault).await?;
        for vm in unhealthy {
            env.cloud().kubelet(&vm.id, &KubeletOrder::NotReady).await?;
        }
        // Once about each, and again about one.
        env.wait_for("the provider to have been asked", async || Ok(gets(&env).await? > before + 40)).await?;
        env.wait_for("several lists", async || Ok(calls(&env, "list").await? >= lists + 3)).await?;
        for vm in &vms {
            let node = node_of(&env, vm).await?.ok_or_else(no_node)?;
            ensure(node.metadata.deletion_timestamp.is_none(), || format!("{fault:?}: a node is being deleted"))?;
        }
        let is_missing = |machine: &Machine| reports_missing_vm(machine);
        let reports = env.machines().current().values().filter(|machine| is_missing(machine)).count();
        ensure(reports == 0, || format!("{fault:?}: {reports} machines report that their VM is missing"))?;
        env.cloud().clear_faults().await?;
        for vm in unhealthy {
            env.cloud().kubelet(&vm.id, &KubeletOrder::Ready).await?;
        }
        env.wait_for_running(60).await?;
    }
    env.end().await
}

/// Somebody removes a machine by force. Its VM is left, and its Node, which is not ready: no list that is refused or empty takes the Node
/// away, and complete ones do once the VM is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_machine_goes_by_lists_that_prove_themselves() -> TestResult {
    let builder = Environment::builder("cloud-lost").manager_flags(ON);
    let builder = builder.manager_flags(["--machine-safety-orphan-vms-period=1s", "--orphan-vms-dry-run"]);
    let env = started_by(builder, 3).await?;
    let lost = env.vms().await?.swap_remove(0);
    becomes_unhealthy(&env, &lost).await?;
    let (hangs, matching) =
        (Effect::Hang { applied: false }, FaultMatch { machine: Some(lost.name.clone()), ..FaultMatch::default() });
    env.cloud().fault(&FaultOrder { matching, ..FaultOrder::always(FaultOperation::Delete, hangs) }).await?;
    env.kubectl(&format!("delete machine {} --wait=false", lost.name)).await?;
    env.release(&lost.name).await?;
    env.wait_for_machines("the machine to be gone", |machines| !machines.contains_key(&lost.name)).await?;
    env.wait_for_running(3).await?;

    let expired = Effect::Error { code: Code::Unauthenticated, message: None, applied: false };
    for effect in [expired, Effect::ListEmpty] {
        let before = calls(&env, "list").await?;
        env.cloud().fault(&FaultOrder::always(FaultOperation::List, effect.clone())).await?;
        // Two mark a Node, if they are a grace apart.
        env.wait_for("several lists", async || Ok(calls(&env, "list").await? >= before + 5)).await?;
        let node = node_of(&env, &lost).await?.ok_or_else(no_node)?;
        let is_kept = node.metadata.deletion_timestamp.is_none();
        ensure(is_kept && !node.annotations().contains_key(annotations::VM_MISSING), || {
            format!("{effect:?}: {node:?}")
        })?;
    }
    env.cloud().clear_faults().await?;
    env.cloud().delete(&lost.id).await?;
    env.wait_for("the node to go", async || Ok(node_of(&env, &lost).await?.is_none())).await?;
    env.end_unevaluated().await
}

/// A node that never had a machine, as that of a control plane, is initialized by the id that its kubelet was given. One whose id nobody
/// knows stays as it is, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_had_a_machine_is_initialized_by_its_id() -> TestResult {
    let env = started("cloud-unowned", 1).await?;
    let make = async |name: &str| {
        let name = format!("{}-{name}", env.namespace());
        let node = NodeTemplate { external_cloud_provider: true, ..NodeTemplate::default() };
        let (zone, region) = (Some(env.namespace().to_owned()), Some("here".to_owned()));
        let order = CreateVm {
            token: name.clone(),
            name,
            node,
            zone,
            region,
            size: Some("large".to_owned()),
            ..CreateVm::default()
        };
        let vm = env.cloud().create(&order).await?;
        env.wait_for("the node of the VM", async || Ok(node_of(&env, &vm).await?.is_some())).await?;
        TestResult::Ok(vm)
    };
    let (known, unknown) = (make("plane").await?, make("stray").await?);
    for (vm, id) in [(&known, known.provider_id.as_str()), (&unknown, "elsewhere:///vm-1")] {
        let patch = json!({"spec": {"providerID": id}});
        let nodes = Api::<Node>::all(env.target_client());
        nodes.patch(&vm.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    env.wait_for("the node to be initialized", async || {
        Ok(node_of(&env, &known).await?.is_some_and(|node| is_initialized(&node)))
    })
    .await?;
    let node = node_of(&env, &known).await?.ok_or_else(no_node)?;
    let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
    let got = (label("node.kubernetes.io/instance-type"), label(labels::ZONE), label("topology.kubernetes.io/region"));
    assert_eq!(got, ("large".to_owned(), env.namespace().to_owned(), "here".to_owned()));
    assert_eq!(addresses(&node).get("InternalIP"), Some(&known.address));
    ensure(node.metadata.finalizers.is_none(), || "a node without a machine has a finalizer".to_owned())?;
    check_untainted(&env)?;

    let events = Api::<Event>::namespaced(env.target_client(), "default");
    let params =
        ListParams::default().fields(&format!("reason=NodeNotInitialized,involvedObject.name={}", unknown.node_name));
    env.wait_for("the other node to say why not", async || {
        let texts = events.list(&params).await?.items.into_iter().filter_map(|event| event.message);
        Ok(texts.into_iter().any(|text| text.contains("elsewhere:///vm-1")))
    })
    .await?;
    let stray = node_of(&env, &unknown).await?.ok_or_else(no_node)?;
    ensure(has_taint(&stray, taints::UNINITIALIZED), || "an unknown node was untainted".to_owned())?;
    // VMs without a machine are no fault of the manager.
    env.end_unevaluated().await
}

/// The provider never answers about one VM: its machine waits, and many others come, are initialized, and lose theirs meanwhile.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn a_provider_that_is_silent_about_one_vm_delays_no_other() -> TestResult {
    const OTHERS: u32 = 200;
    let env = started("cloud-silent", 1).await?;
    let silent = env.vms().await?.swap_remove(0);
    let matching = FaultMatch { machine: Some(silent.name.clone()), ..FaultMatch::default() };
    let hangs = Effect::Hang { applied: false };
    env.cloud().fault(&FaultOrder { matching, ..FaultOrder::always(FaultOperation::Any, hangs) }).await?;
    becomes_unhealthy(&env, &silent).await?;

    env.scale("a", OTHERS + 1).await?;
    let count = usize::try_from(OTHERS)?;
    let machines = env
        .wait_for_machines("all others to run", |machines| {
            machines.values().filter(|machine| *machine.phase() == MachinePhase::Running).count() == count
        })
        .await?;
    let vms = env.vms().await?;
    for name in machines.keys().filter(|name| **name != silent.name) {
        let vm = vms.iter().find(|vm| vm.name == *name).ok_or_else(|| Failure::new("a machine has no VM"))?;
        let node = node_of(&env, vm).await?.ok_or_else(no_node)?;
        ensure(is_initialized(&node), || format!("node {} is not initialized", node.name_any()))?;
    }
    let gone = vms.into_iter().find(|vm| vm.name != silent.name).ok_or_else(no_node)?;
    env.cloud().delete(&gone.id).await?;
    env.wait_for("the node of a deleted VM to go", async || Ok(node_of(&env, &gone).await?.is_none())).await?;
    let node = node_of(&env, &silent).await?.ok_or_else(no_node)?;
    ensure(node.metadata.deletion_timestamp.is_none(), || "the node of the silent VM is being deleted".to_owned())?;
    env.scale("a", 1).await?;
    // The unhealthy machine goes first, and hangs.
    env.wait_for_machines("the others to go", |machines| machines.len() <= 2 && machines.contains_key(&silent.name))
        .await?;
    env.cloud().clear_faults().await?;
    env.wait_for_running(1).await?;
    env.end_unevaluated().await
}

/// Forty of sixty VMs are deleted by others, two thirds of their zone: their machines are replaced, and of the nodes none goes while most
/// are not ready, then a tenth in five minutes, by one controller alone. No node of a VM that is left goes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn the_nodes_of_most_vms_of_a_zone_do_not_go_at_once() -> TestResult {
    let env = started("cloud-most", 60).await?;
    let vms = env.vms().await?;
    let (lost, kept) = vms.split_at(40);
    let before = env.requests().await?.entries().len();
    for vm in lost {
        env.cloud().delete(&vm.id).await?;
    }
    let is_left = |machines: &State<Machine>| lost.iter().filter(|vm| machines.contains_key(&vm.name)).count();
    for most in [30, 20, 10, 0] {
        let what = format!("the machines without VMs to be replaced but {most}");
        env.wait_for_machines(&what, |machines| is_left(machines) <= most).await?;
    }
    let count_running = |machines: &State<Machine>| {
        machines.values().filter(|machine| *machine.phase() == MachinePhase::Running).count()
    };
    env.wait_for_machines("sixty machines to run", |machines| count_running(machines) == 60).await?;
    let deletions = async || {
        let requests = env.requests_since(before).await?;
        let is_deletion = |it: &&Entry| it.resource == "nodes" && it.verb == "delete" && it.code < 300;
        TestResult::Ok(requests.entries().iter().filter(is_deletion).cloned().collect::<Vec<_>>())
    };
    env.wait_for("nodes to go once most of the zone is ready", async || Ok(!deletions().await?.is_empty())).await?;
    let deletions = deletions().await?;
    let names: BTreeSet<_> = deletions.iter().map(|it| it.name.as_str()).collect();
    // A tenth of the hundred that there are by now.
    ensure(names.len() <= 10, || format!("{} nodes go within five minutes: {names:?}", names.len()))?;
    ensure(deletions.iter().all(|it| it.user_agent.contains("(node-lifecycle)")), || format!("{deletions:?}"))?;
    let held = env.metric("node_deletion_permits_total{result=\"held\"}").await?.unwrap_or_default();
    ensure(held > 0.0, || "no node was held".to_owned())?;
    for vm in kept {
        let node = node_of(&env, vm).await?.filter(|node| node.metadata.deletion_timestamp.is_none());
        ensure(node.is_some(), || format!("the node of VM {} goes, which exists", vm.name))?;
    }
    env.end_unevaluated().await
}
