//! Another namespace with the same names and the same cluster in its class, which a manager of its own serves.

use std::collections::BTreeMap;

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use nodewright_api::{Machine, MachineClass, MachineSet};
use nodewright_e2e_lab::{
    control_plane::ControlPlane,
    devcluster::{ManagerOptions, ManagerProcess},
};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
use serde_json::{Value, json};

/// A namespace with copies of the class `small` and of the only MachineSet of an environment, ledger included.
struct Neighbour {
    namespace: String,
    sets: Api<MachineSet>,
    machines: Api<Machine>,
}

fn copied(object: &impl serde::Serialize) -> TestResult<Value> {
    let mut object = serde_json::to_value(object)?;
    let metadata = &object["metadata"];
    object["metadata"] =
        json!({"name": metadata["name"], "labels": metadata["labels"], "annotations": metadata["annotations"]});
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    Ok(object)
}

impl Neighbour {
    async fn beside(env: &Environment) -> TestResult<Self> {
        let namespace = format!("{}-copy", env.namespace());
        env.kubectl(&format!("create namespace {namespace}")).await?;
        let neighbour = Self {
            sets: Api::namespaced(env.client(), &namespace),
            machines: Api::namespaced(env.client(), &namespace),
            namespace,
        };
        let class = Api::<MachineClass>::namespaced(env.client(), env.namespace()).get("small").await?;
        let classes: Api<MachineClass> = Api::namespaced(env.client(), &neighbour.namespace);
        classes.create(&PostParams::default(), &serde_json::from_value(copied(&class)?)?).await?;
        let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
        let set = sets.list(&ListParams::default()).await?.items.pop().ok_or_else(|| Failure::new("no set"))?;
        neighbour.sets.create(&PostParams::default(), &serde_json::from_value(copied(&set)?)?).await?;
        Ok(neighbour)
    }

    fn options(&self, env: &Environment) -> ManagerOptions {
        let options = env.manager_options("neighbour", false, &["--provider-medium-retry=1s".to_owned()]);
        // The account of the environment's manager has no rights in another namespace.
        ManagerOptions {
            namespace: self.namespace.clone(),
            control_kubeconfig: env.cluster().kubeconfig().to_owned(),
            target_kubeconfig: Some(env.target().kubeconfig().to_owned()),
            ..options
        }
    }

    /// Waits until each of the copied set's Machines says why it takes no VM. Returns what they say, by their names.
    async fn wait_for_reason(&self, env: &Environment, reason: &str) -> TestResult<BTreeMap<String, String>> {
        let mut reported = BTreeMap::new();
        env.wait_for(&format!("{reason} on the copies"), async || {
            let machines = self.machines.list(&ListParams::default()).await?.items;
            let said = |machine: &Machine| {
                let conditions = &machine.status.as_ref()?.conditions;
                let said = conditions.iter().find(|it| it.type_ == "InstanceProvisioned")?;
                let is_said = said.reason.as_deref() == Some(reason);
                is_said.then(|| (machine.name_any(), said.message.clone().unwrap_or_default()))
            };
            reported = machines.iter().filter_map(said).collect();
            Ok(reported.len() == 3)
        })
        .await?;
        Ok(reported)
    }

