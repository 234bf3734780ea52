//! Names and paths of the objects and managers in a run.

use serde_json::{Value, json};

/// The namespace of a run's objects.
pub(super) const NAMESPACE: &str = "default";
/// The collections of a run.
pub(super) const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";
pub(super) const SETS: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinesets";
pub(super) const DEPLOYMENTS: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments";
pub(super) const CLASSES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machineclasses";
pub(super) const NODES: &str = "/api/v1/nodes";
/// The deployment.
pub(super) const POOL: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments/pool";
/// The prefix of the labels of node templates.
pub(super) const NODE_LABELS: &str = "pool.example.com/";

/// The labels of a node template.
pub(super) fn node_labels(name: &str) -> Value {
    json!({format!("{NODE_LABELS}{name}"): "1"})
}

/// The slot of the first manager.
pub(super) const FIRST: &str = "a";
/// The slot of the second manager.
pub(super) const SECOND: &str = "b";
/// The leases of machine-controller-manager's two processes.
pub(super) const LEASES: [&str; 2] = ["machine-controller-manager", "machine-controller"];
/// The prefix of the `User-Agent` of all managers.
pub(super) const MANAGER: &str = "nodewright-";

/// The prefix of the names of all managers in a slot.
pub(super) fn prefix(slot: &str) -> String {
    format!("{MANAGER}{slot}")
}

/// The kinds whose watches may fail.
pub(super) const WATCHED: [&str; 5] = ["machines", "machinesets", "machinedeployments", "machineclasses", "nodes"];
/// The kinds that the drain of a Node watches.
pub(super) const DRAIN_WATCHED: [&str; 4] =
    ["pods", "poddisruptionbudgets", "persistentvolumeclaims", "volumeattachments"];
/// The kinds of which a run may write unreadable objects.
pub(super) const GARBLED: [&str; 4] = ["nodes", "machines", "machinesets", "machineclasses"];

/// A VM of another cluster, with its Node. Managers must never change either.
pub(super) const BYSTANDER: &str = "bystander";
/// A Node that a user creates by hand. It sorts before all others by name.
pub(super) const BY_HAND: &str = "aaa-by-hand";
/// The prefix of the names of copied machines.
pub(super) const COPY: &str = "aaa-copy";

/// The prefix of the names of VMs with the tags of machines that never existed.
pub(super) const LOST: &str = "lost-";

/// Whether a VM of this name is an orphan from its creation.
pub(super) fn is_lost(name: &str) -> bool {
    name.starts_with(LOST)
}

/// The prefix of the names of Nodes of the pool of node configuration, which no machine has.
pub(super) const CONFIGURED: &str = "configured-";

/// The prefix of the names of Nodes whose pools update them. No machine has them, and Pods run there.
pub(super) const MEMBER: &str = "member-";

/// Whether a Node of this name is one that a pool updates.
pub(super) fn is_member(name: &str) -> bool {
    name.starts_with(MEMBER)
}

/// The collections of node configuration.
pub(super) const CONFIGS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
pub(super) const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
/// Their kinds.
pub(super) const POOL_WATCHED: [&str; 2] = ["machineconfigpools", "machineconfigs"];

/// A namespace that another manager serves, and the prefix of the names of its VMs.
pub(super) const NEIGHBOUR: &str = "neighbour";
/// Its machines.
pub(super) const NEIGHBOURS: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/neighbour/machines";

/// Whether a VM or a Node of this name belongs to no machine of the run's namespace.
pub(super) fn is_foreign(name: &str) -> bool {
    [BYSTANDER, BY_HAND].contains(&name)
        || [CONFIGURED, MEMBER, NEIGHBOUR].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the Pods of a run may be on a Node of this name.
pub(super) fn takes_pods(name: &str) -> bool {
    is_member(name) || !is_foreign(name)
}
