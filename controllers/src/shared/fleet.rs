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
    /// Whether the cluster autoscaler is kept from removing the Nodes of a rollout.
    pub annotates_nodes_in_rollouts: bool,
    /// For how long a Machine may be created.
    pub creation_timeouts: CreationTimeouts,
    /// When a set has too many Machines.
    pub overshoot: OvershootSettings,
    /// No set creates a Machine while this many exist in the namespace, those in deletion included.
    pub max_machines: usize,
    /// No set creates a Machine while its deployment has this many, those in deletion included.
    pub max_machines_per_deployment: usize,
}

/// What plans of deployments and sets depend on besides their objects, as it was when the snapshot was taken.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// The flags of the fleet.
    pub fleet: FleetSettings,
    /// Whether the served schema is ours, with `status.selector`.
    pub full_schema: bool,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            preserve_timeout: SignedDuration::from_hours(96),
            honor_min_ready_seconds: false,
            annotates_nodes_in_rollouts: true,
            creation_timeouts: CreationTimeouts::default(),
            overshoot: OvershootSettings::default(),
            max_machines: 20_000,
            max_machines_per_deployment: 10_000,
        }
    }
}

/// See the flags `--machine-creation-timeout` and `--machine-creation-timeout-max`.
#[derive(Clone, Copy, Debug)]
pub struct CreationTimeouts {
    /// That of a Machine whose spec has none.
    pub default: SignedDuration,
    /// Up to which the timeout of a set grows whose Machines do not join in time. Zero: it does not grow.
    pub longest: SignedDuration,
}

impl Default for CreationTimeouts {
    fn default() -> Self {
        Self { default: SignedDuration::from_mins(20), longest: SignedDuration::ZERO }
    }
}

/// See the flags of machine-controller-manager: `--safety-up`, `--safety-down`, `--machine-safety-overshooting-period`.
#[derive(Clone, Copy, Debug)]
pub struct OvershootSettings {
    /// How many Machines more than the replicas and the surge are too many.
    pub up: usize,
    /// How many fewer there have to be than that for the freeze to end.
    pub down: usize,
    /// How often a frozen set looks again.
    pub period: SignedDuration,
}

impl Default for OvershootSettings {
    fn default() -> Self {
        Self { up: 2, down: 1, period: SignedDuration::from_mins(1) }
    }
}
