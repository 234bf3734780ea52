//! The initial state of a run.

use serde_json::{Value, json};

use super::{
    limits::Limits,
    names::{NAMESPACE, node_labels},
    rollouts::Rollout,
    trace::Detail,
    updates::Orchestration,
    workload::Workload,
};

/// The parameters of a cluster.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Debug)]
pub(super) struct Design {
    pub(super) seed: u64,
    pub(super) replicas: u32,
    pub(super) surge: u32,
    pub(super) unavailable: u32,
    pub(super) revisions: Option<u32>,
    /// Whether managers acquire leases before they write.
    pub(super) elects: bool,
    /// Whether kubelets renew their leases, and the control plane checks that they do.
    pub(super) heartbeats: bool,
    /// Whether the pool has Nodewright's default timeouts instead of short ones.
    pub(super) quiet: bool,
    /// Seconds between the bookmarks of watches; 0 for none.
    pub(super) bookmarks: Option<u32>,
    /// The limit for concurrent calls to the cloud, if any.
    pub(super) calls_at_once: Option<usize>,
    pub(super) limits: Limits,
    /// The pods, if there are any.
    pub(super) workload: Option<Workload>,
    /// Who selects the machines of updates in place.
    pub(super) in_place: Option<Orchestration>,
    /// The pools that update their Nodes.
    pub(super) rollout: Option<Rollout>,
    /// Whether kubelets leave addresses to a cloud controller manager, and none runs.
    pub(super) cloud_nodes: bool,
    /// The detail of the trace.
    pub(super) detail: Detail,
}

/// The deployment as a user applies it.
pub(super) fn pool(design: &Design) -> Value {
    let mut pool = json!({
        "apiVersion": nodewright_api::API_VERSION,
        "kind": "MachineDeployment",
        "metadata": {"name": "pool", "namespace": NAMESPACE},
        "spec": {
            "replicas": design.replicas,
            "selector": {"matchLabels": {"pool": "pool"}},
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": design.surge, "maxUnavailable": design.unavailable}},
            "template": {
                "metadata": {"labels": {"pool": "pool"}},
                "spec": {"class": {"kind": "MachineClass", "name": "small"}, "healthTimeout": "3m0s",
                    "creationTimeout": "20m0s", "drainTimeout": "5m0s",
                    "nodeTemplate": {"metadata": {"labels": node_labels("first")}}},
            },
        },
    });
    if let Some(orchestration) = design.in_place {
        pool["spec"]["strategy"] = orchestration.strategy(design.surge, design.unavailable);
    }
    if design.quiet
        && let Some(spec) = pool["spec"]["template"]["spec"].as_object_mut()
    {
        spec.retain(|field, _| field == "class" || field == "nodeTemplate");
    }
    if let Some(revisions) = design.revisions {
        pool["spec"]["revisionHistoryLimit"] = revisions.into();
    }
    pool
}