    /// Deletes the copied set, and waits until nothing is left of it.
    async fn remove(&self, env: &Environment) -> TestResult {
        for set in self.sets.list(&ListParams::default()).await?.items {
            self.sets.delete(&set.name_any(), &DeleteParams::default()).await?;
        }
        env.wait_for("the end of the copies", async || {
            let machines = self.machines.list(&ListParams::default()).await?.items;
            Ok(machines.is_empty() && self.sets.list(&ListParams::default()).await?.items.is_empty())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_copied_with_its_ledger_into_another_namespace_takes_no_vm_and_deletes_none() -> TestResult {
    let env = Environment::start("neighbour").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let machines = env.wait_for_running(3).await?;
    let vms: BTreeMap<_, _> = machines.values().map(|it| (it.name_any(), it.spec.provider_id.clone())).collect();
    let before = env.cloud().stats().await?;

    let neighbour = Neighbour::beside(&env).await?;
    let mut manager = ManagerProcess::start(neighbour.options(&env)).await?;
    let reported = neighbour.wait_for_reason(&env, "VMNotOwned").await?;
    for (name, text) in &reported {
        let id = vms.get(name).ok_or_else(|| Failure::new(format!("{name} is not the name of a machine")))?;
        ensure(text.contains(id) && text.contains(&format!("{}/{name}", env.namespace())), || text.clone())?;
    }
    neighbour.remove(&env).await?;
    manager.terminate().await?;
    env.remove_namespace(&neighbour.namespace).await?;

    let after = env.wait_for_running(3).await?;
    let kept: BTreeMap<_, _> = after.values().map(|it| (it.name_any(), it.spec.provider_id.clone())).collect();
    ensure(kept == vms, || format!("{vms:?} became {kept:?}"))?;
    let now = env.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (before.created, before.deleted), "no VM was made and none was deleted");
    env.end().await
}

/// The rights of a manager in one namespace, and on the target cluster: not to list Machines elsewhere.
async fn narrow_rights(env: &Environment, namespace: &str, user: &str) -> TestResult {
    let role = |kind: &str, name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules});
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let cluster = json!([
        {"apiGroups": ["", "policy", "storage.k8s.io", "apps"],
         "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"]},
        {"nonResourceURLs": ["*"], "verbs": ["get"]},
    ]);
    let binding = |kind: &str, role: &str, name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"), "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
    };
    let in_namespace = |mut object: Value| {
        object["metadata"]["namespace"] = namespace.into();
        object
    };
    env.apply_to(namespace, &in_namespace(role("Role", "narrow", all))).await?;
    env.apply_to(namespace, &in_namespace(binding("Role", "narrow", "narrow"))).await?;
    env.apply_to(namespace, &role("ClusterRole", user, cluster)).await?;
    env.apply_to(namespace, &binding("ClusterRole", user, user)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_list_machines_everywhere_no_vm_is_adopted_and_the_machine_says_what_to_grant()
-> TestResult {
    let env = Environment::start("narrow").await?;
    let Some(plane) = env.cluster().control_plane() else { return env.end_unevaluated().await };
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    let before = env.cloud().stats().await?;

    let neighbour = Neighbour::beside(&env).await?;
    let user = format!("narrow-{}", env.namespace());
    narrow_rights(&env, &neighbour.namespace, &user).await?;
    let mut manager = start_as(plane, &user, neighbour.options(&env)).await?;
    let reported = neighbour.wait_for_reason(&env, "VMOwnerUnknown").await?;
    let says = |text: &String| text.contains("list machines in all namespaces") && text.contains("nodewright-machines");
    ensure(reported.values().all(says), || format!("{reported:?}"))?;

    // With the right it is known, and so the copies go without the VMs.
    let grant = format!("create clusterrole {user}-list --verb=list --resource=machines.machine.sapcloud.io");
    env.kubectl(&grant).await?;
    env.kubectl(&format!("create clusterrolebinding {user}-list --clusterrole={user}-list --user={user}")).await?;
    neighbour.wait_for_reason(&env, "VMNotOwned").await?;
    neighbour.remove(&env).await?;
    manager.terminate().await?;
    env.remove_namespace(&neighbour.namespace).await?;
    for name in [user.clone(), format!("{user}-list")] {
        env.kubectl(&format!("delete clusterrole,clusterrolebinding {name}")).await?;
    }
    env.wait_for_running(3).await?;
    let now = env.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (before.created, before.deleted), "no VM was made and none was deleted");
    env.end().await
}

async fn start_as(plane: &ControlPlane, user: &str, options: ManagerOptions) -> TestResult<ManagerProcess> {
    let kubeconfig = plane.kubeconfig_for(user, &[])?;
    let options =
        ManagerOptions { control_kubeconfig: kubeconfig.clone(), target_kubeconfig: Some(kubeconfig), ..options };
    Ok(ManagerProcess::start(options).await?)
}

/// A user retires the ordinals of all machines of a set, whose deployment allows none to be missing.
#[tokio::test(flavor = "multi_thread")]
async fn machines_that_an_edited_ledger_retires_are_replaced_within_the_budget() -> TestResult {
    const LEDGER: &str = "nodewright.dev/ledger";
    let env = Environment::start("edited").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let first = env.wait_for_running(3).await?;
    let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    let set = sets.list(&ListParams::default()).await?.items.pop().ok_or_else(|| Failure::new("no set"))?;
    let ledger = set.annotations().get(LEDGER).cloned().unwrap_or_default();
    let seed = ledger.split(';').next().unwrap_or_default().to_owned();

    // It is refused with a text, and nothing happens.
    let edit = async |ledger: &str| {
        let name = set.name_any();
        env.kubectl(&format!("annotate machineset {name} --overwrite {LEDGER}={ledger}")).await
    };
    let reported = async |part: &str| {
        let set = sets.get(&set.name_any()).await?;
        let conditions = set.status.unwrap_or_default().conditions;
        let said = |reason: &str, text: &str| reason == "InvalidLedger" && text.contains(part);
        TestResult::Ok(conditions.iter().any(|condition| said(&condition.reason, &condition.message)))
    };
    edit(&format!("{seed};0-4000000000")).await?;
    env.wait_for("the reason", async || reported("goes beyond 14348906, the last ordinal").await).await?;
    edit(&ledger).await?;

    edit(&format!("{seed};0-5")).await?;
    let (mut fewest, mut most, mut is_reported) = (usize::MAX, 0, false);
    env.wait_for("other machines", async || {
        let machines = env.machines().current();
        let works = |machine: &Machine| {
            machine.phase().to_string() == "Running" && machine.metadata.deletion_timestamp.is_none()
        };
        let working = machines.values().filter(|machine| works(machine)).count();
        let living = machines.values().filter(|machine| machine.metadata.deletion_timestamp.is_none()).count();
        (fewest, most) = (fewest.min(working), most.max(living));
        is_reported |= reported("machines that work and are needed").await?;
        Ok(working == 3 && machines.len() == 3 && machines.keys().all(|uid| !first.contains_key(uid)))
    })
    .await?;
    ensure(fewest >= 3 && most <= 4, || format!("there were {fewest} to {most} machines"))?;
    ensure(is_reported, || "the set did not say so".to_owned())?;
    env.end().await
}
