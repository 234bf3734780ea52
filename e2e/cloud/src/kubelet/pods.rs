//! The pods of all kubelets: one reader of the watch, one short task for each pod that has something to wait for.

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
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Shared,
    pod::{self, Deed, PodView},
};
use crate::{mirror::Seen, request::RequestError};

/// Between two tries of one deed.
const RETRY: Duration = Duration::from_secs(1);

/// A pod, and what is being done with it.
#[derive(Debug)]
struct Patient {
    view: PodView,
    work: Option<(Deed, JoinHandle<()>)>,
}

impl Drop for Patient {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.work {
            task.abort();
        }
    }
}

/// All bound pods of the cluster by UID. Those of Nodes that nobody here plays are kept too: a kubelet may come later.
struct Ward {
    shared: Arc<Shared>,
    patients: BTreeMap<String, Patient>,
    addresses: Arc<AtomicU32>,
}

/// Runs and ends the pods of all kubelets, until the watch ends.
pub(super) async fn run(shared: Arc<Shared>, mut seen: mpsc::Receiver<Seen<Pod>>) {
    let registry = Arc::clone(&shared.registry);
    let mut ward = Ward { shared, patients: BTreeMap::new(), addresses: Arc::default() };
    loop {
        tokio::select! {
            biased;
            seen = seen.recv() => match seen {
                Some(seen) => ward.take(seen),
                None => return,
            },
            nodes = registry.started_to_speak() => {
                for patient in ward.patients.values_mut().filter(|patient| nodes.contains(&patient.view.node)) {
                    attend(&ward.shared, &ward.addresses, patient);
                }
            }
        }
    }
}

impl Ward {
    fn take(&mut self, seen: Seen<Pod>) {
        match seen {
            Seen::Reset(pods) => {
                let views: BTreeMap<String, PodView> =
                    pods.into_iter().map(PodView::from).map(|view| (view.uid.clone(), view)).collect();
                self.patients.retain(|uid, _| views.contains_key(uid));
                for view in views.into_values() {
                    self.admit(view);
                }
            }
            Seen::Applied(pod) => self.admit(pod.into()),
            Seen::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    self.patients.remove(&uid);
                }
            }
        }
    }

    fn admit(&mut self, view: PodView) {
        let patient =
            self.patients.entry(view.uid.clone()).or_insert_with(|| Patient { view: view.clone(), work: None });
        patient.view = view;
        attend(&self.shared, &self.addresses, patient);
    }
}

/// Starts what is to be done with a pod, unless it is being done already.
fn attend(shared: &Arc<Shared>, addresses: &Arc<AtomicU32>, patient: &mut Patient) {
    let deed = pod::decide(&patient.view, &shared.settings).filter(|_| shared.registry.speaks(&patient.view.node));
    if let Some((doing, task)) = &patient.work {
        if deed.as_ref() == Some(doing) && !task.is_finished() {
            return;
        }
        task.abort();
    }
    patient.work = deed.map(|deed| {
        let work = work(Arc::clone(shared), Arc::clone(addresses), patient.view.clone(), deed.clone());
        (deed, tokio::spawn(work))
    });
}

/// Does one deed, again and again until it is done, unless the kubelet falls silent.
async fn work(shared: Arc<Shared>, addresses: Arc<AtomicU32>, pod: PodView, deed: Deed) {
    let (Deed::Run { after } | Deed::End { after }) = deed;
    tokio::time::sleep(after).await;
    while shared.registry.speaks(&pod.node) {
        let result = match deed {
            Deed::Run { .. } => report_running(&shared, &addresses, &pod).await,
            Deed::End { .. } => end(&shared, &pod).await,
        };
        match result {
            Ok(()) => return,
            // Gone, or another pod of the same name.
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
    // From 100.64.0.0/10, which no node address and no service address is in.
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
