//! Condition types, by kind.

/// Conditions of a MachineDeployment.
pub mod machine_deployment {
    /// Enough machines are available.
    pub const AVAILABLE: &str = "Available";
    /// A rollout makes progress, or is complete. The progress deadline counts from its `lastUpdateTime`.
    pub const PROGRESSING: &str = "Progressing";
    /// A machine could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// The deployment has too many machines and is frozen.
    pub const FROZEN: &str = "Frozen";
    /// Ours, present only while True: the deployment has not reached its spec.
    pub const RECONCILING: &str = "Reconciling";
    /// Ours, present only while True: the deployment cannot reach its spec without help.
    pub const STALLED: &str = "Stalled";
    /// Ours, present only while True: more machines have failed than the status lists.
    pub const FAILED_MACHINES_TRUNCATED: &str = "FailedMachinesTruncated";
}

/// Conditions of a MachineSet.
pub mod machine_set {
    /// A machine could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// The set has too many machines and is frozen.
    pub const FROZEN: &str = "Frozen";
    /// Ours, present only while True: more machines have failed than the status lists.
    pub const FAILED_MACHINES_TRUNCATED: &str = "FailedMachinesTruncated";
}

/// Conditions of a Machine besides those that are copied from its Node. All are ours.
pub mod machine {
    /// The VM exists, and the provider has proven that it is the Machine's.
    pub const INSTANCE_PROVISIONED: &str = "InstanceProvisioned";
    /// Present only while True: the VM was made for a former Machine of this name, and no other Machine has it. The message is the
    /// UID of the former Machine, by which the VM is found.
    pub const VM_ADOPTED: &str = "VMAdopted";
    /// The Node has joined the target cluster.
    pub const NODE_JOINED: &str = "NodeJoined";
    /// The Node is drained.
    pub const DRAINED: &str = "Drained";
    /// No volume is attached to the Node.
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    /// The VM is gone.
    pub const INSTANCE_TERMINATED: &str = "InstanceTerminated";
    /// The Node object is gone.
    pub const NODE_DELETED: &str = "NodeDeleted";
    /// The MachineClass and its Secrets exist and are valid.
    pub const CONFIGURATION_VALID: &str = "ConfigurationValid";
    /// Present only while False: the replacement of the machine waits until fewer machines of its deployment are replaced.
    pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
    /// Present only while the machine is unhealthy. True: the message is the time at which it fails. False: an annotation of its
    /// Node keeps it from that.
    pub const HEALTH_TIMEOUT: &str = "HealthTimeout";
    /// Present only while False: the Node object exists and cannot be decoded.
    pub const NODE_READABLE: &str = "NodeReadable";
    /// Present only while True: the machine has waited for a while for something that no other condition names.
    pub const WAITING: &str = "Waiting";
    /// Present only while False: the Node has the taint of a kubelet with `--cloud-provider=external`, and why it keeps it.
    pub const NODE_INITIALIZED: &str = "NodeInitialized";
    /// Present only while False: the Node is not ready, and the provider has said twice that it knows no VM. The message is its id.
    pub const INSTANCE_EXISTS: &str = "InstanceExists";
    /// Present only while False: the Node is not ready, and its VM is stopped.
    pub const INSTANCE_RUNNING: &str = "InstanceRunning";
    /// All types of this module. Other types are the Node's.
    pub const ALL: [&str; 15] = [
        INSTANCE_PROVISIONED,
        VM_ADOPTED,
        NODE_JOINED,
        DRAINED,
        VOLUMES_DETACHED,
        INSTANCE_TERMINATED,
        NODE_DELETED,
        CONFIGURATION_VALID,
        REMEDIATION_ALLOWED,
        HEALTH_TIMEOUT,
        NODE_READABLE,
        WAITING,
        NODE_INITIALIZED,
        INSTANCE_EXISTS,
        INSTANCE_RUNNING,
    ];
}

/// Conditions of a MachineClass. All are ours.
pub mod machine_class {
    /// The Secrets exist and have the keys that the driver needs.
    pub const SECRETS_FOUND: &str = "SecretsFound";
    /// The driver accepts the providerSpec.
    pub const PROVIDER_SPEC_VALID: &str = "ProviderSpecValid";
    /// At least one Machine refers to the class.
    pub const IN_USE: &str = "InUse";
    /// False: Nodes have the taint of an uninitialized Node, and no Machine, so that this manager does not initialize them. Only with
    /// `--cloud-node=on` or `auto`.
    pub const NODES_INITIALIZED: &str = "NodesInitialized";
}

/// Conditions of a Node.
pub mod node {
    /// Written before the drain.
    pub const TERMINATING: &str = "Terminating";
    /// Written while the machine is preserved, and once that has ended.
    pub const PRESERVED: &str = "Preserved";
    /// Written in the course of an update in place: its reason says how far that is.
    pub const IN_PLACE_UPDATE: &str = "InPlaceUpdate";
    /// Written by the kubelet, and read.
    pub const READY: &str = "Ready";
    /// Written by the node-problem-detector, and read: nothing can be written to the file system of the Node.
    pub const READONLY_FILESYSTEM: &str = "ReadonlyFilesystem";
    /// The conditions that make a machine unhealthy unless they are False, by default.
    pub const DEFAULT_UNHEALTHY: [&str; 4] =
        ["KernelDeadlock", READONLY_FILESYSTEM, "DiskPressure", "NetworkUnavailable"];
}

/// Conditions of ControllerConfigs, as machine-config-operator's template controller has them.
pub mod controller_config {
    /// Several MachineConfigs are being written, or deleted.
    pub const RUNNING: &str = "TemplateControllerRunning";
    /// All MachineConfigs are what the templates make.
    pub const COMPLETED: &str = "TemplateControllerCompleted";
    /// The templates could not be rendered, or a MachineConfig not be made. The message names file and line.
    pub const FAILING: &str = "TemplateControllerFailing";
}

/// Conditions of KubeletConfigs, as machine-config-operator's controller has them.
pub mod kubelet_config {
    /// A MachineConfig has been made of it for each of its pools. While it is False, the message says what to correct.
    pub const ACCEPTED: &str = "Accepted";
}

/// Conditions of a MachineConfigPool that Nodewright writes, and those that make it degraded.
pub mod machine_config_pool {
    /// The pool has a target, whose name is the message: removing it from the spec does not undo what was evaluated with it.
    pub const RENDERED: &str = "Rendered";
    /// What the pool selects cannot become its target.
    pub const RENDER_DEGRADED: &str = "RenderDegraded";
    /// All nodes run the target, and are ready.
    pub const UPDATED: &str = "Updated";
    /// Nodes are being updated, or are to be.
    pub const UPDATING: &str = "Updating";
    /// The agents of nodes report failures.
    pub const NODE_DEGRADED: &str = "NodeDegraded";
    /// Ours, present only while True: nodes have yet to run the target.
    pub const RECONCILING: &str = "Reconciling";
    /// Ours, present only while True: the pool does not get on without help.
    pub const STALLED: &str = "Stalled";
    /// One of [`PARTS`] is True.
    pub const DEGRADED: &str = "Degraded";
    /// The conditions that [`DEGRADED`] sums up.
    pub const PARTS: [&str; 5] =
        [RENDER_DEGRADED, NODE_DEGRADED, "ImageBuildDegraded", "PinnedImageSetsDegraded", "PoolSynchronizerDegraded"];
}
