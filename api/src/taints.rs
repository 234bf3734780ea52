//! Keys of Node taints.

/// Effect `PreferNoSchedule`, value [`PREFER_NO_SCHEDULE_VALUE`]: the Node belongs to an old MachineSet of a rollout.
pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
/// The value of [`PREFER_NO_SCHEDULE`].
pub const PREFER_NO_SCHEDULE_VALUE: &str = "True";
/// Effect `NoSchedule`: the Node lacks critical components, and its Machine stays Pending.
pub const CRITICAL_COMPONENTS_NOT_READY: &str = "node.gardener.cloud/critical-components-not-ready";
/// Kubernetes sets this taint on a cordoned Node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Effect `NoSchedule`: the machine of the Node has failed and is preserved.
pub const PRESERVED: &str = "node.machine.sapcloud.io/preserved";
/// Effect `PreferNoSchedule`: the Node has yet to be given the target of its MachineConfigPool. Pods that leave other Nodes avoid it.
pub const UPDATE_IN_PROGRESS: &str = "UpdateInProgress";
/// A kubelet with `--cloud-provider=external` sets this taint, effect `NoSchedule`, until its Node is initialized.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Effect `NoSchedule`: the VM of the Node is stopped.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
