//! Reasons of conditions and events, in CamelCase.

/// Reasons of the conditions of a MachineDeployment.
pub mod machine_deployment {
    /// `Progressing`: a MachineSet was scaled or changed.
    pub const MACHINE_SET_UPDATED: &str = "MachineSetUpdated";
    /// `Progressing`, and an event: the new MachineSet could not be created.
    pub const MACHINE_SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// `Progressing`: the new MachineSet was created.
    pub const NEW_MACHINE_SET_CREATED: &str = "NewMachineSetCreated";
    /// `Progressing`: a MachineSet with the template existed.
    pub const FOUND_NEW_MACHINE_SET: &str = "FoundNewMachineSet";
    /// `Progressing`: the rollout is complete. The autoscaler scales down only with this reason or [`PAUSED`].
    pub const NEW_MACHINE_SET_AVAILABLE: &str = "NewMachineSetAvailable";
    /// `Progressing`: the rollout made no progress before its deadline.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// `Progressing`: the deployment is paused.
    pub const PAUSED: &str = "DeploymentPaused";
    /// `Progressing`: the deployment was resumed.
    pub const RESUMED: &str = "DeploymentResumed";
    /// `Available` is True.
    pub const MINIMUM_REPLICAS_AVAILABLE: &str = "MinimumReplicasAvailable";
    /// `Available` is False.
    pub const MINIMUM_REPLICAS_UNAVAILABLE: &str = "MinimumReplicasUnavailable";
    /// `Stalled`, ours: the spec is invalid. The message names the field.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// `Stalled`, and an event of a Lease, ours: the clocks of the controller manager and of an API server differ.
    pub const CLOCK_SKEW: &str = "ClockSkew";
    /// `Stalled`, ours: a MachineSet was sized for a newer generation, and no quorum read has shown yet that there is none.
    pub const OLD_VIEW: &str = "OldView";
}

/// Reasons of the conditions of a MachineSet.
pub mod machine_set {
    /// `ReplicaFailure`: a machine could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// `ReplicaFailure`: a machine could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// `ReplicaFailure`, ours: what machines take over from the template could not be written to one.
    pub const FAILED_UPDATE: &str = "FailedUpdate";
    /// `ReplicaFailure`, ours: the spec is invalid. The message names the field.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// `ReplicaFailure`, ours: a limit for the number of machines is reached.
    pub const TOO_MANY_MACHINES: &str = "TooManyMachines";
    /// `ReplicaFailure`, ours: the template is too large to be copied into every machine.
    pub const TEMPLATE_TOO_LARGE: &str = "TemplateTooLarge";
    /// `ReplicaFailure`, also `Stalled` and an event of a MachineDeployment, ours: machines are created and do not join, one after
    /// the other, so that the next replacements wait.
    pub const CREATION_BACKOFF: &str = "CreationBackoff";
    /// `Frozen`, also of a MachineDeployment: there are too many machines.
    pub const OVERSHOOTING_REPLICA_COUNT: &str = "OverShootingReplicaCount";
    /// An event, ours: so many machines are unhealthy at once that replacements slow down or stop.
    pub const FLEET_BRAKE: &str = "FleetBrake";
}

/// Reasons of waits, conditions and events: an object exists and cannot be decoded, so that controllers must not act as if
/// it were absent. All are ours.
pub mod unreadable {
    /// A MachineClass.
    pub const MACHINE_CLASS: &str = "MachineClassUnreadable";
    /// A Secret of a MachineClass.
    pub const SECRET: &str = "SecretUnreadable";
    /// A MachineSet.
    pub const MACHINE_SET: &str = "MachineSetUnreadable";
    /// A Machine.
    pub const MACHINE: &str = "MachineUnreadable";
    /// A Node.
    pub const NODE: &str = "NodeUnreadable";
    /// A Pod.
    pub const POD: &str = "PodUnreadable";
    /// The ledger of a MachineSet.
    pub const LEDGER: &str = "InvalidLedger";
}

