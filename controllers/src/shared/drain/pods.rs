//! Which Pods leave a Node that is drained.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// The fields of a Pod that a drain reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodView {
    pub metadata: ObjectMeta,
    pub spec: PodSpecView,
    pub status: PodStatusView,
}

nodewright_runtime::view_of!(k8s_openapi::api::core::v1::Pod, PodView);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpecView {
    /// Pods with a higher priority are evicted earlier.
    pub priority: i32,
    pub volumes: Vec<PodVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStatusView {
    pub phase: String,
    pub conditions: Vec<PodConditionView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodConditionView {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodVolume {
    pub name: String,
    pub persistent_volume_claim: Option<ClaimReference>,
    pub ephemeral: Option<Ephemeral>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimReference {
    pub claim_name: String,
}

/// A volume whose claim is made for the Pod. None of its fields is read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Ephemeral {}

impl PodView {
    /// Whether a drain removes it. Mirror Pods cannot be evicted, and the Pods of DaemonSets would be created again at once.
    pub(crate) fn leaves(&self) -> bool {
        let mut owners = self.metadata.owner_references.iter().flatten();
        let daemon = owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
        !self.is_mirror() && !daemon
    }

    /// Whether it only shows a Pod of a file on its Node.
    pub(super) fn is_mirror(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"))
    }

    /// Whether it is being deleted without a grace period: only finalizers keep it, and no request removes it sooner.
    pub(super) fn is_gone_but_for_finalizers(&self) -> bool {
        self.ends_at().is_some() && self.metadata.deletion_grace_period_seconds == Some(0)
    }

    /// The end of its grace period, if it is being deleted.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        Some(self.metadata.deletion_timestamp.as_ref()?.0)
    }

    /// Whether its containers have ended for good.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// As the disruption controller counts it.
    pub(super) fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// The names of its `PersistentVolumeClaim`s.
    pub(super) fn claims(&self) -> impl Iterator<Item = String> {
        let pod = self.metadata.name.as_deref().unwrap_or_default();
        self.spec.volumes.iter().filter_map(move |volume| match (&volume.persistent_volume_claim, volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            // The name that Kubernetes gives to the claim of a generic ephemeral volume.
            (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
            (None, None) => None,
        })
    }
}
