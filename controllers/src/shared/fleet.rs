//! The settings of the controllers of MachineDeployments and MachineSets.

use jiff::SignedDuration;

/// See the flags of the same names.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// Time that a failed Machine is kept whose preservation was asked for, unless its spec says how long.
    pub preserve_timeout: SignedDuration,
    /// Whether a Machine is available only `minReadySeconds` after it became ready. machine-controller-manager ignores the field,
    /// and its users set it.
    pub honor_min_ready_seconds: bool,
    /// Whether the cluster autoscaler is kept from removing Nodes of former templates in a rollout.
    pub annotates_nodes_in_rollouts: bool,
    /// No set creates a Machine while this many exist in the namespace, those in deletion included.
    pub max_machines: usize,
    /// No set creates a Machine while its deployment has this many, those in deletion included.
    pub max_machines_per_deployment: usize,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            preserve_timeout: SignedDuration::from_hours(96),
            honor_min_ready_seconds: false,
            annotates_nodes_in_rollouts: true,
            max_machines: 20_000,
            max_machines_per_deployment: 10_000,
        }
    }
}
