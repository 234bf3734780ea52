//! machine-controller-manager is stopped at any stage of a creation or a deletion: Nodewright goes on from what it has left. Other
//! scenarios (`make test-mcm`) stop the real one, which is only at some stages for long enough.

mod stages;
mod write;

use std::{collections::BTreeMap, sync::Arc};

use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{Pod, Secret, ServiceAccount},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use nodewright_api::{MachineClass, MachineSet, finalizers, labels};
use nodewright_e2e_cloud::{EventKind, VmState};
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, waits::is_running};
use serde_json::json;

use self::{
    stages::{CREATIONS, DELETIONS, End, Extra},
    write::{Left, by, machines, put},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_machine_controller_manager_leaves_at_any_stage_comes_to_its_end() -> TestResult {
    // A VM that is being deleted is so until the manager has looked at it.
    let env = Environment::builder("left").without_manager().cloud_flags(["--delete-seconds=5"]).start().await?;
    let stages = || CREATIONS.into_iter().chain(DELETIONS);
    let replicas = stages().filter(|stage| stage.end != End::Gone).count();
    let set = create_set(&env, replicas).await?;
    let left = try_join_all(stages().map(|stage| Left::write(&env, &set, stage))).await?;

    let mut manager = ManagerProcess::start(env.manager_options("manager", false, &[])).await?;
    let mut unmet = vec![];
    let ended = env.wait_for("each machine at its end", async || {
        unmet = differences(&env, &left, replicas).await?;
        Ok(unmet.is_empty())
    });
    if let Err(failure) = ended.await {
        return Err(failure.and(&unmet.join("\n")));
    }
    exactly_one_vm_each(&env, &left).await?;
    env.wait_for("Nodewright's tokens to go", async || Ok(tokens(&env).await?.iter().all(|token| token.is_mcms)))
        .await?;
    manager.check()?;
    drop(manager);
    delete_tokens(&env).await?;
    env.end_unevaluated().await
}

/// The class and the set as machine-controller-manager leaves them.
async fn create_set(env: &Environment, replicas: usize) -> TestResult<MachineSet> {
    let accounts: Api<ServiceAccount> = Api::namespaced(env.target_client(), env.namespace());
    env.wait_for("the account of Pods", async || Ok(accounts.get_opt("default").await?.is_some())).await?;
    env.apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "user-data", "finalizers": [finalizers::MACHINE_CONTROLLER]},
        "stringData": {"userData": "join with <<BOOTSTRAP_TOKEN>>"},
    }))
    .await?;
    env.apply(&env.class("small").secret("user-data")).await?;
    let classes: Api<MachineClass> = Api::namespaced(env.client(), env.namespace());
    let held = json!([finalizers::MACHINE_CONTROLLER_MANAGER]);
    put(&classes, "small", |class| class["metadata"]["finalizers"] = held.clone()).await?;
    let name = format!("{}-a-5d8c7", env.namespace());
    let set = json!({
        "metadata": {"name": name, "finalizers": [finalizers::MACHINE_CONTROLLER_MANAGER]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"name": name}},
            "template": {
                "metadata": {"labels": {"name": name}},
                "spec": {"class": {"kind": "MachineClass", "name": "small"}},
            },
        },
    });
    let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    Ok(sets.create(&by("machine-controller-manager"), &serde_json::from_value(set)?).await?)
}

/// What is not yet as it has to be in the end: a line for each stage.
async fn differences(env: &Environment, left: &[Left], replicas: usize) -> TestResult<Vec<String>> {
    let fixture = Fixture::now(env).await?;
    let of_stages = left.iter().filter_map(|left| {
        let difference = match left.stage.end {
            End::Running => fixture.not_running(left),
            End::Gone | End::Replaced => fixture.not_gone(left),
        };
        difference.map(|text| format!("{} ({}): {text}", left.stage.name, left.name))
    });
    let mut all: Vec<_> = of_stages.collect();
    let (machines, vms) = (env.machines().current(), fixture.vms.len());
    let running = machines.values().filter(|machine| is_running(machine)).count();
    if (machines.len(), running, vms) != (replicas, replicas, replicas) {
        all.push(format!("{} machines, {running} run, {vms} VMs: not {replicas}", machines.len()));
    }
    Ok(all)
}

/// What there is besides Machines.
struct Fixture<'a> {
    env: &'a Environment,
    /// Provider IDs and states, by the Machine's name.
    vms: BTreeMap<String, (String, VmState)>,
    pods: Vec<Pod>,
    attachments: Vec<VolumeAttachment>,
    nodes: BTreeMap<String, Arc<k8s_openapi::api::core::v1::Node>>,
}

