//! Removes a scenario's objects after its manager has ended, so that nothing stays on a cluster that others use.

use std::fmt::Debug;

use k8s_openapi::{
    api::core::v1::{Namespace, Node, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nodewright_api::{
    Machine, MachineClass, MachineDeployment, MachineSet,
    labels::{IN_USE, IN_USE_PREFIX},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{Environment, TestResult, objects::ENVIRONMENT_LABEL};

/// Takes off the labels of what is in use, as a manager does that still runs when its last object is gone. By them the policies of
/// `config/guard`, if the cluster has them, keep the rights and the namespace.
pub(crate) async fn unmark(env: &Environment, namespace: &str) -> TestResult {
    let label = format!("{IN_USE_PREFIX}{namespace}");
    let definitions = Api::<CustomResourceDefinition>::all(env.client());
    for definition in definitions.list(&ListParams::default().labels(&label)).await?.items {
        without_label(&definitions, &definition.name_any(), &label).await?;
    }
    without_label(&Api::<Namespace>::all(env.client()), namespace, IN_USE).await
}

async fn without_label<K>(api: &Api<K>, name: &str, label: &str) -> TestResult
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let change = Patch::Merge(json!({"metadata": {"labels": {label: null}}}));
    tolerate(api.patch(name, &PatchParams::default(), &change).await.map(drop))
}

/// Removes a further namespace of a scenario, whose manager has ended, with its classes.
pub(crate) async fn remove_namespace(env: &Environment, namespace: &str) -> TestResult {
    unmark(env, namespace).await?;
    remove(Api::<MachineClass>::namespaced(env.client(), namespace), "").await?;
    delete_namespace(env.client(), namespace).await
}

async fn delete_namespace(client: Client, namespace: &str) -> TestResult {
    tolerate(Api::<Namespace>::all(client).delete(namespace, &DeleteParams::default()).await.map(drop))
}

pub(crate) async fn clean(env: &Environment) -> TestResult {
    let (client, namespace) = (env.client(), env.namespace());
    remove(Api::<MachineDeployment>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<MachineSet>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Machine>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<MachineClass>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Secret>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Node>::all(env.target_client()), &format!("{ENVIRONMENT_LABEL}={namespace}")).await?;
    delete_namespace(client, namespace).await?;
    if std::ptr::eq(env.cluster(), env.target()) {
        return Ok(());
    }
    // It has the namespace for the manager's service account.
    delete_namespace(env.target_client(), namespace).await
}

/// Deletes objects and removes their finalizers: the controllers that set them have ended.
async fn remove<K>(api: Api<K>, selector: &str) -> TestResult
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let listed = ListParams::default().labels(selector);
    tolerate(api.delete_collection(&DeleteParams::default(), &listed).await.map(drop))?;
    for object in api.list(&listed).await?.items {
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        tolerate(api.patch(&object.name_any(), &PatchParams::default(), &free).await.map(drop))?;
    }
    Ok(())
}

/// An object that is already gone counts as deleted.
fn tolerate(result: kube::Result<()>) -> TestResult {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => Ok(result?),
    }
}
