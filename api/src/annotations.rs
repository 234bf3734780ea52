//! Annotation keys and their values.
//!
//! Unless it says otherwise, a key is MCM's and means what it means there.

/// On a Machine: its deletion priority, an integer; a smaller one is deleted earlier.
pub const MACHINE_PRIORITY: &str = "machinepriority.machine.sapcloud.io";

/// The priority of a machine without a readable [`MACHINE_PRIORITY`].
pub const MACHINE_PRIORITY_DEFAULT: i64 = 3;

/// The [`MACHINE_PRIORITY`] of a machine that has been chosen for deletion.
pub const MACHINE_PRIORITY_CANDIDATE: &str = "1";

/// On a Machine: when it was chosen for deletion (RFC 3339).
pub const MARKED_FOR_DELETION_TIME: &str = "machine.sapcloud.io/marked-for-deletion-time";

/// On a MachineDeployment, copied to its machine sets: when the autoscaler last changed the replicas
/// (RFC 3339).
pub const LAST_REPLICA_CHANGE_BY_SCALER_TIME: &str =
    "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time";

/// On a MachineDeployment: the machines that the autoscaler wants to be deleted, `machine~time` joined by
/// commas (RFC 3339). A name without a time is accepted.
pub const TRIGGER_DELETION: &str = "node.machine.sapcloud.io/trigger-deletion-by-mcm";

/// On a MachineDeployment, its machine sets and machines: a Go duration in place of
/// `spec.creationTimeout`.
pub const EFFECTIVE_CREATION_TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";

/// On a Machine: how long its node took to join, a Go duration.
pub const MACHINE_JOIN_DURATION: &str = "node.machine.sapcloud.io/machine-join-duration";

/// On a Machine or Node: whether the machine is preserved; one of [`PRESERVE_VALUES`]. The Node's value
/// wins.
pub const PRESERVE: &str = "node.machine.sapcloud.io/preserve";

/// [`PRESERVE`]: whatever the phase.
pub const PRESERVE_NOW: &str = "now";

/// [`PRESERVE`]: once the machine has failed.
pub const PRESERVE_WHEN_FAILED: &str = "when-failed";

/// [`PRESERVE`]: written by the machine set controller for a failed machine.
pub const PRESERVE_AUTO: &str = "auto-preserved";

/// [`PRESERVE`]: never; ends a preservation that is going on.
pub const PRESERVE_FALSE: &str = "false";

/// What [`PRESERVE`] may say.
pub const PRESERVE_VALUES: [&str; 4] = [PRESERVE_NOW, PRESERVE_WHEN_FAILED, PRESERVE_AUTO, PRESERVE_FALSE];

/// On a Machine: the last value of [`PRESERVE`] seen on the Node, by which its removal is noticed.
pub const LAST_APPLIED_NODE_PRESERVE_VALUE: &str = "node.machine.sapcloud.io/last-applied-node-preserve-value";

/// On a Node: the annotations, labels and taints that were last copied from the Machine, as JSON; MCM's base of a
/// three-way merge. Written for MCM; ours is [`APPLIED_NODE_TEMPLATE`].
pub const LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";

/// On a Node: the virtual capacity that was last written, as JSON.
pub const LAST_APPLIED_VIRTUAL_CAPACITY: &str = "node.machine.sapcloud.io/last-applied-virtual-capacity";

/// On a Node, value [`NOT_MANAGED_VALUE`]: no Machine was found for it.
pub const NOT_MANAGED: &str = "node.machine.sapcloud.io/not-managed-by-mcm";

/// The value of [`NOT_MANAGED`].
pub const NOT_MANAGED_VALUE: &str = "1";

/// On a Node: why an update in place failed; written by the agent on the node.
pub const UPDATE_FAILED_REASON: &str = "node.machine.sapcloud.io/update-failed-reason";

/// On a Node, value [`SCALE_DOWN_DISABLED_VALUE`]: the autoscaler leaves it alone.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// On a Node, value [`SCALE_DOWN_DISABLED_VALUE`]: [`SCALE_DOWN_DISABLED`] was set by the controllers and
/// is theirs to remove.
pub const SCALE_DOWN_DISABLED_BY_MCM: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";

/// The value of [`SCALE_DOWN_DISABLED`] and [`SCALE_DOWN_DISABLED_BY_MCM`].
pub const SCALE_DOWN_DISABLED_VALUE: &str = "true";