/// Reasons of the events of a Node that a cloud controller manager would initialize or delete.
pub mod node_lifecycle {
    /// The Node has no Machine, and its provider does not say what it gets.
    pub const NOT_INITIALIZED: &str = "NodeNotInitialized";
    /// The VM of the Node is gone, and so the Node goes.
    pub const DELETING_NODE: &str = "DeletingNode";
    /// The VM of the Node is gone, and the Node is kept for now: too many Nodes of its zone go or are not ready.
    pub const NODE_DELETION_BLOCKED: &str = "NodeDeletionBlocked";
}

/// Reasons of the condition `Terminating` of a Node.
pub mod node {
    /// The machine had failed.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The machine was healthy.
    pub const SCALE_DOWN: &str = "ScaleDown";
    /// `Preserved`, as MCM writes it: its set preserves the machine, because it has failed.
    pub const PRESERVED_BY_MCM: &str = "Preserved by MCM.";
    /// `Preserved`, as MCM writes it: a user has asked for it.
    pub const PRESERVED_BY_USER: &str = "Preserved by user.";
    /// `InPlaceUpdate`, as MCM writes it: the machine of the Node is of a former template.
    pub const CANDIDATE_FOR_UPDATE: &str = "CandidateForUpdate";
    /// `InPlaceUpdate`, as MCM writes it: the Node is being drained.
    pub const SELECTED_FOR_UPDATE: &str = "SelectedForUpdate";
    /// `InPlaceUpdate`, as MCM writes it: the Node is drained.
    pub const DRAIN_SUCCESSFUL: &str = "DrainSuccessful";
    /// `InPlaceUpdate`: the program on the Node may update it now.
    pub const READY_FOR_UPDATE: &str = "ReadyForUpdate";
    /// `InPlaceUpdate`: the program on the Node has updated it.
    pub const UPDATE_SUCCESSFUL: &str = "UpdateSuccessful";
    /// `InPlaceUpdate`: the program on the Node could not update it.
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    /// `Preserved` is False: it has ended.
    pub const PRESERVATION_STOPPED: &str = "Preservation stopped.";
}

/// Reasons of the events of MachineSets and MachineDeployments.
pub mod events {
    /// MachineSet: a machine was created.
    pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
    /// MachineSet: a machine could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// MachineSet: machines are deleted although they are preserved: the set needs fewer, or they are of a former template.
    pub const PRESERVED_MACHINE_DELETED: &str = "PreservedMachineDeleted";
    /// MachineSet: a machine was deleted.
    pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
    /// MachineSet: a machine could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// MachineSet, MachineDeployment: it has let go what its selector no longer matches.
    pub const RELEASED: &str = "Released";
    /// MachineSet: it has too many machines, and creates none.
    pub const FROZE_MACHINE_SET: &str = "FrozeMachineSet";
    /// MachineSet: its freeze has ended.
    pub const UNFROZE_MACHINE_SET: &str = "UnfrozeMachineSet";
    /// MachineDeployment: a MachineSet was scaled.
    pub const SCALING_MACHINE_SET: &str = "ScalingMachineSet";
    /// MachineDeployment: the new MachineSet could not be created.
    pub const MACHINE_SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// MachineDeployment: the selector is empty, and the controller does nothing.
    pub const SELECTING_ALL: &str = "SelectingAll";
    /// MachineDeployment: it was rolled back.
    pub const ROLLBACK_DONE: &str = "DeploymentRollback";
    /// MachineDeployment: the revision to roll back to does not exist.
    pub const ROLLBACK_REVISION_NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
    /// MachineDeployment: the revision to roll back to has the current template.
    pub const ROLLBACK_TEMPLATE_UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
}

