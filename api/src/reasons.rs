//! Reasons of conditions and events: one word each, with few exceptions that are MCM's.

/// Reasons of the conditions of a MachineDeployment.
pub mod machine_deployment {
    /// `Progressing`: a machine set was scaled or changed.
    pub const MACHINE_SET_UPDATED: &str = "MachineSetUpdated";
    /// `Progressing`, and an event: the new machine set could not be created.
    pub const MACHINE_SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// `Progressing`: the new machine set was created.
    pub const NEW_MACHINE_SET_CREATED: &str = "NewMachineSetCreated";
    /// `Progressing`: a machine set with the template was there already.
    pub const FOUND_NEW_MACHINE_SET: &str = "FoundNewMachineSet";
    /// `Progressing`: the rollout is complete. The autoscaler scales down only with this reason or
    /// [`PAUSED`].
    pub const NEW_MACHINE_SET_AVAILABLE: &str = "NewMachineSetAvailable";
    /// `Progressing`: there was no progress for too long.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// `Progressing`: the deployment is paused.
    pub const PAUSED: &str = "DeploymentPaused";
    /// `Progressing`: the deployment is no longer paused.
    pub const RESUMED: &str = "DeploymentResumed";
    /// `Available`: it is.
    pub const MINIMUM_REPLICAS_AVAILABLE: &str = "MinimumReplicasAvailable";
    /// `Available`: it is not.
    pub const MINIMUM_REPLICAS_UNAVAILABLE: &str = "MinimumReplicasUnavailable";
    /// `Stalled`, ours: the spec is invalid; the message says where.
    pub const INVALID_SPEC: &str = "InvalidSpec";
}

/// Reasons of the conditions of a MachineSet.
pub mod machine_set {
    /// `ReplicaFailure`: a machine could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// `ReplicaFailure`: a machine could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// `ReplicaFailure`, ours: the spec is invalid; the message says where.
    pub const INVALID_SPEC: &str = "InvalidSpec";
}

/// Reasons of waits, conditions and events: an object that exists cannot be decoded, so what would follow from its
/// absence is not done. All are ours.
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

/// Reasons of freezing, in conditions and texts.
pub mod freeze {
    /// `Frozen`: there are more machines than replicas and surge allow.
    pub const OVERSHOOTING_REPLICA_COUNT: &str = "OverShootingReplicaCount";
    /// `Frozen`: a machine set of the deployment is frozen.
    pub const MACHINE_DEPLOYMENT_STATE_SYNC: &str = "MachineDeploymentStateSync";
    /// Unfrozen: the number of machines has fallen.
    pub const UNDERSHOOTING_REPLICA_COUNT: &str = "UnderShootingReplicaCount";
    /// Unfrozen: somebody asked for it by annotation.
    pub const UNFREEZE_ANNOTATION: &str = "UnfreezeAnnotation";
}

/// Reasons of the conditions that are written to a Node.
pub mod node {
    /// `Terminating`: the machine had failed.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// `Terminating`: the machine was deleted though it was healthy.
    pub const SCALE_DOWN: &str = "ScaleDown";
    /// `InPlaceUpdate`: the node may be chosen.
    pub const CANDIDATE_FOR_UPDATE: &str = "CandidateForUpdate";
    /// `InPlaceUpdate`: the node has been chosen.
    pub const SELECTED_FOR_UPDATE: &str = "SelectedForUpdate";
    /// `InPlaceUpdate`: the node is drained.
    pub const DRAIN_SUCCESSFUL: &str = "DrainSuccessful";
    /// `InPlaceUpdate`: the agent on the node may begin.
    pub const READY_FOR_UPDATE: &str = "ReadyForUpdate";
    /// `InPlaceUpdate`: the update was successful.
    pub const UPDATE_SUCCESSFUL: &str = "UpdateSuccessful";
    /// `InPlaceUpdate`: the update failed.
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    /// `Preserved`: without having been asked for. Not a word, but MCM's.
    pub const PRESERVED_BY_MCM: &str = "Preserved by MCM.";
    /// `Preserved`: as asked for by annotation. Not a word, but MCM's.
    pub const PRESERVED_BY_USER: &str = "Preserved by user.";
    /// `Preserved`: not any more. Not a word, but MCM's.
    pub const PRESERVATION_STOPPED: &str = "Preservation stopped.";
}

/// Reasons of events. The object that carries them is named first.
pub mod events {
    /// MachineSet: a machine was created.
    pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
    /// MachineSet: a machine could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// MachineSet: a machine was deleted.
    pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
    /// MachineSet: a machine could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// MachineSet: it was frozen.
    pub const FROZE_MACHINE_SET: &str = "FrozeMachineSet";
    /// MachineSet: it was unfrozen.
    pub const UNFROZE_MACHINE_SET: &str = "UnfrozeMachineSet";
    /// MachineDeployment: a machine set was scaled.
    pub const SCALING_MACHINE_SET: &str = "ScalingMachineSet";
    /// MachineDeployment: the new machine set could not be created.
    pub const MACHINE_SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// MachineDeployment: the selector is empty, so that nothing is done.
    pub const SELECTING_ALL: &str = "SelectingAll";
    /// MachineDeployment: a rollback was done.
    pub const ROLLBACK_DONE: &str = "DeploymentRollback";
    /// MachineDeployment: the revision to go back to is not there.
    pub const ROLLBACK_REVISION_NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
    /// MachineDeployment: the revision to go back to has the present template.
    pub const ROLLBACK_TEMPLATE_UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
}

/// Reasons of the events of a Machine. All are ours: MCM's machine controller emits none.
pub mod machine {
    /// The VM exists.
    pub const PROVISIONED: &str = "Provisioned";
    /// The provider refused to make the VM, or to set it up.
    pub const FAILED_PROVISION: &str = "FailedProvision";
    /// The Node has joined and is ready.
    pub const JOINED: &str = "Joined";
    /// The Node is ready again.
    pub const HEALTHY: &str = "Healthy";
    /// The Node is missing or not healthy.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The machine is given up, and will be replaced.
    pub const FAILED: &str = "Failed";
    /// The machine is being deleted: its Node is drained, then its VM removed.
    pub const TERMINATING: &str = "Terminating";
    /// A Pod cannot be evicted for now.
    pub const EVICTION_REFUSED: &str = "EvictionRefused";
    /// The provider refused to remove the VM.
    pub const FAILED_TERMINATION: &str = "FailedTermination";
    /// Nothing is left of the machine.
    pub const TERMINATED: &str = "Terminated";
    /// The VM that the machine names is another machine's, by its tags.
    pub const PROVIDER_ID_MISMATCH: &str = "ProviderIDMismatch";
    /// Other machines name the same VM.
    pub const PROVIDER_ID_NOT_UNIQUE: &str = "ProviderIDNotUnique";
    /// `spec.providerID` is no longer the id of the machine's VM.
    pub const PROVIDER_ID_CHANGED: &str = "ProviderIDChanged";
    /// Several Nodes have the providerID of the machine's VM.
    pub const SEVERAL_NODES: &str = "SeveralNodes";
}
