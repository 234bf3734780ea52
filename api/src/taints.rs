//! Keys of Node taints.

/// Effect `PreferNoSchedule`, value [`PREFER_NO_SCHEDULE_VALUE`]: the node belongs to an old MachineSet of
/// a rollout.
pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";

/// The value of [`PREFER_NO_SCHEDULE`].
pub const PREFER_NO_SCHEDULE_VALUE: &str = "True";

/// Effect `NoSchedule`: the node lacks critical components, and its machine stays Pending. Also set after
/// an update in place.
pub const CRITICAL_COMPONENTS_NOT_READY: &str = "node.gardener.cloud/critical-components-not-ready";

/// Effect `NoSchedule`: the machine of the node has failed and is preserved.
pub const PRESERVED: &str = "node.machine.sapcloud.io/preserved";

/// Set by Kubernetes on a node that is cordoned.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
