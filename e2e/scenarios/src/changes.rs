//! Changes that a user makes with kubectl, without its process, whose start takes more CPU than the request. Scenarios that are about
//! what kubectl shows or refuses run it.

use std::fmt::Display;

use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use nodewright_api::{Machine, MachineDeployment};
use nodewright_e2e_lab::control_plane::parse_manifest;
use serde_json::{Value, json};

use crate::{Environment, Failure, TestResult, objects::Manifest};

/// kubectl's field manager.
const FIELD_MANAGER: &str = "kubectl";

impl Environment {
    /// Applies a manifest in the namespace, as `kubectl apply --server-side --force-conflicts` does. A `List` is its items.
    pub async fn apply(&self, manifest: &(impl Manifest + ?Sized)) -> TestResult {
        for object in parse_manifest(&manifest.manifest(), "a scenario")? {
            match object.data.get("items").and_then(Value::as_array) {
                Some(items) => {
                    for item in items {
                        self.apply_object(&serde_json::from_value(item.clone())?).await?;
                    }
                }
                None => self.apply_object(&object).await?,
            }
        }
        Ok(())
    }

    async fn apply_object(&self, object: &DynamicObject) -> TestResult {
        let api = self.cluster().api_of(&self.client(), object, self.namespace()).await?;
        let (kind, name) = (object.types.as_ref().map_or("", |types| &types.kind), object.name_any());
        let parameters = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        let failed = failed(format!("apply {kind} {name}"));
        api.patch(&name, &parameters, &Patch::Apply(object)).await.map(drop).map_err(failed)
    }

    /// Scales a pool of this environment, as `kubectl scale` does.
    pub async fn scale(&self, pool: &str, replicas: u32) -> TestResult {
        let name = format!("{}-{pool}", self.namespace());
        let deployments: Api<MachineDeployment> = Api::namespaced(self.client(), self.namespace());
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let scaled = deployments.patch_scale(&name, &parameters(), &patch).await;
        scaled.map(drop).map_err(failed(format!("scale {name}")))
    }

    /// Removes the finalizers of a machine, as a user does by hand.
    pub async fn release(&self, machine: &str) -> TestResult {
        let machines: Api<Machine> = Api::namespaced(self.client(), self.namespace());
        let patch: Patch<Value> = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        machines.patch(machine, &parameters(), &patch).await.map(drop).map_err(failed(format!("release {machine}")))
    }
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn failed<E: Display>(what: String) -> impl FnOnce(E) -> Failure {
    move |error| Failure::new(format!("{what}: {error}"))
}
