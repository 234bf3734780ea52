//! VMs that no machine has, and lists of VMs that are wrong.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::API_VERSION;
use nodewright_e2e_cloud::{Code, CreateVm, Effect, EventKind, FaultOperation, FaultOrder, Vm, VmState};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
use serde_json::json;

/// A pass each second, and one VM in each.
pub(crate) const FLAGS: [&str; 5] = [
    "--machine-safety-orphan-vms-period=1s",
    "--orphan-vms-grace=2s",
    "--orphan-vms-minimum-age=4s",
    "--orphan-vms-per-pass=1",
    "--orphan-vms-vanished-pause=4s",
];
/// So many lists are more than the time of an orphan needs.
const LISTS: u64 = 12;
const DELETED: &str = r#"machine_orphan_vm_deletions_total{result="deleted"}"#;

/// Orders a VM with these tags. It takes so long to boot that it has no Node.
async fn vm(env: &Environment, name: &str, tags: &[(&str, &str)]) -> TestResult<Vm> {
    let tags: BTreeMap<_, _> = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let token = format!("token-of-{name}");
    let order = CreateVm { name: name.to_owned(), token, tags, boot_seconds: Some(3_600.0), ..CreateVm::default() };
    Ok(env.cloud().create(&order).await?)
}

async fn lists(env: &Environment) -> TestResult<u64> {
    Ok(env.cloud().stats().await?.calls.get("list").map(|codes| codes.values().sum()).unwrap_or_default())
}

/// Waits for as many lists as an orphan needs to be deleted.
pub(crate) async fn wait_for_lists(env: &Environment) -> TestResult {
    let before = lists(env).await?;
    env.wait_for("many lists of VMs", async || Ok(lists(env).await? >= before + LISTS)).await
}

/// The ids of the VMs that stay.
async fn staying(env: &Environment) -> TestResult<BTreeSet<String>> {
    Ok(env.vms().await?.into_iter().filter(|vm| vm.state != VmState::Deleting).map(|vm| vm.id).collect())
}

