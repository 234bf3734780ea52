//! The removal of pods that have no working kubelet or no Node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Node, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::Shared;
use nodewright_e2e_cloud::request::{RequestError, request};

/// Why a pod is removed, for its condition `DisruptionTarget`.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

/// Namespace and name.
pub(super) fn key(pod: &Pod) -> (String, String) {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Shared {
    /// Deletes a pod with its usual grace period, and records the reason.
    pub(super) async fn evict(&self, pod: &Pod, removal: &Removal) -> Result<(), RequestError> {
        self.mark(pod, Some(removal), None).await?;
        self.delete(pod, None).await
    }

    /// Marks a pod as failed, and deletes it without grace: no kubelet would end it.
    async fn remove(&self, pod: &Pod, removal: Option<&Removal>) -> Result<(), RequestError> {
        if !is_finished(pod) {
            self.mark(pod, removal, Some("Failed")).await?;
        }
        self.delete(pod, Some(0)).await
    }

    async fn mark(&self, pod: &Pod, removal: Option<&Removal>, phase: Option<&str>) -> Result<(), RequestError> {
        let target = removal.map(|removal| PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some(removal.reason.to_owned()),
            message: Some(removal.message.to_owned()),
            last_transition_time: Some(Time(self.clock.wall())),
            ..PodCondition::default()
        });
        let status = PodStatus {
            phase: phase.map(str::to_owned),
            conditions: target.map(|target| vec![target]),
            ..PodStatus::default()
        };
        let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }));
        let (namespace, name) = key(pod);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        settled(request(pods.patch_status(&name, &PatchParams::default(), &patch)).await)
    }

    async fn delete(&self, pod: &Pod, grace: Option<u32>) -> Result<(), RequestError> {
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        let (namespace, name) = key(pod);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        settled(request(pods.delete(&name, &parameters)).await)
    }
}

/// A pod that is gone, or was replaced by another of the same name, needs no further work.
fn settled<T>(answer: Result<T, RequestError>) -> Result<(), RequestError> {
    match answer {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

/// Collects pods periodically.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.view.is_listed().await;
    let mut missing = BTreeMap::new();
    let mut ticks = tokio::time::interval(shared.settings.collection_period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        round(&shared, &mut missing).await;
    }
}

/// Runs one collection. `missing` maps each Node that pods name and that does not exist to the time since when.
async fn round(shared: &Shared, missing: &mut BTreeMap<String, Duration>) {
    let (pods, now) = (shared.view.pods.all(), shared.clock.elapsed());
    let there: BTreeSet<String> =
        shared.view.nodes.all().iter().filter_map(|node| node.metadata.name.clone()).collect();
    let named: BTreeSet<&str> = pods.iter().map(|pod| node_of(pod)).filter(|name| !name.is_empty()).collect();
    missing.retain(|name, _| named.contains(name.as_str()) && !there.contains(name));
    for name in named.into_iter().filter(|name| !there.contains(*name)) {
        missing.entry(name.to_owned()).or_insert(now);
    }
    let overdue = missing.iter().filter(|(_, since)| now.saturating_sub(**since) >= shared.settings.quarantine);
    let mut gone = BTreeSet::new();
    for (name, _) in overdue {
        if shared.is_gone(name).await {
            gone.insert(name.clone());
        }
    }
    let orphaned = Removal { reason: "DeletionByPodGC", message: "PodGC: node no longer exists" };
    for pod in pods {
        let removed = match node_of(&pod) {
            "" if pod.metadata.deletion_timestamp.is_some() => shared.remove(&pod, None).await,
            node if gone.contains(node) => shared.remove(&pod, Some(&orphaned)).await,
            _ => continue,
        };
        if let Err(error) = removed {
            tracing::debug!(pod = ?key(&pod), %error, "a pod cannot be collected");
        }
    }
}

impl Shared {
    /// Asks the API server, because the watch may be late.
    async fn is_gone(&self, node: &str) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        request(nodes.get(node)).await.is_err_and(|error| error.is_not_found())
    }
}
