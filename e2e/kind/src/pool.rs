//! A pool of machines of the driver `local`, as `config/samples/kind` declares it, and the Pods of an application on its Nodes.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{Node, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachinePhase};
use nodewright_e2e_lab::{
    control_plane::testing::{Failure, TestResult, ensure},
    process::repository,
};
use serde_json::json;

use crate::cluster::{Cluster, NAMESPACE, docker};

/// The pool of the sample.
pub(crate) const POOL: &str = "kind-pool";
/// The application, in Nodewright's namespace like everything else.
pub(crate) const APPLICATION: &str = "application";

/// Applies the sample with this number of machines, for the image and the name of this cluster.
pub(crate) async fn apply(cluster: &Cluster, replicas: u32) -> TestResult {
    let sample = cluster.kubectl(&format!("kustomize {}", repository().join("config/samples/kind").display())).await?;
    let mut manifest = sample;
    for (from, to) in [
        ("image: kindest/node:v1.37.0", format!("image: {}", cluster.node_image().await?)),
        ("cluster: kind\n", format!("cluster: {}\n", cluster.name())),
        ("kind-control-plane:6443", format!("{}-control-plane:6443", cluster.name())),
        ("replicas: 2", format!("replicas: {replicas}")),
        // Soon enough for a check, and long enough for a Node that is started again.
        ("      nodeTemplate:", "      healthTimeout: 30s\n      nodeTemplate:".to_owned()),
    ] {
        ensure(manifest.contains(from), || format!("config/samples/kind has no {from:?}"))?;
        manifest = manifest.replace(from, &to);
    }
    cluster.apply(manifest).await?;
    Ok(())
}

pub(crate) async fn scale(cluster: &Cluster, replicas: u32) -> TestResult {
    cluster.kubectl(&format!("scale mcd {POOL} --namespace={NAMESPACE} --replicas={replicas}")).await?;
    Ok(())
}

pub(crate) async fn machines(cluster: &Cluster) -> TestResult<Vec<Machine>> {
    Ok(cluster.namespaced::<Machine>().list(&ListParams::default()).await?.items)
}

/// The Nodes that the pool's template has labelled.
pub(crate) async fn nodes(cluster: &Cluster) -> TestResult<Vec<Node>> {
    let api: Api<Node> = Api::all(cluster.client());
    Ok(api.list(&ListParams::default().labels(&format!("pool={POOL}"))).await?.items)
}

/// The names of the containers that are machines of this cluster.
pub(crate) async fn containers(cluster: &Cluster) -> TestResult<BTreeSet<String>> {
    let filter = format!("ps --all --format={{{{.Names}}}} --filter=label=nodewright.dev/cluster={}", cluster.name());
    Ok(docker(&filter).await?.lines().map(str::to_owned).collect())
}

/// Waits until exactly this many machines run on ready Nodes of their names, each with its container, and returns the names.
pub(crate) async fn running(cluster: &Cluster, count: usize) -> TestResult<BTreeSet<String>> {
    cluster
        .wait_for(&format!("{count} machines running on ready Nodes"), async || {
            let machines = machines(cluster).await?;
            let names: BTreeSet<String> = machines.iter().map(ResourceExt::name_any).collect();
            let all_run =
                machines.iter().all(|machine| *machine.phase() == MachinePhase::Running && !machine.is_deleting());
            let nodes = nodes(cluster).await?;
            let ready: BTreeSet<String> =
                nodes.iter().filter(|node| is_ready(node)).map(ResourceExt::name_any).collect();
            let is_so = names.len() == count && all_run && ready == names && nodes.len() == count;
            Ok((is_so && containers(cluster).await? == names).then_some(names))
        })
        .await
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// When the kubelet of a Node last renewed its Lease, which it creates some seconds after the Node.
pub(crate) async fn heartbeat(cluster: &Cluster, node: &str) -> TestResult<Option<MicroTime>> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "kube-node-lease");
    Ok(leases.get_opt(node).await?.and_then(|lease| lease.spec?.renew_time))
}

