//! Types of conditions, by the kind that carries them.

/// Conditions of a MachineDeployment.
pub mod machine_deployment {
    /// Enough machines are available.
    pub const AVAILABLE: &str = "Available";
    /// A rollout goes on, or is complete. `lastUpdateTime` is the clock of the progress deadline.
    pub const PROGRESSING: &str = "Progressing";
    /// A machine could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// The deployment is frozen: there are too many machines.
    pub const FROZEN: &str = "Frozen";
    /// Ours, and only there while True: the deployment is on its way to what is declared.
    pub const RECONCILING: &str = "Reconciling";
    /// Ours, and only there while True: the deployment will not get on without help.
    pub const STALLED: &str = "Stalled";
    /// Ours, and only there while True: more machines have failed than the status lists.
    pub const FAILED_MACHINES_TRUNCATED: &str = "FailedMachinesTruncated";
}

/// Conditions of a MachineSet.
pub mod machine_set {
    /// A machine could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// The set is frozen: there are too many machines.
    pub const FROZEN: &str = "Frozen";
    /// Ours, and only there while True: more machines have failed than the status lists.
    pub const FAILED_MACHINES_TRUNCATED: &str = "FailedMachinesTruncated";
}

/// Conditions that a Machine has beside those of its Node. All are ours.
pub mod machine {
    /// The instance exists.
    pub const INSTANCE_PROVISIONED: &str = "InstanceProvisioned";
    /// The driver has initialised the instance.
    pub const INSTANCE_INITIALIZED: &str = "InstanceInitialized";
    /// The Node has joined the target cluster.
    pub const NODE_JOINED: &str = "NodeJoined";
    /// The Node is drained.
    pub const DRAINED: &str = "Drained";
    /// No volume is attached to the Node any more.
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    /// The instance is gone.
    pub const INSTANCE_TERMINATED: &str = "InstanceTerminated";
    /// The Node object is gone.
    pub const NODE_DELETED: &str = "NodeDeleted";
    /// What is declared for the machine can be acted on: its class and the secrets exist and are valid.
    pub const CONFIGURATION_VALID: &str = "ConfigurationValid";
    /// Only there while False: the machine is to be replaced, and waits until fewer machines of its deployment are.
    pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
    /// Only there while True: the machine is not well, and is given up at the time that is the message.
    pub const HEALTH_TIMEOUT: &str = "HealthTimeout";
    /// Only there while False: the Node exists, and its object cannot be read.
    pub const NODE_READABLE: &str = "NodeReadable";

    /// All of the above, which tells them from the conditions of the Node.
    pub const ALL: [&str; 11] = [
        INSTANCE_PROVISIONED,
        INSTANCE_INITIALIZED,
        NODE_JOINED,
        DRAINED,
        VOLUMES_DETACHED,
        INSTANCE_TERMINATED,
        NODE_DELETED,
        CONFIGURATION_VALID,
        REMEDIATION_ALLOWED,
        HEALTH_TIMEOUT,
        NODE_READABLE,
    ];
}

/// Conditions of a MachineClass. All are ours.
pub mod machine_class {
    /// The secrets exist and hold what is needed.
    pub const SECRETS_FOUND: &str = "SecretsFound";
    /// The driver can read the providerSpec.
    pub const PROVIDER_SPEC_VALID: &str = "ProviderSpecValid";
    /// At least one machine names the class.
    pub const IN_USE: &str = "InUse";
}

/// Conditions of a Node: those that are written, and those that are read by name.
pub mod node {
    /// Written before the drain.
    pub const TERMINATING: &str = "Terminating";
    /// Written during an update in place; its reason says how far it has come.
    pub const IN_PLACE_UPDATE: &str = "InPlaceUpdate";
    /// Written while the machine is preserved.
    pub const PRESERVED: &str = "Preserved";
    /// Read: the kubelet is healthy.
    pub const READY: &str = "Ready";
    /// Read: a disk of the node cannot be written.
    pub const READONLY_FILESYSTEM: &str = "ReadonlyFilesystem";

    /// The conditions that make a machine unhealthy unless they are False, when neither a flag nor the
    /// Machine says otherwise.
    pub const DEFAULT_UNHEALTHY: [&str; 4] =
        ["KernelDeadlock", READONLY_FILESYSTEM, "DiskPressure", "NetworkUnavailable"];
}
