//! The decisions of a kubelet about a pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodCondition, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Settings, TERMINATION_ANNOTATION};

/// The parts of a pod that a kubelet uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    pub phase: String,
    pub ready: bool,
    /// The grace period in seconds, if the pod is being deleted.
    pub ending: Option<u64>,
    /// The value of [`TERMINATION_ANNOTATION`].
    pub takes: Option<String>,
    /// Names and images of the containers.
    pub containers: Vec<(String, String)>,
}

/// An action for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodAction {
    /// Report that it is running and ready.
    Run {
        /// The delay.
        after: Duration,
    },
    /// Delete it with grace period zero.
    End {
        /// The delay.
        after: Duration,
    },
}

impl From<Pod> for PodView {
    fn from(pod: Pod) -> Self {
        let (metadata, spec, status) = (pod.metadata, pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let ready = status.conditions.unwrap_or_default().iter().any(|it| it.type_ == "Ready" && it.status == "True");
        // A negative grace period counts as zero, as in a real kubelet.
        let grace = metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let annotations: BTreeMap<_, _> = metadata.annotations.unwrap_or_default();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            node: spec.node_name.unwrap_or_default(),
            phase: status.phase.unwrap_or_default(),
            ready,
            ending: metadata.deletion_timestamp.map(|_| grace.unwrap_or(0)),
            takes: annotations.get(TERMINATION_ANNOTATION).cloned(),
            containers: spec.containers.into_iter().map(|it| (it.name, it.image.unwrap_or_default())).collect(),
        }
    }
}

/// The next action of the kubelet for the pod.
pub(super) fn decide(pod: &PodView, settings: &Settings) -> Option<PodAction> {
    if let Some(grace) = pod.ending {
        if pod.takes.as_deref() == Some("never") {
            return None;
        }
        let takes = pod.takes.as_deref().and_then(|seconds| seconds.parse().ok());
        let takes = takes.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let after = takes.unwrap_or(settings.pod_ends_after).min(Duration::from_secs(grace));
        return Some(PodAction::End { after });
    }
    match pod.phase.as_str() {
        "" | "Pending" => Some(PodAction::Run { after: settings.pod_start_after }),
        // The node lifecycle controller marked it not ready while the kubelet was silent.
        "Running" if !pod.ready => Some(PodAction::Run { after: Duration::from_secs(1) }),
        _ => None,
    }
}

/// The status of a running and ready pod.
pub(super) fn running(pod: &PodView, ip: String, now: Timestamp) -> PodStatus {
    let condition = |type_: &str| PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    };
    let container = |(name, image): &(String, String)| ContainerStatus {
        name: name.clone(),
        image: image.clone(),
        image_id: format!("simulated://{image}"),
        container_id: Some(format!("simulated://{}/{name}", pod.uid)),
        ready: true,
        started: Some(true),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(now)) }),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    };
    PodStatus {
        phase: Some("Running".to_owned()),
        pod_ips: Some(vec![PodIP { ip: ip.clone() }]),
        pod_ip: Some(ip),
        start_time: Some(Time(now)),
        conditions: Some(["Initialized", "ContainersReady", "Ready"].map(condition).into()),
        container_statuses: Some(pod.containers.iter().map(container).collect()),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str) -> PodView {
        PodView { phase: phase.to_owned(), ready: phase == "Running", ..PodView::default() }
    }

    fn ends(pod: &PodView) -> Option<u64> {
        match decide(pod, &Settings::default()) {
            Some(PodAction::End { after }) => Some(after.as_secs()),
            _ => None,
        }
    }

    #[test]
    fn a_pending_pod_runs_and_a_running_one_is_left_alone() {
        let settings = Settings::default();
        assert_eq!(decide(&pod("Pending"), &settings), Some(PodAction::Run { after: settings.pod_start_after }));
        assert_eq!(decide(&pod("Running"), &settings), None);
        assert_eq!(decide(&pod("Succeeded"), &settings), None);
        assert!(decide(&PodView { ready: false, ..pod("Running") }, &settings).is_some());
    }

    #[test]
    fn a_pod_ends_within_its_grace() {
        let ending = |grace, takes: Option<&str>| PodView {
            ending: Some(grace),
            takes: takes.map(str::to_owned),
            ..pod("Running")
        };
        assert_eq!(ends(&ending(30, None)), Some(1));
        assert_eq!(ends(&ending(0, None)), Some(0));
        assert_eq!(ends(&ending(30, Some("5"))), Some(5));
        assert_eq!(ends(&ending(30, Some("500"))), Some(30), "killed at the end of its grace");
        assert_eq!(ends(&ending(30, Some("soon"))), Some(1));
        assert_eq!(ends(&ending(30, Some("-1"))), Some(1));
        assert_eq!(ends(&ending(30, Some("never"))), None);
    }
}
