//! The pods of all kubelets: one reader of the watch, and a short task for each pod with a pending action.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use nodewright_testing::stand_in;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Shared,
    pod::{self, PodAction, PodView},
};
use crate::{mirror::Seen, request::RequestError};

/// The time between two attempts of an action.
const RETRY: Duration = Duration::from_secs(1);

/// A pod, and the task of its pending action.
#[derive(Debug)]
struct PodWorker {
    view: PodView,
    work: Option<(PodAction, JoinHandle<()>)>,
}

impl Drop for PodWorker {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.work {
            task.abort();
        }
    }
}

/// All bound pods of the cluster by UID, including those of Nodes without kubelet: one may start later.
struct PodWorkers {
    shared: Arc<Shared>,
    pods: BTreeMap<String, PodWorker>,
    addresses: Arc<AtomicU32>,
}

/// Runs and ends the pods of all kubelets, until the watch ends.
pub(super) async fn run(shared: Arc<Shared>, mut seen: mpsc::Receiver<Seen<Pod>>) {
    let registry = Arc::clone(&shared.registry);
    let mut workers = PodWorkers { shared, pods: BTreeMap::new(), addresses: Arc::default() };
    loop {
        tokio::select! {
            biased;
            seen = seen.recv() => match seen {
                Some(seen) => workers.take(seen),
                None => return,
            },
            nodes = registry.started_reporting() => {
                for worker in workers.pods.values_mut().filter(|worker| nodes.contains(&worker.view.node)) {
                    sync(&workers.shared, &workers.addresses, worker);
                }
            }
        }
    }
}

impl PodWorkers {
    fn take(&mut self, seen: Seen<Pod>) {
        match seen {
            Seen::Reset(pods) => {
                let views: BTreeMap<String, PodView> =
                    pods.into_iter().map(PodView::from).map(|view| (view.uid.clone(), view)).collect();
                self.pods.retain(|uid, _| views.contains_key(uid));
                for view in views.into_values() {
                    self.update(view);
                }
            }
            Seen::Applied(pod) => self.update(pod.into()),
            Seen::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    self.pods.remove(&uid);
                }
            }
        }
    }

    fn update(&mut self, view: PodView) {
        let worker = self.pods.entry(view.uid.clone()).or_insert_with(|| PodWorker { view: view.clone(), work: None });
        worker.view = view;
        sync(&self.shared, &self.addresses, worker);
    }
}

/// Starts the action of a pod, unless it runs already.
fn sync(shared: &Arc<Shared>, addresses: &Arc<AtomicU32>, worker: &mut PodWorker) {
    let action =
        pod::decide(&worker.view, &shared.settings).filter(|_| shared.registry.is_reporting(&worker.view.node));
    if let Some((doing, task)) = &worker.work {
        if action.as_ref() == Some(doing) && !task.is_finished() {
            return;
        }
        task.abort();
    }
    worker.work = action.map(|action| {
        let work = work(Arc::clone(shared), Arc::clone(addresses), worker.view.clone(), action.clone());
        (action, tokio::spawn(stand_in::polled(work)))
    });
}

/// Executes an action, and retries until it succeeds or the kubelet is silent.
async fn work(shared: Arc<Shared>, addresses: Arc<AtomicU32>, pod: PodView, action: PodAction) {
    let (PodAction::Run { after } | PodAction::End { after }) = action;
    tokio::time::sleep(after).await;
    while shared.registry.is_reporting(&pod.node) {
        let result = match action {
            PodAction::Run { .. } => report_running(&shared, &addresses, &pod).await,
            PodAction::End { .. } => end(&shared, &pod).await,
        };
        match result {
            Ok(()) => return,
            // The pod is gone, or another one has its name.
            Err(error) if error.is_not_found() || error.is_conflict() => return,
            Err(error) => {
                tracing::debug!(pod = pod.name, namespace = pod.namespace, %error, "a pod's request failed");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn report_running(shared: &Shared, addresses: &AtomicU32, pod: &PodView) -> Result<(), RequestError> {
    let number = addresses.fetch_add(1, Ordering::Relaxed);
    // From 100.64.0.0/10, which contains no node address and no service address.
    let ip = format!("100.{}.{}.{}", 64 + (number >> 16) % 64, (number >> 8) % 256, number % 256);
    let status = pod::running(pod, ip, shared.clock.wall());
    let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.uid }, "status": status }));
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &pod.namespace);
    shared.request(pods.patch_status(&pod.name, &PatchParams::default(), &patch)).await.map(drop)
}

async fn end(shared: &Shared, pod: &PodView) -> Result<(), RequestError> {
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &pod.namespace);
    shared.request(pods.delete(&pod.name, &parameters)).await.map(drop)
}