/// Reasons of the events of a MachineClass. All are ours.
pub mod machine_class {
    /// The provider shows VMs that no machine has.
    pub const ORPHAN_VMS: &str = "OrphanVMs";
    /// VMs that no machine has are being deleted.
    pub const DELETING_ORPHAN_VMS: &str = "DeletingOrphanVMs";
    /// Why no VM is deleted as an orphan for now.
    pub const ORPHAN_VMS_KEPT: &str = "OrphanVMsKept";
    /// Machines have vanished from the API server without having been deleted.
    pub const MACHINES_VANISHED: &str = "MachinesVanished";
}

/// Reasons of the events of a Machine. All are ours: MCM's machine controller emits none.
pub mod machine {
    /// The VM exists.
    pub const PROVISIONED: &str = "Provisioned";
    /// The provider failed to create or to initialize the VM.
    pub const FAILED_PROVISION: &str = "FailedProvision";
    /// The Node has joined and is ready.
    pub const JOINED: &str = "Joined";
    /// The Node is healthy again.
    pub const HEALTHY: &str = "Healthy";
    /// The Node is missing or unhealthy.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The machine has failed and will be replaced.
    pub const FAILED: &str = "Failed";
    /// The machine is preserved. Also the reason of `Waiting` while it has failed and is kept for diagnosis.
    pub const PRESERVED: &str = "Preserved";
    /// Its Node is drained, and the program on the Node may update it.
    pub const IN_PLACE_UPDATING: &str = "InPlaceUpdating";
    /// Its Node was updated in place.
    pub const IN_PLACE_UPDATE_SUCCESSFUL: &str = "InPlaceUpdateSuccessful";
    /// The update of its Node has failed, or was not finished in time.
    pub const IN_PLACE_UPDATE_FAILED: &str = "InPlaceUpdateFailed";
    /// The preservation of the machine has ended.
    pub const PRESERVATION_ENDED: &str = "PreservationEnded";
    /// The annotation by which its Node would have the machine preserved has a value that is none.
    pub const INVALID_PRESERVE_VALUE: &str = "InvalidPreserveValue";
    /// A Pod cannot be evicted yet.
    pub const EVICTION_REFUSED: &str = "EvictionRefused";
    /// Pods that did not leave in time are deleted without grace; or the Node is not drained at all.
    pub const DRAIN_FORCED: &str = "DrainForced";
    /// The provider failed to delete the VM.
    pub const FAILED_TERMINATION: &str = "FailedTermination";
    /// Its Node was deleted, and so the Machine is.
    pub const NODE_DELETED: &str = "NodeDeleted";
    /// The tags of the VM that the Machine names are those of another Machine.
    pub const PROVIDER_ID_MISMATCH: &str = "ProviderIDMismatch";
    /// The VM of the Machine's name was made for another Machine, or for an unknown one, and another Machine has the name.
    pub const VM_NOT_OWNED: &str = "VMNotOwned";
    /// The same, and whether another Machine has the name is not known.
    pub const VM_OWNER_UNKNOWN: &str = "VMOwnerUnknown";
    /// Condition `VMAdopted`, and an event: the VM of a former Machine was adopted.
    pub const VM_ADOPTED: &str = "VMAdopted";
    /// Other Machines name the same VM.
    pub const PROVIDER_ID_NOT_UNIQUE: &str = "ProviderIDNotUnique";
    /// `spec.providerID` was changed and is not the VM's.
    pub const PROVIDER_ID_CHANGED: &str = "ProviderIDChanged";
    /// Several Nodes have the providerID of the VM.
    pub const SEVERAL_NODES: &str = "SeveralNodes";
    /// `NodeInitialized`: `--cloud-node` is off, and no cloud controller manager has initialized the Node for five minutes.
    pub const NO_CLOUD_CONTROLLER_MANAGER: &str = "NoCloudControllerManager";
    /// `NodeInitialized`: the driver does not say what Nodes get.
    pub const NOT_DESCRIBED: &str = "NotDescribed";
    /// `NodeInitialized`: the provider has not said yet what the Node gets, or the VM has no address yet.
    pub const NO_ADDRESSES: &str = "NoAddresses";
    /// `NodeInitialized`: the VM has no such IP as the kubelet was given.
    pub const NODE_IP_NOT_FOUND: &str = "NodeIPNotFound";
    /// `InstanceExists`: the provider knows no VM of this id.
    pub const VM_NOT_FOUND: &str = "VMNotFound";
    /// `InstanceRunning`: the VM is stopped.
    pub const VM_STOPPED: &str = "VMStopped";
}

