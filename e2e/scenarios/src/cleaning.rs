//! Removes a scenario's objects after its manager has ended, so that nothing stays on a cluster that others use.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use nodewright_api::{
    Machine, MachineClass, MachineDeployment, MachineSet,
    labels::{IN_USE, IN_USE_PREFIX},
    machine_config::{ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{Cluster, Environment, TestResult, ensure, objects::ENVIRONMENT_LABEL, waits::LOOK};

/// How long what ends may still write.
const RESET_TIMEOUT: Duration = Duration::from_secs(30);

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
    if env.has_webhooks {
        remove_registration(&client, namespace).await?;
    }
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

/// Removes the registration of the webhooks of a namespace, which outlives the manager: nobody answers, so pools and classes are refused.
async fn remove_registration(client: &Client, namespace: &str) -> TestResult {
    let (name, now) = (format!("nodewright-{namespace}"), DeleteParams::default());
    tolerate(Api::<MutatingWebhookConfiguration>::all(client.clone()).delete(&name, &now).await.map(drop))?;
    tolerate(Api::<ValidatingWebhookConfiguration>::all(client.clone()).delete(&name, &now).await.map(drop))
}

/// Removes what a scenario leaves on a control plane of its own outside of its namespace, and waits until nothing of it is left.
pub(crate) async fn reset(cluster: &Cluster) -> TestResult {
    let client = cluster.client().await?;
    let all = [without_namespace(&client), written_of_nodes(&client)].concat();
    let since = Instant::now();
    loop {
        for api in &all {
            remove(api.clone(), "").await?;
        }
        let left = remaining(&all).await?;
        if left.is_empty() {
            return Ok(());
        }
        // A controller manager records an event a moment after a Node is gone.
        ensure(since.elapsed() < RESET_TIMEOUT, || format!("after {RESET_TIMEOUT:?} there is again {left:?}"))?;
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns an error if a control plane has objects of node configuration, Nodes or webhooks.
pub(crate) async fn check_reset(cluster: &Cluster) -> TestResult {
    let left = remaining(&without_namespace(&cluster.client().await?)).await?;
    ensure(left.is_empty(), || format!("there are {left:?}"))
}

/// Webhooks come first, as nobody answers any more.
fn without_namespace(client: &Client) -> Vec<Api<DynamicObject>> {
    let resources = [
        ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ApiResource::erase::<MachineConfigPool>(&()),
        ApiResource::erase::<KubeletConfig>(&()),
        ApiResource::erase::<ControllerConfig>(&()),
        ApiResource::erase::<MachineConfig>(&()),
        ApiResource::erase::<Node>(&()),
    ];
    resources.iter().map(|resource| Api::all_with(client.clone(), resource)).collect()
}

/// The Leases of Nodes, and the events of objects without a namespace.
fn written_of_nodes(client: &Client) -> Vec<Api<DynamicObject>> {
    let leases = ApiResource::erase::<Lease>(&());
    let events = ApiResource::erase::<Event>(&());
    vec![
        Api::namespaced_with(client.clone(), "kube-node-lease", &leases),
        Api::namespaced_with(client.clone(), "default", &events),
    ]
}

/// What there is, by its path.
async fn remaining(apis: &[Api<DynamicObject>]) -> TestResult<Vec<String>> {
    let mut left = vec![];
    for api in apis {
        let objects = api.list(&ListParams::default()).await?.items;
        left.extend(objects.iter().map(|object| format!("{}/{}", api.resource_url(), object.name_any())));
    }
    Ok(left)
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
