//! Annotation keys and their values. A key is MCM's, with MCM's meaning unless its text differs. "Ours" begins the text of
//! one that is not MCM's.

/// On a Node, value [`NOT_MANAGED_VALUE`]: it has no Machine any more.
pub const NOT_MANAGED: &str = "node.machine.sapcloud.io/not-managed-by-mcm";
/// The value of [`NOT_MANAGED`].
pub const NOT_MANAGED_VALUE: &str = "1";
/// On a Machine: the deletion priority, an integer. Machines with a smaller one are deleted earlier.
pub const MACHINE_PRIORITY: &str = "machinepriority.machine.sapcloud.io";
/// The priority of a Machine without a valid [`MACHINE_PRIORITY`].
pub const MACHINE_PRIORITY_DEFAULT: i64 = 3;
/// Value of [`MACHINE_PRIORITY`]: that of a Machine that was chosen for deletion.
pub const MACHINE_PRIORITY_CANDIDATE: &str = "1";
/// On a Machine: when it was chosen for deletion (RFC 3339).
pub const MARKED_FOR_DELETION_TIME: &str = "machine.sapcloud.io/marked-for-deletion-time";
/// On a MachineDeployment, copied to its MachineSets: when the autoscaler last changed the replicas (RFC 3339).
pub const LAST_REPLICA_CHANGE_BY_SCALER_TIME: &str =
    "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time";
