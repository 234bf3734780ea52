//! Removing what a scenario made, when its manager has ended: on a cluster that others use, too, nothing stays.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{Environment, TestResult, objects::ENVIRONMENT_LABEL};

pub(crate) async fn clean(env: &Environment) -> TestResult {
    let (client, namespace) = (env.client(), env.namespace());
    remove(Api::<MachineDeployment>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<MachineSet>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Machine>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<MachineClass>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Secret>::namespaced(client.clone(), namespace), "").await?;
    remove(Api::<Node>::all(env.target_client()), &format!("{ENVIRONMENT_LABEL}={namespace}")).await?;
    tolerate(Api::<Namespace>::all(client).delete(namespace, &DeleteParams::default()).await.map(drop))
}

/// Deletes objects and takes away what would hold them back: those who set the finalizers have ended.
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

/// What is gone already is as well.
fn tolerate(result: kube::Result<()>) -> TestResult {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => Ok(result?),
    }
}