impl<'a> Fixture<'a> {
    async fn now(env: &'a Environment) -> TestResult<Self> {
        let vms = env.vms().await?.into_iter().map(|vm| (vm.name, (vm.provider_id, vm.state))).collect();
        let all = ListParams::default();
        let pods: Api<Pod> = Api::namespaced(env.target_client(), env.namespace());
        let attachments: Api<VolumeAttachment> = Api::all(env.target_client());
        // Those of other scenarios may be unreadable on purpose.
        let nodes = env.nodes().current();
        let (pods, attachments) = (pods.list(&all).await?.items, attachments.list(&all).await?.items);
        Ok(Self { env, vms, pods, attachments, nodes })
    }

    fn not_running(&self, left: &Left) -> Option<String> {
        let Some(machine) = self.env.machines().current().remove(&left.name) else {
            return Some("the machine is gone".to_owned());
        };
        if machine.uid().as_deref() != Some(&left.uid) {
            return Some("it is another machine".to_owned());
        }
        if !is_running(&machine) {
            return Some(format!("its phase is {}", machine.phase()));
        }
        let expected = (left.vm.as_ref().unwrap_or(&machine.spec.provider_id).clone(), VmState::Running);
        if machine.spec.provider_id != expected.0 || self.vms.get(&left.name) != Some(&expected) {
            let (id, vm) = (&machine.spec.provider_id, self.vms.get(&left.name));
            return Some(format!("it names VM {id}, there is {vm:?}, and it had {:?}", left.vm));
        }
        let node = self.nodes.get(&left.name);
        let is_named = node.is_some_and(|node| node.labels().get(labels::MACHINE_NAME) == Some(&left.name));
        let is_held = node.is_some_and(|node| node.finalizers().iter().any(|it| it == finalizers::NODE));
        (!is_named || !is_held).then(|| format!("its node is {node:?}"))
    }

    fn not_gone(&self, left: &Left) -> Option<String> {
        let of_node = |node: Option<&String>| node == Some(&left.name);
        let parts = [
            ("the machine", self.env.machines().current().contains_key(&left.name)),
            ("its VM", self.vms.contains_key(&left.name)),
            ("its node", self.nodes.contains_key(&left.name)),
            (
                "a pod of its node",
                self.pods.iter().any(|pod| of_node(pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()))),
            ),
            ("an attachment of its node", self.attachments.iter().any(|it| of_node(Some(&it.spec.node_name)))),
        ];
        let there: Vec<_> = parts.into_iter().filter(|(_, is_there)| *is_there).map(|(what, _)| what).collect();
        (!there.is_empty()).then(|| format!("there still is {}", there.join(", ")))
    }
}

/// No Machine got a second VM, and none that was deleted got one at all.
async fn exactly_one_vm_each(env: &Environment, left: &[Left]) -> TestResult {
    let mut created = BTreeMap::<String, usize>::new();
    for event in env.cloud().events(0).await?.into_iter().filter(|event| event.kind == EventKind::CreateAccepted) {
        *created.entry(event.name.unwrap_or_default()).or_default() += 1;
    }
    for left in left {
        let count = created.remove(&left.name).unwrap_or_default();
        let expected = usize::from(left.vm.is_some() || left.stage.end == End::Running);
        ensure(count == expected, || format!("{} had {count} VMs", left.name))?;
    }
    let replaced = left.iter().filter(|left| left.stage.end == End::Replaced).count();
    let counts: Vec<_> = created.values().copied().collect();
    ensure(counts == vec![1; replaced], || format!("the VMs of new machines: {created:?}"))?;
    let names: Vec<_> =
        machines(env).list(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any).collect();
    ensure(created.keys().all(|name| names.contains(name)), || format!("{created:?} of {names:?}"))
}

/// A bootstrap token for a machine of the environment.
struct Token {
    name: String,
    is_mcms: bool,
}

async fn tokens(env: &Environment) -> TestResult<Vec<Token>> {
    let of_type = ListParams::default().fields("type=bootstrap.kubernetes.io/token");
    let all = secrets(env).list(&of_type).await?.items;
    Ok(all
        .into_iter()
        .filter_map(|secret| {
            let description = secret.data.as_ref().and_then(|data| data.get("description"));
            let text = description.map(|text| String::from_utf8_lossy(&text.0)).unwrap_or_default();
            let is_mcms = text.contains("machine-controller-manager");
            text.contains(env.namespace()).then(|| Token { name: secret.name_any(), is_mcms })
        })
        .collect())
}

fn secrets(env: &Environment) -> Api<Secret> {
    Api::namespaced(env.target_client(), "kube-system")
}

/// Deletes machine-controller-manager's tokens, which otherwise stay until they expire. Those of Nodewright are gone.
async fn delete_tokens(env: &Environment) -> TestResult {
    let left = tokens(env).await?;
    ensure(left.iter().all(|token| token.is_mcms), || "a token of Nodewright is left".to_owned())?;
    let all = CREATIONS.iter().chain(&DELETIONS).filter(|stage| stage.extra == Some(Extra::Token)).count();
    ensure(left.len() == all, || format!("{} tokens of machine-controller-manager, not {all}", left.len()))?;
    for token in left {
        secrets(env).delete(&token.name, &DeleteParams::default()).await?;
    }
    Ok(())
}
