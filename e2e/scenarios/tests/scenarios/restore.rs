//! A namespace is lost and restored from a backup: new UIDs, no owners, no finalizers, no status.

use std::collections::BTreeSet;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_e2e_scenarios::{TestResult, World};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_fleet_is_taken_over_as_it_is() -> TestResult {
    let world = World::start("restore").await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    let before = world.wait_for_running(3).await?;
    let names: BTreeSet<String> = before.values().map(|machine| machine.name_any()).collect();
    let calls = world.cloud().stats().await?;

    world.manager().await?.terminate().await?;
    // From the leaves up, so that the garbage collector finds nothing to do.
    let machines = Backup::<Machine>::take(&world).await?;
    let sets = Backup::<MachineSet>::take(&world).await?;
    let deployments = Backup::<MachineDeployment>::take(&world).await?;
    machines.restore().await?;
    sets.restore().await?;
    deployments.restore().await?;
    world.manager().await?.start_again().await?;

    let is_held = |machine: &Machine| !machine.owner_references().is_empty() && !machine.finalizers().is_empty();
    let of_deployment = |set: &MachineSet| !set.owner_references().is_empty() && !set.finalizers().is_empty();
    let (all, sets) = (
        Api::<Machine>::namespaced(world.client(), world.namespace()),
        Api::<MachineSet>::namespaced(world.client(), world.namespace()),
    );
    world
        .wait_for("owners and finalizers", async || {
            let (machines, sets) =
                (all.list(&ListParams::default()).await?.items, sets.list(&ListParams::default()).await?.items);
            Ok(machines.iter().all(is_held) && sets.iter().all(of_deployment))
        })
        .await?;
    let after = world.wait_for_running(3).await?;
    let kept: BTreeSet<String> = after.values().map(|machine| machine.name_any()).collect();
    assert_eq!(kept, names);
    let now = world.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (calls.created, calls.deleted), "no VM was made and none was deleted");

    // And it is a fleet like any other: a machine is deleted, the VM with it.
    world.scale("a", 1).await?;
    world.wait_for_running(1).await?;
    world.wait_for("one VM", async || Ok(world.vms().await?.len() == 1)).await?;
    world.end_unjudged().await
}

/// The objects of a kind, as a backup keeps them.
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
    /// Writes them down, and removes them.
    async fn take(world: &World) -> TestResult<Self> {
        let api: Api<K> = Api::namespaced(world.client(), world.namespace());
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
    let world = World::start("orphans").await?;
    world.apply_class("small").await?;
    let pool = world.pool("a", 2);
    world.apply(&pool).await?;
    world.wait_for_running(2).await?;
    let calls = world.cloud().stats().await?;
    let sets: Api<MachineSet> = Api::namespaced(world.client(), world.namespace());

    let alone = async |kind: &str| world.kubectl(&format!("delete {kind} --all --cascade=orphan")).await;
    world.in_time("the end of the deployment", alone("machinedeployments")).await??;
    let left = sets.list(&ListParams::default()).await?.items;
    assert!(left.len() == 1 && left[0].owner_references().is_empty(), "{left:?}");
    world.in_time("the end of the set", alone("machinesets")).await??;
    world.wait_for_running(2).await?;

    // The same deployment again: its set finds its machines.
    world.apply(&pool).await?;
    world
        .wait_for_machines("machines with an owner", |machines| {
            machines.len() == 2 && machines.values().all(|machine| !machine.owner_references().is_empty())
        })
        .await?;
    world.wait_for_running(2).await?;
    let now = world.cloud().stats().await?;
    assert_eq!((now.created, now.deleted), (calls.created, calls.deleted));
    world.end().await
}
