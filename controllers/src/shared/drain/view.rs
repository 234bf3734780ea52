//! What a drain sees, taken from the caches at one moment.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{core::v1::PersistentVolumeClaim, policy::v1::PodDisruptionBudget, storage::v1::VolumeAttachment},
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta},
};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    object::{Cluster, name, namespace},
    scoped_watch::ScopedWatch,
};
use serde::Deserialize;

use super::{super::node::Node, PodView};

/// Watches for all objects of a kind, which drains share, and which end with the last of them.
pub(super) const ALL: &str = "";

/// A claim and its volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimView {
    pub metadata: ObjectMeta,
    pub spec: ClaimSpecView,
}

nodewright_runtime::view_of!(PersistentVolumeClaim, ClaimView);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpecView {
    pub volume_name: String,
}

/// A volume that is attached to a Node, or is to be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentView {
    pub metadata: ObjectMeta,
    pub spec: AttachmentSpecView,
    pub status: AttachmentStatusView,
}

nodewright_runtime::view_of!(VolumeAttachment, AttachmentView);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AttachmentSpecView {
    pub node_name: String,
    pub source: AttachmentSourceView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AttachmentSourceView {
    pub persistent_volume_name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentStatusView {
    pub attached: bool,
}

/// A disruption budget, as far as it shows whether and why an eviction is refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BudgetView {
    pub metadata: ObjectMeta,
    pub spec: BudgetSpecView,
    pub status: BudgetStatusView,
}

nodewright_runtime::view_of!(PodDisruptionBudget, BudgetView);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct BudgetSpecView {
    pub selector: Option<LabelSelector>,
    pub unhealthy_pod_eviction_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct BudgetStatusView {
    pub observed_generation: i64,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub expected_pods: i64,
    /// Whether the disruption controller could count the Pods.
    pub conditions: Vec<Condition>,
    /// Pods whose eviction was allowed and that have yet to be deleted.
    pub disrupted_pods: BTreeMap<String, String>,
}

/// The volumes that the Pods of a Node claim, and where volumes are attached.
#[derive(Clone, Debug)]
pub(crate) enum Volumes {
    /// They are not watched, or not listed yet.
    Pending,
    /// The API server does not list them: its message. The drain goes on as if there were none.
    Unknown(Arc<str>),
    Known(Attached),
}

/// The volumes of the Pods of a Node, and the attachments of volumes to it and to other Nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attached {
    /// The volume of each claim of a Pod of the Node, by the namespace and the name of the claim.
    pub(crate) claims: BTreeMap<(String, String), String>,
    pub(crate) here: Vec<Arc<AttachmentView>>,
    pub(crate) elsewhere: Vec<Arc<AttachmentView>>,
}

/// What a drain sees.
#[derive(Clone, Debug)]
pub(crate) struct View {
    cluster: Cluster,
    /// The Pods of the Node, the highest priority first; `None` while they are not watched or not listed yet.
    pub(crate) pods: Option<Vec<Arc<PodView>>>,
    /// What to say about a Pod of the Node that exists, has to leave, and cannot be read.
    pub(crate) unreadable: Option<String>,
    pub(crate) volumes: Volumes,
    /// The disruption budgets in the namespaces of the Pods; `None` while they are not watched or not listed yet.
    pub(crate) budgets: Option<Vec<Arc<BudgetView>>>,
}

impl View {
    /// A view of nothing: what a drain has to see is not watched yet.
    pub(crate) fn empty(cluster: Cluster) -> Self {
        Self { cluster, pods: None, unreadable: None, volumes: Volumes::Pending, budgets: None }
    }

    pub(crate) fn take(stores: &Stores, cluster: Cluster, node: &Node) -> Self {
        let listed = stores.seen::<PodView>(cluster, &pods_of(name(node)));
        let pods = listed.as_deref().map(sorted);
        let known = pods.as_deref().unwrap_or_default();
        Self {
            cluster,
            unreadable: listed.as_deref().and_then(unreadable),
            volumes: volumes(stores, cluster, node, known),
            budgets: budgets(stores, cluster, known),
            pods,
        }
    }

    /// The names of the volumes that are attached to the Node.
    pub(crate) fn attached_volumes(&self) -> BTreeSet<String> {
        let Volumes::Known(attached) = &self.volumes else { return BTreeSet::new() };
        attached.here.iter().filter_map(|it| it.volume()).map(str::to_owned).collect()
    }

    pub(crate) fn cluster(&self) -> Cluster {
        self.cluster
    }

    pub(super) fn watch_pods(&self, node: &Node) -> ScopedWatch {
        ScopedWatch::at::<PodView>(self.cluster, pods_of(name(node)))
    }

    pub(super) fn watch_volumes(&self) -> [ScopedWatch; 2] {
        [ScopedWatch::at::<ClaimView>(self.cluster, ALL), ScopedWatch::at::<AttachmentView>(self.cluster, ALL)]
    }

    pub(super) fn watch_budgets(&self) -> ScopedWatch {
        ScopedWatch::at::<BudgetView>(self.cluster, ALL)
    }
}

pub(super) fn pods_of(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn sorted(pods: &Store<PodView>) -> Vec<Arc<PodView>> {
    let mut pods = pods.all();
    let key = |pod: &PodView| (namespace(pod).to_owned(), name(pod).to_owned());
    pods.sort_by_cached_key(|pod| (Reverse(pod.spec.priority), key(pod)));
    pods
}

fn unreadable(pods: &Store<PodView>) -> Option<String> {
    let leaves = |pod: &Arc<Unreadable>| {
        let metadata = pod.metadata().cloned();
        metadata.is_none_or(|metadata| PodView { metadata, ..PodView::default() }.leaves())
    };
    pods.unreadable().into_iter().find(leaves).map(|pod| pod.describe::<PodView>())
}

fn volumes(stores: &Stores, cluster: Cluster, node: &Node, pods: &[Arc<PodView>]) -> Volumes {
    let failed = stores.unseen::<ClaimView>(cluster, ALL).or_else(|| stores.unseen::<AttachmentView>(cluster, ALL));
    if let Some(why) = failed {
        return Volumes::Unknown(why);
    }
    let (claims, attachments) = (stores.seen::<ClaimView>(cluster, ALL), stores.seen::<AttachmentView>(cluster, ALL));
    let (Some(known), Some(attachments)) = (claims, attachments) else { return Volumes::Pending };
    let mut claims = BTreeMap::new();
    for pod in pods {
        for claim in pod.claims() {
            let volume = known.by_name(namespace(pod.as_ref()), &claim).map(|claim| claim.spec.volume_name.clone());
            if let Some(volume) = volume.filter(|volume| !volume.is_empty()) {
                claims.insert((namespace(pod.as_ref()).to_owned(), claim), volume);
            }
        }
    }
    let (mut here, elsewhere): (Vec<_>, Vec<_>) =
        attachments.all().into_iter().partition(|attachment| attachment.spec.node_name == name(node));
    here.sort_by_cached_key(|attachment| name(attachment.as_ref()).to_owned());
    Volumes::Known(Attached { claims, here, elsewhere })
}

fn budgets(stores: &Stores, cluster: Cluster, pods: &[Arc<PodView>]) -> Option<Vec<Arc<BudgetView>>> {
    let mut budgets = stores.seen::<BudgetView>(cluster, ALL)?.all();
    let concerns = |budget: &BudgetView| pods.iter().any(|pod| namespace(pod.as_ref()) == namespace(budget));
    budgets.retain(|budget| concerns(budget));
    budgets.sort_by_cached_key(|budget| name(budget.as_ref()).to_owned());
    Some(budgets)
}