/// Waits until no machine, Node or container is left.
pub(crate) async fn gone(cluster: &Cluster) -> TestResult {
    cluster
        .wait_for("no machine, no Node and no container", async || {
            let nothing = machines(cluster).await?.is_empty() && nodes(cluster).await?.is_empty();
            Ok((nothing && containers(cluster).await?.is_empty()).then_some(()))
        })
        .await
}

/// The names of the bootstrap tokens that Nodewright has made and not deleted.
pub(crate) async fn tokens(cluster: &Cluster) -> TestResult<Vec<String>> {
    let api: Api<Secret> = Api::namespaced(cluster.client(), "kube-system");
    let tokens = api.list(&ListParams::default().fields("type=bootstrap.kubernetes.io/token")).await?;
    let is_ours = |secret: &Secret| {
        let description = secret.data.as_ref().and_then(|data| data.get("description"));
        description.is_some_and(|text| text.0.starts_with(b"Bootstrap token for machine"))
    };
    Ok(tokens.items.iter().filter(|secret| is_ours(secret)).map(ResourceExt::name_any).collect())
}

/// An application of this many Pods on the Nodes of the pool, of which one at a time may be missing. Each takes a moment to
/// end. Waits until all are ready.
pub(crate) async fn start_application(cluster: &Cluster, pods: u32) -> TestResult {
    let labels = json!({"app": APPLICATION});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": APPLICATION},
        "spec": {
            "replicas": pods, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "nodeSelector": {"pool": POOL},
                "terminationGracePeriodSeconds": 5,
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": labels}}],
                "containers": [{"name": "pause", "image": pause_image(cluster).await?, "imagePullPolicy": "IfNotPresent"}],
            }},
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": APPLICATION},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    });
    cluster.apply(json!({"apiVersion": "v1", "kind": "List", "items": [deployment, budget]}).to_string()).await?;
    application_ready(cluster).await
}

/// An image that every node of kind has: the one of Pods' sandboxes.
async fn pause_image(cluster: &Cluster) -> TestResult<String> {
    let api: Api<Node> = Api::all(cluster.client());
    let images = api.list(&ListParams::default()).await?.items.into_iter().filter_map(|node| node.status?.images);
    let mut names = images.flatten().flat_map(|image| image.names.unwrap_or_default());
    let found = names.find(|name| name.contains("/pause:"));
    found.ok_or_else(|| Failure::new("no node has an image named pause"))
}

pub(crate) async fn application_ready(cluster: &Cluster) -> TestResult {
    cluster
        .wait_for("all Pods of the application ready", async || {
            let deployment = cluster.namespaced::<Deployment>().get(APPLICATION).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let status = deployment.status.unwrap_or_default();
            let is_so =
                status.available_replicas == wanted && status.observed_generation == deployment.metadata.generation;
            Ok(is_so.then_some(()))
        })
        .await
}

/// How many Pods of the application are available.
pub(crate) async fn available(cluster: &Cluster) -> TestResult<i32> {
    let deployment = cluster.namespaced::<Deployment>().get(APPLICATION).await?;
    Ok(deployment.status.and_then(|status| status.available_replicas).unwrap_or_default())
}

/// The names of the Nodes with Pods of the application.
pub(crate) async fn application_nodes(cluster: &Cluster) -> TestResult<BTreeSet<String>> {
    let pods = cluster.namespaced::<Pod>().list(&ListParams::default().labels(&format!("app={APPLICATION}"))).await?;
    Ok(pods.items.into_iter().filter_map(|pod| pod.spec?.node_name).collect())
}

pub(crate) async fn stop_application(cluster: &Cluster) -> TestResult {
    cluster.kubectl(&format!("delete deployment,pdb {APPLICATION} --namespace={NAMESPACE} --wait=true")).await?;
    Ok(())
}
