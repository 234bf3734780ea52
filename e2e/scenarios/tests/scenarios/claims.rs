//! A claim is no proof: whatever objects name, the manager touches only what the provider has proven.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use nodewright_api::Machine;
use nodewright_e2e_cloud::CreateVm;
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, has_mcm_crds, skip_on_external_cluster};
use serde_json::{Value, json};

/// Nothing wrong may happen for this long.
const QUIET: Duration = Duration::from_secs(5);

fn machines(env: &Environment) -> Api<Machine> {
    Api::namespaced(env.client(), env.namespace())
}

fn nodes(env: &Environment) -> Api<Node> {
    Api::all(env.target_client())
}

async fn create(env: &Environment, machine: Value) -> TestResult<Machine> {
    Ok(machines(env).create(&PostParams::default(), &serde_json::from_value(machine)?).await?)
}

/// A Machine of the scenario's class without an owner.
fn claim(name: &str, provider_id: &str, labels: &Value) -> Value {
    let class = json!({"kind": "MachineClass", "name": "small"});
    json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": name, "labels": labels},
        "spec": {"class": class, "providerID": provider_id}})
}

/// A Node that belongs to no Machine.
async fn stray(env: &Environment, name: &str, provider_id: &str) -> TestResult<Node> {
    let spec = if provider_id.is_empty() { json!({}) } else { json!({"providerID": provider_id}) };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec});
    Ok(nodes(env).create(&PostParams::default(), &serde_json::from_value(node)?).await?)
}

/// Checks that no Machine has written to a Node. (The cluster itself notes that it has no kubelet.)
async fn ensure_untouched(env: &Environment, node: &str) -> TestResult {
    let node = nodes(env).get(node).await?;
    let is_ours = |key: &String| key.contains("machine") || key.contains("gardener");
    let touched = !node.finalizers().is_empty()
        || node.labels().keys().chain(node.annotations().keys()).any(is_ours)
        || node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
        || node.metadata.deletion_timestamp.is_some();
    ensure(!touched, || format!("the node was touched: {node:?}"))
}

fn condition<'a>(machine: &'a Machine, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut all = machine.status.as_ref()?.conditions.iter();
    let found = all.find(|condition| condition.type_ == kind)?;
    Some((&found.status, found.reason.as_deref().unwrap_or_default(), found.message.as_deref().unwrap_or_default()))
}

async fn wait_for_condition(env: &Environment, name: &str, kind: &str, reason: &str) -> TestResult<String> {
    let is_so = |machine: &Arc<Machine>| condition(machine, kind).is_some_and(|(_, known, _)| known == reason);
    let what = format!("{reason} on {name}");
    let found = env.wait_for_machines(&what, |all| all.values().any(|it| it.name_any() == name && is_so(it))).await?;
    let machine = found.values().find(|machine| machine.name_any() == name);
    Ok(machine.and_then(|machine| condition(machine, kind)).map(|(_, _, text)| text.to_owned()).unwrap_or_default())
}

async fn delete(env: &Environment, name: &str) -> TestResult {
    machines(env).delete(name, &DeleteParams::default()).await?;
    env.wait_for(&format!("the end of {name}"), async || Ok(machines(env).get_opt(name).await?.is_none())).await
}

