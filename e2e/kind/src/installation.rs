//! Nodewright as it is installed: its Pods, their leader, logs and events.

use std::collections::BTreeSet;

use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Pod};
use kube::{ResourceExt, api::ListParams};
use nodewright_e2e_lab::control_plane::testing::{Failure, TestResult, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, NAMESPACE};

const LABEL: &str = "app.kubernetes.io/name=nodewright";
/// The Leases of the controllers.
const LEASES: [&str; 2] = ["machine-controller", "machine-controller-manager"];

/// Applies a folder of `config` and waits until all of its Pods are ready and no older ones are left.
pub(crate) async fn apply(cluster: &Cluster, folder: &str) -> TestResult {
    let folder = nodewright_e2e_lab::process::repository().join("config").join(folder);
    cluster.kubectl(&format!("apply --server-side --validate=strict -k {}", folder.display())).await?;
    ready(cluster).await.map(drop)
}

/// Replaces all Pods, and waits until the new ones are ready and no older ones are left.
pub(crate) async fn restart(cluster: &Cluster) -> TestResult {
    cluster.kubectl(&format!("rollout restart deployment nodewright --namespace={NAMESPACE}")).await?;
    ready(cluster).await.map(drop)
}

/// Waits until the Deployment is complete, and returns its Pods.
pub(crate) async fn ready(cluster: &Cluster) -> TestResult<Vec<Pod>> {
    cluster
        .wait_for("all Pods of Nodewright ready, and no others", async || {
            let deployment = cluster.namespaced::<Deployment>().get("nodewright").await?;
            let pods = pods(cluster).await?;
            Ok((is_complete(&deployment) && pods.len() == 2).then_some(pods))
        })
        .await
}

fn is_complete(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.available_replicas] == [Some(2); 3]
}

pub(crate) async fn pods(cluster: &Cluster) -> TestResult<Vec<Pod>> {
    Ok(cluster.namespaced::<Pod>().list(&ListParams::default().labels(LABEL)).await?.items)
}

/// The Pod that holds both Leases, if one does.
pub(crate) async fn leader(cluster: &Cluster) -> TestResult<Option<Pod>> {
    let mut holders = BTreeSet::new();
    for name in LEASES {
        let lease = cluster.namespaced::<Lease>().get_opt(name).await?;
        holders.insert(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default());
    }
    let Some(holder) = holders.pop_first().filter(|holder| holders.is_empty() && !holder.is_empty()) else {
        return Ok(None);
    };
    Ok(pods(cluster).await?.into_iter().find(|pod| holder.starts_with(&pod.name_any())))
}

/// How often containers were restarted.
pub(crate) fn restarts(pods: &[Pod]) -> i32 {
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
    statuses.flatten().map(|status| status.restart_count).sum()
}

/// The lines of the Pods' logs at levels WARN and ERROR.
pub(crate) async fn warnings(cluster: &Cluster) -> TestResult<Vec<String>> {
    let logs = cluster.kubectl(&format!("logs --namespace={NAMESPACE} --selector={LABEL} --tail=-1")).await?;
    let is_warning = |line: &&str| match serde_json::from_str::<Value>(line) {
        Ok(entry) => matches!(entry["level"].as_str(), Some("WARN" | "ERROR")),
        // A panic, for example.
        Err(_) => !line.trim().is_empty(),
    };
    Ok(logs.lines().filter(is_warning).map(str::to_owned).collect())
}

/// Fails if there are any.
pub(crate) fn none(what: &str, found: &[String]) -> TestResult {
    if found.is_empty() { Ok(()) } else { Err(Failure::new(format!("{what}:\n{}", found.join("\n")))) }
}

/// Fails if an object that `config` makes outside of namespaces is left.
pub(crate) async fn nothing_left(cluster: &Cluster) -> TestResult {
    let kinds = "crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration,\
                 validatingadmissionpolicy,validatingadmissionpolicybinding";
    let left = cluster.kubectl(&format!("get {kinds} --output=name")).await?;
    let ours = left.lines().filter(|name| name.contains("nodewright") || name.contains("machine.sapcloud.io"));
    let ours: Vec<&str> = ours.collect();
    ensure(ours.is_empty(), || format!("these are left: {}", ours.join(", ")))
}