async fn deletions(env: &Environment) -> TestResult<usize> {
    let events = env.cloud().events(0).await?;
    Ok(events.iter().filter(|event| event.kind == EventKind::DeleteAccepted).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_go_and_wrong_lists_cost_no_vm() -> TestResult {
    let env = Environment::builder("orphans").manager_flags(FLAGS).start().await?;
    let cluster = env.namespace();
    env.apply_class("small").await?;
    // A wrong list from the start, and each fault ends when the next one is there. The orphans come first, so that a part of a list
    // has them and no machine's.
    let empty = env.cloud().fault(&FaultOrder::always(FaultOperation::List, Effect::ListEmpty)).await?;
    let mut orphans = vec![];
    for name in ["lost-1", "lost-2", "lost-3"] {
        orphans.push(vm(&env, name, &[("cluster", cluster), ("machine", name)]).await?.id);
    }
    vm(&env, "theirs", &[("cluster", "elsewhere"), ("machine", "theirs")]).await?;
    vm(&env, "untagged", &[("cluster", cluster)]).await?;
    let part = FaultOrder::always(FaultOperation::List, Effect::ListTruncated { items: 3 });
    // It strikes lists of a machine's own VMs as well, and these are shorter.
    let mut former = env.cloud().fault(&part).await?;
    env.cloud().clear_fault(empty.id).await?;
    env.apply(&env.pool("a", 2)).await?;
    let machines = env.wait_for_running(2).await?;
    let all = staying(&env).await?;

    wait_for_lists(&env).await?;
    let refused = Effect::Error { code: Code::Unavailable, message: None, applied: false };
    for wrong in [Effect::ListEmpty, Effect::Garbage, refused] {
        let fault = env.cloud().fault(&FaultOrder::always(FaultOperation::List, wrong)).await?;
        env.cloud().clear_fault(former.id).await?;
        wait_for_lists(&env).await?;
        former = fault;
    }
    // Another cluster's VMs, in none of which a machine of this one is.
    env.apply(&env.class("other").provider("cluster", "elsewhere")).await?;
    ensure(staying(&env).await? == all && deletions(&env).await? == 0, || "a VM was deleted".to_owned())?;
    env.cloud().clear_fault(former.id).await?;

    let name = machines.keys().next().cloned().unwrap_or_default();
    let twin = vm(&env, "twin", &[("cluster", cluster), ("machine", &name)]).await?;
    orphans.push(twin.id);
    let kept: BTreeSet<_> = all.iter().filter(|id| !orphans.contains(id)).cloned().collect();
    env.wait_for("the orphans to go", async || Ok(staying(&env).await? == kept)).await?;
    wait_for_lists(&env).await?;
    ensure(staying(&env).await? == kept, || "another VM was deleted, too".to_owned())?;
    ensure(deletions(&env).await? == orphans.len(), || "a VM was deleted twice".to_owned())?;
    ensure(env.metric(DELETED).await? == Some(4.0), || "the metric does not count them".to_owned())?;
    let events = env.kubectl("get events -o jsonpath={.items[*].reason}").await?;
    ensure(["OrphanVMs", "OrphanVMsKept", "DeletingOrphanVMs"].iter().all(|reason| events.contains(reason)), || {
        events
    })?;
    let now = env.machines().current();
    ensure(now.len() == 2 && now.values().all(|machine| machines.contains_key(&machine.name_any())), || {
        format!("a machine was replaced: {now:?}")
    })?;
    one_at_a_time(&env).await?;
    env.end_unevaluated().await
}

/// Each pass deletes one VM, as the event of the pass says, and passes are a second apart: the time between two answers of the cloud
/// alone depends on the load.
async fn one_at_a_time(env: &Environment) -> TestResult {
    let texts = env.kubectl("get events -o jsonpath={.items[*].message}").await?;
    let passes: Vec<_> = texts.split("deleting ").skip(1).filter(|text| text.starts_with(char::is_numeric)).collect();
    let is_of_one = |pass: &&str| pass.starts_with("1 VM that no machine has:");
    ensure(!passes.is_empty() && passes.iter().all(is_of_one), || format!("two VMs went in one pass: {passes:?}"))?;
    let events = env.cloud().events(0).await?;
    let times: Vec<_> =
        events.iter().filter(|event| event.kind == EventKind::DeleteAccepted).map(|event| event.at).collect();
    let (first, last, seconds) = (times.first(), times.last(), i128::try_from(times.len())? - 2);
    let lasted = first.zip(last).map_or(0, |(first, last)| last.duration_since(*first).as_millis());
    ensure(lasted >= 1_000 * seconds, || format!("there was no list between two deletions: {times:?}"))
}

/// A Machine that was removed by force while no manager ran leaves an orphan; a dry run only says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_reports_orphans_and_keeps_them() -> TestResult {
    let [period, grace, age, _, pause] = FLAGS;
    let flags = [period, grace, age, pause, "--orphan-vms-dry-run"];
    let env = Environment::builder("dry").manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    vm(&env, "lost", &[("cluster", env.namespace()), ("machine", "lost")]).await?;
    let orphans = format!(r#"machine_orphan_vms{{namespace="{}",name="small"}}"#, env.namespace());
    env.wait_for("the metric", async || Ok(env.metric(&orphans).await? == Some(1.0))).await?;
    wait_for_lists(&env).await?;
    let text = env.kubectl("get events -o jsonpath={.items[*].message}").await?;
    ensure(text.contains("--orphan-vms-dry-run"), || text)?;
    ensure(env.vms().await?.len() == 2 && deletions(&env).await? == 0, || "a VM was deleted".to_owned())?;
    env.end_unevaluated().await
}

/// The finalizers of a machine that runs, and has no set, are removed by hand: its VM goes, and its Node after it.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_an_orphaned_vm_goes_after_the_vm() -> TestResult {
    let [period, grace, age, per_pass, pause] = FLAGS;
    let flags = [period, grace, age, per_pass, pause, "--orphaned-node-grace=2s"];
    let env = Environment::builder("bereft").manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    let name = format!("{}-lost", env.namespace());
    let class = json!({"kind": "MachineClass", "name": "small"});
    env.apply(
        &json!({"apiVersion": API_VERSION, "kind": "Machine", "metadata": {"name": name}, "spec": {"class": class}}),
    )
    .await?;
    let machines = env.wait_for_running(2).await?;
    let lost = machines.values().find(|machine| machine.name_any() == name);
    let id = lost.map(|machine| machine.spec.provider_id.clone()).unwrap_or_default();
    let is_of_vm = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(&*id);
    ensure(env.nodes().current().values().any(|node| is_of_vm(node)), || format!("no node of {id}"))?;
    env.manager().await?.terminate().await?;
    env.release(&name).await?;
    env.kubectl(&format!("delete machine {name}")).await?;
    env.manager().await?.start_again().await?;
    env.wait_for("the VM to go", async || Ok(env.vms().await?.iter().all(|vm| vm.provider_id != id))).await?;
    // What has to be done is in an object.
    env.manager().await?.terminate().await?;
    env.manager().await?.start_again().await?;
    env.wait_for("the node to go", async || Ok(!env.nodes().current().values().any(|node| is_of_vm(node)))).await?;
    env.wait_for_running(1).await?;
    env.wait_for("the record to be empty", async || {
        let record = env.kubectl("get machineclass small -o jsonpath={.metadata.annotations}").await?;
        Ok(!record.contains("swept-vms"))
    })
    .await?;
    env.end_unevaluated().await
}

/// Machines without a set, whose finalizers are removed: nobody could tell that from a restored backup.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn machines_that_vanish_while_no_manager_runs_keep_their_vms_for_a_pause_that_restarts_do_not_reset() -> TestResult
{
    // Long enough for two starts of a manager on a slow computer.
    const PAUSE: SignedDuration = SignedDuration::from_secs(90);
    let [period, grace, age, ..] = FLAGS;
    let flags = [period, grace, age, "--orphan-vms-vanished-pause=90s"];
    let env = Environment::builder("vanish").manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    let names = ["lost-1", "lost-2"].map(|name| format!("{}-{name}", env.namespace()));
    for name in &names {
        let class = json!({"kind": "MachineClass", "name": "small"});
        let metadata = json!({"name": name});
        env.apply(
            &json!({"apiVersion": API_VERSION, "kind": "Machine", "metadata": metadata, "spec": {"class": class}}),
        )
        .await?;
    }
    env.wait_for_running(3).await?;
    let mut manager = env.manager().await?;
    manager.terminate().await?;
    let vanished = Timestamp::now();
    for name in &names {
        env.release(name).await?;
        env.kubectl(&format!("delete machine {name}")).await?;
    }
    for _ in 0..2 {
        manager.start_again().await?;
        wait_for_lists(&env).await?;
        ensure(deletions(&env).await? == 0, || "a VM was deleted whose machine may have vanished".to_owned())?;
        manager.terminate().await?;
    }
    let record = env.kubectl("get machineclass small -o jsonpath={.metadata.annotations}").await?;
    let vms = env.vms().await?;
    let lost: Vec<_> = vms.iter().filter(|vm| names.contains(&vm.name)).collect();
    ensure(lost.len() == 2 && lost.iter().all(|vm| record.contains(&vm.provider_id)), || record.clone())?;
    manager.start_again().await?;
    drop(manager);
    env.wait_for("the VMs to go", async || Ok(env.vms().await?.len() == 1)).await?;
    let events = env.cloud().events(0).await?;
    let first = events.iter().find(|event| event.kind == EventKind::DeleteAccepted).map(|event| event.at);
    let kept = first.ok_or_else(|| Failure::new("no VM was deleted"))?.duration_since(vanished);
    ensure(kept >= PAUSE, || format!("they were kept for {kept:#} only"))?;
    env.wait_for("the record to be empty", async || {
        let record = env.kubectl("get machineclass small -o jsonpath={.metadata.annotations}").await?;
        Ok(!record.contains("unexplained-vms"))
    })
    .await?;
    env.end_unevaluated().await
}