/// Reasons of `RenderDegraded` of a MachineConfigPool, and of waits of all controllers of node configuration. All are ours.
pub mod machine_config_pool {
    /// False: what the pool selects is rendered.
    pub const RENDERED: &str = "Rendered";
    /// The pool selects no MachineConfig that exists.
    pub const NO_MACHINE_CONFIGS: &str = "NoMachineConfigs";
    /// The selector is empty: it would select all, and so selects nothing.
    pub const SELECTS_ALL: &str = "SelectsAll";
    /// A MachineConfig, or the merge, is invalid or cannot be read. The message names object and path.
    pub const INVALID: &str = "Invalid";
    /// No running node can get from the target to what is rendered.
    pub const NOT_RECONCILABLE: &str = "NotReconcilable";
    /// What is rendered does not fit into a request to the API server.
    pub const TOO_LARGE: &str = "TooLarge";
    /// What is rendered lacks more than half of the target's files and units.
    pub const TOO_MUCH_REMOVED: &str = "TooMuchRemoved";
    /// Something that goes into the rendering is missing, or is yet to be made.
    pub const WAITING_FOR_INPUTS: &str = "WaitingForInputs";
    /// Event, of machine-config-operator: nodes were given the target.
    pub const SET_DESIRED_CONFIG: &str = "SetDesiredConfig";
    /// Event, of machine-config-operator: all nodes run the target.
    pub const COMPLETED: &str = "Completed";
    /// `Updated`: all nodes run the target.
    pub const ALL_UPDATED: &str = "AllUpdated";
    /// `Updated` and `Updating`: nodes have yet to run the target.
    pub const NODES_BEHIND: &str = "NodesBehind";
    /// `Updating` and `Updated`: the pool is paused.
    pub const PAUSED: &str = "Paused";
    /// `Updated` and `Updating`: no agent applies configurations on some nodes, and the others run the target.
    pub const NO_AGENT: &str = "NoAgent";
    /// `NodeDegraded`: no node reports a failure.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// `NodeDegraded` and `Stalled`: nodes report failures.
    pub const NODES_DEGRADED: &str = "NodesDegraded";
    /// Event: the pool has another target.
    pub const TARGET_CHANGED: &str = "TargetChanged";
    /// Wait, and event: machine-config-operator runs in the cluster.
    pub const MACHINE_CONFIG_OPERATOR_RUNS: &str = "MachineConfigOperatorRuns";
    /// Wait: it is not known whether machine-config-operator runs.
    pub const MACHINE_CONFIG_OPERATOR_UNKNOWN: &str = "MachineConfigOperatorUnknown";
}

/// Reasons of events of a Node whose agent asks for a drain, and of waits for it.
pub mod node_drain {
    /// Event, as machine-config-operator has it: the drain takes longer than ten minutes.
    pub const DRAIN_THRESHOLD_EXCEEDED: &str = "DrainThresholdExceeded";
    /// Event, as machine-config-operator has it: the drain takes longer than an hour.
    pub const DRAIN_FAILED: &str = "DrainFailed";
    /// Event, ours: Pods that did not leave in time are deleted without grace.
    pub const DRAIN_FORCED: &str = "DrainForced";
    /// Wait, and event, ours: what the agent asks for is neither a drain nor an uncordon.
    pub const INVALID_DRAIN_REQUEST: &str = "InvalidDrainRequest";
    /// Wait: Pods are ending.
    pub const PODS_LEFT: &str = "PodsLeft";
}