/// On a MachineDeployment: the machines that the autoscaler removes, as `machine~time,…`. The time (RFC 3339) is optional.
pub const TRIGGER_DELETION: &str = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
/// On a MachineDeployment, its MachineSets and Machines: a Go duration that overrides `spec.creationTimeout`.
pub const EFFECTIVE_CREATION_TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";
/// On a Node, by its kubelet: the IPs that its flag `--node-ip` names, separated by a comma.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// On a Machine or its Node: whether the machine is preserved. That of the Node takes precedence.
///
/// One of [`PRESERVE_VALUES`], see [`Preserve`](crate::stored::Preserve).
pub const PRESERVE: &str = "node.machine.sapcloud.io/preserve";
/// Value of [`PRESERVE`]: in every phase.
pub const PRESERVE_NOW: &str = "now";
/// Value of [`PRESERVE`]: once the machine has failed, until it is healthy again.
pub const PRESERVE_WHEN_FAILED: &str = "when-failed";
/// Value of [`PRESERVE`]: a MachineSet writes it for a failed machine. It ends when the machine is healthy again.
pub const PRESERVE_AUTO: &str = "auto-preserved";
/// Value of [`PRESERVE`]: never. It ends a preservation, too.
pub const PRESERVE_FALSE: &str = "false";
/// The values of [`PRESERVE`].
pub const PRESERVE_VALUES: [&str; 4] = [PRESERVE_NOW, PRESERVE_WHEN_FAILED, PRESERVE_AUTO, PRESERVE_FALSE];
/// On a Machine: the value of [`PRESERVE`] that its Node had last. If the Node has none any more, a user has removed it there.
pub const LAST_APPLIED_NODE_PRESERVE_VALUE: &str = "node.machine.sapcloud.io/last-applied-node-preserve-value";
/// On a Node: the annotations, labels and taints that were last copied from the Machine, as JSON. The base of MCM's
/// three-way merge. Nodewright writes it for MCM, and reads [`APPLIED_NODE_TEMPLATE`].
pub const LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";
/// On a Node: the `virtualCapacity` of its class that was added to its capacity, as JSON.
pub const LAST_APPLIED_VIRTUAL_CAPACITY: &str = "node.machine.sapcloud.io/last-applied-virtual-capacity";
/// On a MachineDeployment or MachineSet, with any value: unfreezes it once. The controller removes it.
pub const UNFREEZE: &str = "safety.machine.sapcloud.io/unfreeze";
/// On a MachineSet or MachineDeployment: the revision of the template.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// On a MachineSet: its former revisions, separated by commas.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// On a MachineSet: the replicas of its deployment when the set was last scaled.
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// On a MachineSet: the replicas plus the surge of its deployment when the set was last scaled.
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// On a Node: the cluster autoscaler does not remove it.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// On a Node: a controller manager has set [`SCALE_DOWN_DISABLED`], and removes it.
pub const SCALE_DOWN_DISABLED_BY_MCM: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";
/// On a MachineSet: its Nodes have the taint [`crate::taints::PREFER_NO_SCHEDULE`], which has the same key.
pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
/// The value of [`PREFER_NO_SCHEDULE`].
pub const PREFER_NO_SCHEDULE_VALUE: &str = "True";
/// kubectl's own. Never copied from a MachineDeployment to its MachineSets.
pub const KUBECTL_LAST_APPLIED_CONFIGURATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Ours, on a MachineSet: the ledger of the names of its Machines.
pub const LEDGER: &str = "nodewright.dev/ledger";
/// Ours, on a MachineSet whose machines do not join: how many rounds of replacements there were in a row, the first index of the
/// newest one, and when that began (RFC 3339), as `3;42;2026-06-01T12:00:00Z`. Without it failed machines are replaced at once.
pub const CREATION_BACKOFF: &str = "nodewright.dev/creation-backoff";
/// Ours, on a MachineSet: the MachineDeployment that last sized it, as `<uid>/<generation>`. A controller that has seen an
/// older generation of the deployment does not size its sets.
pub const SIZED_FOR: &str = "nodewright.dev/sized-for";
/// Ours, on a MachineClass in use: the fields that identify the VMs of its machines, as JSON.
///
/// A [`ClassIdentity`](crate::ClassIdentity).
pub const IDENTITY: &str = "nodewright.dev/identity";
/// Ours, on a MachineClass: VMs without a Machine of whose deletion nothing is known, and since when each was seen, as JSON:
/// `{"<provider id>":"<RFC 3339>"}`.
pub const UNEXPLAINED_VMS: &str = "nodewright.dev/unexplained-vms";
/// Ours, on a MachineClass: orphaned VMs whose deletion was asked for, and the Machines of their tags, as JSON. Their Nodes follow.
pub const SWEPT_VMS: &str = "nodewright.dev/swept-vms";
/// Ours, on a Node whose cloud part this manager does: the MachineClass of its Machine, as `<namespace>/<name>/<uid>`. After the Machine, the
/// lists of the class show whether its VM exists.
pub const MACHINE_CLASS: &str = "nodewright.dev/machine-class";
/// Ours, on a Node without a Machine: the provider id of its VM, which two lists of the provider have lacked; empty if the Node has
/// none. The Node is deleted.
pub const VM_MISSING: &str = "nodewright.dev/vm-missing";
/// Ours, on a Machine: its decimal index in the ledger of its set. Valid only with the name that belongs to the index.
pub const INDEX: &str = "nodewright.dev/index";
/// Ours, on a Machine: what was copied to its Node, as JSON: the keys of labels and annotations, and the taints as
/// `key:effect`. Absent when nothing was copied. MCM keeps this on the Node
/// ([`LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS`]), where a kubelet can write it.
pub const APPLIED_NODE_TEMPLATE: &str = "nodewright.dev/applied-node-template";
/// Ours, on each of the four kinds: the W3C trace context (`traceparent`) of the request that last changed the spec.
pub const TRACEPARENT: &str = "nodewright.dev/traceparent";
/// Ours, on a MachineDeployment: the generation that the request of [`TRACEPARENT`] made. A newer one is that of a request that no
/// webhook has seen, such as one to the subresource `scale`.
pub const TRACEPARENT_GENERATION: &str = "nodewright.dev/traceparent-generation";
/// Ours, on a Machine: the W3C trace context of the decision that it goes, which a set writes before the deletion if it exports traces.
pub const DELETION_TRACEPARENT: &str = "nodewright.dev/deletion-traceparent";
/// Ours, on a MachineDeployment: how many unhealthy machines may be replaced at once, a number or a percentage (default 1).
pub const REMEDIATION_MAX_IN_FLIGHT: &str = "nodewright.dev/remediation-max-in-flight";
/// On a Node: why its update in place has failed. The program on the Node sets it with [`crate::labels::UPDATE_RESULT`].
pub const UPDATE_FAILED_REASON: &str = "node.machine.sapcloud.io/update-failed-reason";
/// Ours, on a MachineSet: the names of the machines of other sets that are being updated in place to its template.
pub const UPDATING: &str = "nodewright.dev/updating";
/// Ours, on a Node: when the drain before its update in place began (RFC 3339).
pub const UPDATE_BEGAN: &str = "nodewright.dev/update-began";
/// Ours, on a Node that is to be drained: `true` if the controller has made it unschedulable, and no one had before. During an update in
/// place, also `false`: it was unschedulable before, and stays so.
pub const CORDONED: &str = "nodewright.dev/cordoned";
/// Ours, on a MachineDeployment, or on one Machine: for how long single Node conditions may make a machine unhealthy until it is replaced,
/// such as `DiskPressure=30m,Ready=5m`.
///
/// See [`HealthTimeouts`](crate::HealthTimeouts).
pub const HEALTH_TIMEOUTS: &str = "nodewright.dev/health-timeouts";
/// Ours, on a Node, value [`DISABLE_HEALTH_TIMEOUT_VALUE`]: its Machine is not replaced for its health.
pub const DISABLE_HEALTH_TIMEOUT: &str = "nodewright.dev/disable-health-timeout";
/// The value of [`DISABLE_HEALTH_TIMEOUT`].
pub const DISABLE_HEALTH_TIMEOUT_VALUE: &str = "true";
/// Ours, on a MachineDeployment or MachineSet: which of equal machines is deleted first. Defaults to the oldest, as in MCM.
pub const DELETION_ORDER: &str = "nodewright.dev/deletion-order";
/// Value of [`DELETION_ORDER`]: the newest machine is deleted first.
pub const DELETION_ORDER_NEWEST: &str = "Newest";
/// The values of [`DELETION_ORDER`].
pub const DELETION_ORDER_VALUES: [&str; 2] = ["Oldest", DELETION_ORDER_NEWEST];
/// Ours, on a MachineConfigPool: the name of the rendered MachineConfig that the pool may target although much of the present
/// target is missing in it.
pub const ACCEPT_RENDER: &str = "nodewright.dev/accept-render";
/// Ours, on a rendered or generated MachineConfig: a digest of what it was made of. While that is the same, it stays.
pub const RENDER_INPUTS: &str = "nodewright.dev/render-inputs";
/// Ours, on a generated MachineConfig: a digest of its spec, by which changes of users are recognized.
pub const GENERATED_CONTENT: &str = "nodewright.dev/generated-content";
/// Ours, on a rendered MachineConfig: since when no pool and no Node names it (RFC 3339). Absent while one does.
pub const UNUSED_SINCE: &str = "nodewright.dev/unused-since";
/// Ours, on a MachineConfigPool: the nodes that may be disrupted now. An empty list is written as well: one that is missing is lost.
///
/// See [`Disruptions`](crate::stored::Disruptions).
pub const DISRUPTIONS: &str = "nodewright.dev/disruptions";
/// Ours, on a MachineConfigPool: the trace of the rollout of its target. Only while spans are exported.
///
/// See [`PoolRollout`](crate::stored::PoolRollout).
pub const POOL_ROLLOUT: &str = "nodewright.dev/rollout";
/// Ours, on a Node whose agent applies configurations: what is known of its drain.
///
/// See [`ConfigDrain`](crate::stored::ConfigDrain).
pub const CONFIG_DRAIN: &str = "nodewright.dev/config-drain";
/// Ours, on a Node whose agent applies configurations: how often a controller has given it one, or has taken back a claim on it (see
/// [`DISRUPTIONS`]). A request that comes too late tests it.
pub const CONFIG_GIVEN: &str = "nodewright.dev/config-given";
/// Ours, on a Node: an integer. Of the nodes of a MachineConfigPool, those with a larger one are updated first. Defaults to 0.
pub const UPDATE_PRIORITY: &str = "nodewright.dev/update-priority";
/// Ours, on a MachineConfigPool, or on a MachineDeployment before it makes a set: `"false"` keeps rollouts of machines, or of this deployment,
/// out of the disruption budget of the pool, which they share otherwise.
pub const SHARED_BUDGET: &str = "nodewright.dev/shared-budget";
/// Ours, on a MachineConfigPool: a Go duration, after which the drain of a node is forced, if [`DRAIN_POLICY`] says so.
pub const DRAIN_TIMEOUT: &str = "nodewright.dev/drain-timeout";
/// Ours, on a MachineConfigPool, value [`DRAIN_POLICY_FORCE`]: pods that have not left a node within [`DRAIN_TIMEOUT`] are deleted,
/// ignoring disruption budgets.
pub const DRAIN_POLICY: &str = "nodewright.dev/drain-policy";
/// The value of [`DRAIN_POLICY`].
pub const DRAIN_POLICY_FORCE: &str = "Force";

/// Our annotations that people set on MachineDeployments, MachineSets and Machines.
pub const OWN_SETTINGS: [&str; 4] = [DELETION_ORDER, HEALTH_TIMEOUTS, REMEDIATION_MAX_IN_FLIGHT, SHARED_BUDGET];

/// Our annotations of MachineDeployments, MachineSets, Machines and MachineClasses.
pub const OWN: [&str; 16] = [
    DELETION_ORDER,
    HEALTH_TIMEOUTS,
    REMEDIATION_MAX_IN_FLIGHT,
    SHARED_BUDGET,
    LEDGER,
    CREATION_BACKOFF,
    SIZED_FOR,
    UPDATING,
    IDENTITY,
    UNEXPLAINED_VMS,
    SWEPT_VMS,
    INDEX,
    APPLIED_NODE_TEMPLATE,
    TRACEPARENT,
    TRACEPARENT_GENERATION,
    DELETION_TRACEPARENT,
];