/// On a MachineDeployment or MachineSet, any value: unfreezes it once and is then removed.
pub const UNFREEZE: &str = "safety.machine.sapcloud.io/unfreeze";

/// On a MachineSet or MachineDeployment: the revision of the template.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// On a MachineSet: its former revisions, joined by commas.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";

/// On a MachineSet: the replicas of its deployment when it was last scaled.
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";

/// On a MachineSet: the replicas of its deployment and the surge on top when it was last scaled.
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// On a MachineSet: the taint [`taints::PREFER_NO_SCHEDULE`](crate::taints::PREFER_NO_SCHEDULE) stands on
/// its nodes. The key is that of the taint.
pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";

/// The value of [`PREFER_NO_SCHEDULE`].
pub const PREFER_NO_SCHEDULE_VALUE: &str = "True";

/// kubectl's own. Never copied from a MachineDeployment to its machine sets.
pub const KUBECTL_LAST_APPLIED_CONFIGURATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// On the node template of an AWS machine: the placement of the instance, as JSON.
pub const AWS_PLACEMENT: &str = "machine.sapcloud.io/awsPlacement";

/// On MCM's Deployment: the dependency watchdog does not scale it.
pub const DEPENDENCY_WATCHDOG_IGNORE_SCALING: &str = "dependency-watchdog.gardener.cloud/ignore-scaling";

/// The prefix of the autoscaler's own annotations of a MachineDeployment, which are passed through.
pub const AUTOSCALER_PREFIX: &str = "autoscaler.gardener.cloud/";

/// The prefix of the annotations that only Nodewright knows.
pub const NODEWRIGHT_PREFIX: &str = "nodewright.dev/";

/// Ours, on a MachineSet: the ledger of the names of its machines.
pub const LEDGER: &str = "nodewright.dev/ledger";

/// Ours, on a MachineSet: the MachineDeployment for which it was sized last, as UID and generation, `<uid>/<generation>`.
/// Who has seen an older generation of that deployment does not size its sets.
pub const SIZED_FOR: &str = "nodewright.dev/sized-for";

/// Ours, on a MachineClass that machines use: by what their VMs are found, as JSON, see [`ClassIdentity`](crate::ClassIdentity).
pub const IDENTITY: &str = "nodewright.dev/identity";

/// Ours, on a Machine: its index in the ledger of its set, a decimal number. Counts only if the name of
/// the machine belongs to the index.
pub const INDEX: &str = "nodewright.dev/index";

/// Ours, on a Machine: what was put on its Node, as JSON: the keys of labels and annotations, and the taints as
/// `key:effect`. Absent when that is nothing. MCM has this on the Node
/// ([`LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS`]), where a kubelet can write it.
pub const APPLIED_NODE_TEMPLATE: &str = "nodewright.dev/applied-node-template";

/// Ours, on any of the four kinds: the W3C trace context (`traceparent`) of the request that last changed
/// the object's spec.
pub const TRACEPARENT: &str = "nodewright.dev/traceparent";

/// Ours, on a MachineDeployment: how many of its machines may be replaced for bad health at once; a number
/// or a percentage of its machines. Absent is [`REMEDIATION_MAX_IN_FLIGHT_DEFAULT`].
pub const REMEDIATION_MAX_IN_FLIGHT: &str = "nodewright.dev/remediation-max-in-flight";

/// The value of an absent [`REMEDIATION_MAX_IN_FLIGHT`].
pub const REMEDIATION_MAX_IN_FLIGHT_DEFAULT: i32 = 1;

/// Ours, on a MachineDeployment or MachineSet: which machine goes first among equals; one of
/// [`DELETION_ORDER_VALUES`]. Absent is [`DELETION_ORDER_OLDEST`], which is MCM's.
pub const DELETION_ORDER: &str = "nodewright.dev/deletion-order";

/// [`DELETION_ORDER`]: the oldest machine goes first.
pub const DELETION_ORDER_OLDEST: &str = "Oldest";

/// [`DELETION_ORDER`]: the newest machine goes first.
pub const DELETION_ORDER_NEWEST: &str = "Newest";

/// What [`DELETION_ORDER`] may say.
pub const DELETION_ORDER_VALUES: [&str; 2] = [DELETION_ORDER_OLDEST, DELETION_ORDER_NEWEST];
