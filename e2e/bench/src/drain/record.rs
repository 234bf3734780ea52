//! What happened to pods and volumes, recorded by watches of the API server, and not by the manager.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, storage::v1::VolumeAttachment};
use kube::{Api, Client, ResourceExt};
use nodewright_e2e_cloud::disks::Disks;
use nodewright_e2e_lab::{
    control_plane::{history::History, testing::TestResult},
    devcluster::NAMESPACE,
};

use super::{
    chain::{Budget, Leaving, Moved},
    workload::{APP_LABEL, App},
};

pub(super) struct Record {
    pods: History<Pod>,
    attachments: History<VolumeAttachment>,
}

impl Record {
    pub(super) async fn start(client: &Client) -> TestResult<Self> {
        let pods = History::record(Api::namespaced(client.clone(), NAMESPACE), "").await?;
        let attachments = History::record(Api::all(client.clone()), "").await?;
        Ok(Self { pods, attachments })
    }

    /// How many pods of an application are available now.
    pub(super) fn available(&self, app: &App) -> usize {
        self.pods.current().values().filter(|pod| is_of(pod, app) && is_available(pod)).count()
    }

    /// How many volumes are attached now.
    pub(super) fn attached(&self) -> usize {
        self.attachments.current().values().filter(|attachment| is_attached(attachment)).count()
    }

    /// The number of changes to pods so far.
    pub(super) fn mark(&self) -> usize {
        self.pods.mark()
    }

    /// How the disruption budget of an application was used since a mark, and how many pods were unavailable at most.
    pub(super) fn budget(&self, app: &App, mark: usize) -> TestResult<(Budget, usize)> {
        let (mut before, mut most) = (0, 0);
        let mut budget = Budget { places: app.unavailable, replaced: vec![] };
        self.pods.states(mark, |at, state| {
            let available = state.values().filter(|pod| is_of(pod, app) && is_available(pod)).count();
            let unavailable = app.replicas.saturating_sub(available);
            budget.replaced.extend((unavailable..before).map(|_| at));
            before = unavailable;
            most = most.max(unavailable);
            Ok(())
        })?;
        Ok((budget, most))
    }

    /// The pods that left the nodes of a pool since then, and their volumes.
    pub(super) fn leaving(&self, disks: &Disks, begun: Timestamp, pool: &str) -> TestResult<Vec<Leaving>> {
        let mut evicted = BTreeMap::new();
        for change in self.pods.changes()? {
            if change.at >= begun && change.object.metadata.deletion_timestamp.is_some() {
                let (_, ended, _) =
                    evicted.entry(change.object.uid()).or_insert((change.at, change.at, change.object.clone()));
                // The last change is its end.
                *ended = change.at;
            }
        }
        let on_pool = evicted.into_values().filter(|(.., pod)| node_of(pod).starts_with(pool));
        on_pool
            .map(|(evicted, ended, pod)| {
                let (app, node) = (app_of(&pod).to_owned(), node_of(&pod).to_owned());
                let volume = self.moved(&volume_of(disks, &pod), &node, evicted)?;
                Ok(Leaving { pod: pod.name_any(), app, node, evicted, ended, volume })
            })
            .collect()
    }

    fn moved(&self, volume: &str, node: &str, evicted: Timestamp) -> TestResult<Option<Moved>> {
        let changes = self.attachments.changes()?;
        let of_volume = || {
            let is_it = |it: &VolumeAttachment| it.spec.source.persistent_volume_name.as_deref() == Some(volume);
            changes.iter().filter(move |change| is_it(&change.object) && change.at >= evicted)
        };
        let detached = of_volume().find(|change| change.gone && change.object.spec.node_name == node);
        let attached = of_volume().find(|it| !it.gone && it.object.spec.node_name != node && is_attached(&it.object));
        Ok(detached.map(|detached| Moved {
            detached: detached.at,
            attached: attached.map_or(detached.at, |attached| attached.at),
        }))
    }
}

fn is_of(pod: &Pod, app: &App) -> bool {
    app_of(pod) == app.name
}

fn app_of(pod: &Pod) -> &str {
    pod.labels().get(APP_LABEL).map(String::as_str).unwrap_or_default()
}

fn is_available(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// The volume that a pod of a `StatefulSet` would have.
fn volume_of(disks: &Disks, pod: &Pod) -> String {
    let name = pod.name_any();
    let index = name.rsplit('-').next().and_then(|index| index.parse().ok()).unwrap_or_default();
    disks.volume(app_of(pod), index)
}