/// The number of writes to the Machines of these names during a while.
async fn writes_in_a_while(env: &Environment, names: [&str; 2]) -> TestResult<usize> {
    let versions = async || -> TestResult<Vec<i64>> {
        let mut all = vec![];
        for name in names {
            all.push(machines(env).get(name).await?.resource_version().unwrap_or_default().parse()?);
        }
        Ok(all)
    };
    let before = versions().await?;
    tokio::time::sleep(QUIET).await;
    Ok(before.iter().zip(versions().await?).filter(|(before, after)| *before != after).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_machine_harms_neither() -> TestResult {
    let env = Environment::start("copies").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let machine = env.wait_for_running(2).await?.into_values().next().ok_or_else(|| Failure::new("no machine"))?;
    let (name, id) = (machine.name_any(), machine.spec.provider_id.clone());
    let calls = env.cloud().stats().await?;
    for labels in [json!(machine.labels()), json!({})] {
        create(&env, claim("copy", &id, &labels)).await?;
        for (of, other) in [(name.as_str(), "copy"), ("copy", name.as_str())] {
            let text = wait_for_condition(&env, of, "ConfigurationValid", "ProviderIDNotUnique").await?;
            ensure(text.contains(other), || format!("{of} does not name {other}: {text}"))?;
        }
        let text = wait_for_condition(&env, "copy", "InstanceProvisioned", "ProviderIDMismatch").await?;
        ensure(text.contains(&name), || text)?;
        ensure(writes_in_a_while(&env, [&name, "copy"]).await? == 0, || "they write for ever".to_owned())?;
        ensure(machines(&env).get("copy").await?.owner_references().is_empty(), || "it was adopted".to_owned())?;
        delete(&env, "copy").await?;
        env.wait_for_running(2).await?;
        let is_well = |machine: &Machine| condition(machine, "ConfigurationValid").is_none();
        env.wait_for_machines("machines in order", |all| all.values().all(|machine| is_well(machine))).await?;
    }
    // Both at once: neither waits for the other.
    create(&env, claim("copy", &id, &json!({}))).await?;
    wait_for_condition(&env, &name, "ConfigurationValid", "ProviderIDNotUnique").await?;
    let now = env.cloud().stats().await?;
    ensure((now.created, now.deleted) == (calls.created, calls.deleted), || format!("{now:?}"))?;
    machines(&env).delete(&name, &DeleteParams::default()).await?;
    delete(&env, "copy").await?;
    env.wait_for("the machine's own end", async || Ok(machines(&env).get_opt(&name).await?.is_none())).await?;
    env.wait_for_running(2).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_machine_merely_names_is_left_alone() -> TestResult {
    let env = Environment::start("claims").await?;
    env.apply_class("small").await?;
    let name = |kind: &str| format!("{kind}-{}", env.namespace());

    // The providerID of an unmanaged Node.
    stray(&env, &name("stray"), "simulated:///nobodys").await?;
    create(&env, claim("names-a-node", "simulated:///nobodys", &json!({}))).await?;
    // The label of a Node without a providerID, and a class that does not exist.
    stray(&env, &name("cp-1"), "").await?;
    let mut classless = claim("names-cp-1", "", &json!({"node": name("cp-1")}));
    classless["spec"]["class"]["name"] = "missing".into();
    create(&env, classless).await?;
    // The VM of another machine of the same cluster, with its Node.
    let tags = |machine: &str| {
        BTreeMap::from([("cluster".to_owned(), env.namespace().to_owned()), ("machine".to_owned(), machine.to_owned())])
    };
    let order = CreateVm { name: name("vm"), token: name("token"), tags: tags("another"), ..CreateVm::default() };
    let vm = env.cloud().create(&order).await?;
    create(&env, claim("names-a-vm", &vm.provider_id, &json!({"node": vm.node_name}))).await?;

    wait_for_condition(&env, "names-a-node", "InstanceProvisioned", "NotFound").await?;
    wait_for_condition(&env, "names-cp-1", "ConfigurationValid", "ClassNotFound").await?;
    let text = wait_for_condition(&env, "names-a-vm", "InstanceProvisioned", "ProviderIDMismatch").await?;
    ensure(text.contains("another"), || text)?;
    let joined = async || Ok(nodes(&env).get_opt(&vm.node_name).await?.is_some());
    env.wait_for("the node of the other VM", joined).await?;
    tokio::time::sleep(QUIET).await;
    for machine in ["names-a-node", "names-cp-1", "names-a-vm"] {
        delete(&env, machine).await?;
    }
    for node in [&name("stray"), &name("cp-1"), &vm.node_name] {
        ensure_untouched(&env, node).await?;
    }
    let left = env.cloud().get(&vm.id).await?.ok_or_else(|| Failure::new("the VM was deleted"))?;
    ensure(left.state == vm.state || left.state == nodewright_e2e_cloud::VmState::Running, || format!("{left:?}"))?;

    env.cloud().delete(&vm.id).await?;
    for node in [&name("stray"), &name("cp-1"), &vm.node_name] {
        nodes(&env).delete(node, &DeleteParams::default()).await?;
    }
    env.end_unevaluated().await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_nodes_with_one_provider_id_the_named_one_counts() -> TestResult {
    let env = Environment::start("twins").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?;
    let twin = format!("aaa-{}", env.namespace());
    stray(&env, &twin, &machine.spec.provider_id).await?;
    tokio::time::sleep(QUIET).await;
    ensure_untouched(&env, &twin).await?;
    nodes(&env).delete(&twin, &DeleteParams::default()).await?;
    tokio::time::sleep(QUIET).await;
    let after = env.only_machine()?;
    ensure(after.uid() == machine.uid() && after.metadata.deletion_timestamp.is_none(), || format!("{after:?}"))?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_class_leaks_no_vm() -> TestResult {
    let env = Environment::start("edited").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let name = env.only_machine()?.name_any();
    let set_cluster = async |cluster: &str| {
        let patch = json!({"providerSpec": {"cluster": cluster}});
        env.kubectl(&format!("patch machineclass small --type=merge --patch={patch}")).await
    };
    set_cluster("another").await?;
    env.scale("a", 0).await?;
    let text = wait_for_condition(&env, &name, "InstanceTerminated", "FailedPrecondition").await?;
    ensure(text.contains("providerSpec.cluster"), || text)?;
    tokio::time::sleep(QUIET).await;
    ensure(machines(&env).get_opt(&name).await?.is_some(), || "the machine is gone, and its VM is not".to_owned())?;
    set_cluster(env.namespace()).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_was_edited_while_no_webhook_looked_can_be_set_back() -> TestResult {
    if skip_on_external_cluster("class-set-back", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    let env = Environment::builder("set-back").with_webhooks().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let set_cluster = async |cluster: &str| {
        let patch = json!({"providerSpec": {"cluster": cluster}});
        env.kubectl(&format!("patch machineclass small --type=merge --patch={patch}")).await
    };
    let is_refused = async |cluster: &str| {
        let refusal = set_cluster(cluster).await.err().map(|error| error.to_string()).unwrap_or_default();
        ensure(refusal.contains("providerSpec.cluster: Forbidden"), || format!("{cluster}: {refusal:?}"))
    };
    is_refused("another").await?;

    let mut stopped = env.manager().await?;
    stopped.terminate().await?;
    for kind in ["mutating", "validating"] {
        let name = format!("nodewright-{}", env.namespace());
        env.kubectl(&format!("delete {kind}webhookconfiguration {name}")).await?;
    }
    let manager = ManagerProcess::start(env.manager_options("without-webhooks", false, &[])).await?;
    set_cluster("another").await?;
    // A VM created now could not be found after the class is set back.
    env.scale("a", 2).await?;
    let is_stopped = |machine: &Machine| {
        let said = condition(machine, "ConfigurationValid");
        said.is_some_and(|(_, reason, text)| reason == "ClassIdentityChanged" && text.contains("providerSpec.cluster"))
    };
    env.wait_for_machines("a creation that waits", |all| all.values().any(|machine| is_stopped(machine))).await?;
    ensure(env.vms().await?.len() == 1, || "a VM was made that will not be found".to_owned())?;
    drop(manager);

    stopped.start_again().await?;
    drop(stopped);
    is_refused("a-third").await?;
    let forget = env.kubectl("annotate machineclass small nodewright.dev/identity-").await;
    ensure(forget.is_err(), || "the record was dropped, and with it what the class was".to_owned())?;
    set_cluster(env.namespace()).await?;
    env.wait_for_running(2).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_id_that_is_changed_is_not_followed() -> TestResult {
    let env = Environment::start("changed-id").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let all: Vec<_> = env.wait_for_running(2).await?.into_values().collect();
    let (one, other) = (&all[0], &all[1]);
    let patch = json!({"spec": {"providerID": other.spec.provider_id}});
    let patched = machines(&env).patch(&one.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    if !has_mcm_crds() {
        let refusal = patched.err().ok_or_else(|| Failure::new("the change was accepted"))?.to_string();
        ensure(refusal.contains("spec.providerID") && refusal.contains("immutable"), || refusal)?;
        return env.end().await;
    }
    patched?;
    let text = wait_for_condition(&env, &one.name_any(), "ConfigurationValid", "ProviderIDChanged").await?;
    ensure(text.contains(&one.spec.provider_id), || text)?;
    delete(&env, &one.name_any()).await?;
    env.wait_for_running(2).await?;
    let other_vm = other.spec.provider_id.rsplit('/').next().unwrap_or_default();
    ensure(env.cloud().get(other_vm).await?.is_some(), || "the other machine's VM was deleted".to_owned())?;
    let own_node = one.labels().get("node").cloned().unwrap_or_default();
    ensure(nodes(&env).get_opt(&own_node).await?.is_none(), || "its own node has stayed".to_owned())?;
    env.end().await
}
