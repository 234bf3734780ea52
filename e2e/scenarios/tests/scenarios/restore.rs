//! A namespace is lost and restored from a backup: new UIDs, no owners, no finalizers, no status.

use std::collections::BTreeSet;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_e2e_scenarios::{Environment, TestResult};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_fleet_is_taken_over_as_it_is() -> TestResult {
    let env = Environment::start("restore").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    let before = env.wait_for_running(3).await?;
    let names: BTreeSet<String> = before.values().map(|machine| machine.name_any()).collect();
    let calls = env.cloud().stats().await?;

    env.manager().await?.terminate().await?;
    // Dependents first, so that the garbage collector finds nothing to do.
    let machines = Backup::<Machine>::take(&env).await?;
    let sets = Backup::<MachineSet>::take(&env).await?;
    let deployments = Backup::<MachineDeployment>::take(&env).await?;
    machines.restore().await?;
    sets.restore().await?;
    deployments.restore().await?;
    env.manager().await?.start_again().await?;

    let is_held = |machine: &Machine| !machine.owner_references().is_empty() && !machine.finalizers().is_empty();
    let of_deployment = |set: &MachineSet| !set.owner_references().is_empty() && !set.finalizers().is_empty();
    let (all, sets) = (
        Api::<Machine>::namespaced(env.client(), env.namespace()),
        Api::<MachineSet>::namespaced(env.client(), env.namespace()),
    );
    env.wait_for("owners and finalizers", async || {
        let (machines, sets) =
            (all.list(&ListParams::default()).await?.items, sets.list(&ListParams::default()).await?.items);
        Ok(machines.iter().all(is_held) && sets.iter().all(of_deployment))
    })
    .await?;
    let after = env.wait_for_running(3).await?;
    let kept: BTreeSet<String> = after.values().map(|machine| machine.name_any()).collect();
    assert_eq!(kept, names);
    let now = env.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (calls.created, calls.deleted), "no VM was made and none was deleted");

    // The restored machines behave normally: a scale-down deletes a machine and its VM.
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;
    env.wait_for("one VM", async || Ok(env.vms().await?.len() == 1)).await?;
    env.end_unevaluated().await
}

/// The objects of a kind in a backup.
struct Backup<K> {
    api: Api<K>,
    objects: Vec<Value>,
}

impl<K> Backup<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    /// Saves the objects, and removes them.
    async fn take(env: &Environment) -> TestResult<Self> {
        let api: Api<K> = Api::namespaced(env.client(), env.namespace());
        let mut objects = vec![];
        for object in api.list(&ListParams::default()).await?.items {
            let name = object.name_any();
            objects.push(stripped(&object)?);
            let bare = json!({"metadata": {"finalizers": null}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(bare)).await?;
            api.delete(&name, &DeleteParams::background()).await?;
        }
        Ok(Self { api, objects })
    }

    async fn restore(self) -> TestResult {
        for object in self.objects {
            self.api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        }
        Ok(())
    }
}

fn stripped<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> TestResult<Value> {
    let meta = object.meta();
    let kept = ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        labels: meta.labels.clone(),
        annotations: meta.annotations.clone(),
        ..ObjectMeta::default()
    };
    let mut value = serde_json::to_value(object)?;
    value["metadata"] = serde_json::to_value(kept)?;
    if let Value::Object(fields) = &mut value {
        fields.remove("status");
    }
    Ok(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_alone_leaves_its_machines_to_whoever_takes_them() -> TestResult {
    let env = Environment::start("orphans").await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 2);
    env.apply(&pool).await?;
    env.wait_for_running(2).await?;
    let calls = env.cloud().stats().await?;
    let sets: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());

    let alone = async |kind: &str| env.kubectl(&format!("delete {kind} --all --cascade=orphan")).await;
    env.in_time("the end of the deployment", alone("machinedeployments")).await??;
    let left = sets.list(&ListParams::default()).await?.items;
    assert!(left.len() == 1 && left[0].owner_references().is_empty(), "{left:?}");
    env.in_time("the end of the set", alone("machinesets")).await??;
    env.wait_for_running(2).await?;

    // The same deployment again: its set finds its machines.
    env.apply(&pool).await?;
    env.wait_for_machines("machines with an owner", |machines| {
        machines.len() == 2 && machines.values().all(|machine| !machine.owner_references().is_empty())
    })
    .await?;
    env.wait_for_running(2).await?;
    let now = env.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (calls.created, calls.deleted));
    env.end().await
}
