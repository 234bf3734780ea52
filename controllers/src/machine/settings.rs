//! Timeouts and periods, which the flags of machine-controller-manager set.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{GoDuration, Machine, stored::EFFECTIVE_CREATION_TIMEOUT};
use nodewright_runtime::object::created;

use super::{budget::brake::BrakeSettings, cloud::CloudNodeSettings};
use crate::shared::fleet::FleetSettings;

/// Timeouts and periods of the Machine controller. A field of the Machine takes precedence.
#[derive(Clone, Debug)]
pub struct MachineSettings {
    /// From the creation of the Machine until its Node has to be healthy (`--machine-creation-timeout`).
    pub creation_timeout: Duration,
    /// In phase Unknown until Failed (`--machine-health-timeout`).
    pub health_timeout: Duration,
    /// From the deletion of the Machine until its Pods are deleted by force (`--machine-drain-timeout`).
    pub drain_timeout: Duration,
    /// For how many pauses of `evict_retry` the eviction of a Pod may be refused before the Pod is deleted
    /// (`--machine-max-evict-retries`).
    pub max_evict_retries: u32,
    /// How long a volume may take to be detached once its Pod has left the Node (`--machine-pv-detach-timeout`).
    pub detach_timeout: Duration,
    /// How long such a volume may then take to be attached to another Node, before the next Pod with volumes is evicted
    /// (`--machine-pv-reattach-timeout`).
    pub reattach_timeout: Duration,
    /// From the moment that the program on the Node may update it until it has to have answered (`--machine-inplace-update-timeout`).
    pub update_timeout: Duration,
    /// How long another configuration may take that is being applied to a drained Node, before the Machine fails
    /// (`--machine-config-update-timeout`).
    pub config_update_timeout: Duration,
    /// Node conditions that make a Machine unhealthy unless they are False (`--node-conditions`).
    pub node_conditions: Vec<String>,
    /// Pause after a creation that failed because capacity or a quota is exhausted (`--resource-exhausted-retry`).
    pub exhausted_retry: Duration,
    /// First pause after a failure that may pass by itself, or of a deletion; it doubles up to a minute, else to ten.
    pub short_retry: Duration,
    /// First pause after any other failure of a creation; it doubles up to ten minutes.
    pub medium_retry: Duration,
    /// How long a Node may be not ready before its Pods are deleted instead of evicted.
    pub not_ready_limit: Duration,
    /// Pause between two attempts to evict a Pod that a disruption budget holds back.
    pub evict_retry: Duration,
    /// How long a Node that is being deleted and has no Machine keeps its finalizer (`--orphaned-node-grace`).
    pub orphaned_node_grace: Duration,
    /// Groups of the bootstrap tokens (`--bootstrap-token-auth-extra-groups`).
    pub bootstrap_groups: String,
    /// From which share of unhealthy Machines on fewer of them are replaced.
    pub brake: BrakeSettings,
    /// How many calls of the provider may be in progress at once.
    pub limits: CallLimits,
    /// Whether there is a target cluster. Without one a Machine ends in phase Available.
    pub has_target: bool,
    /// The node part of a cloud controller manager.
    pub cloud_node: CloudNodeSettings,
    /// Whether MachineConfigPools are watched: rollouts of machines share their disruption budgets.
    pub has_pools: bool,
    /// Time that a failed Machine is kept whose preservation was asked for, unless its spec says how long
    /// (`--machine-preserve-timeout`). The MachineSet controller goes by the same time.
    pub preserve_timeout: SignedDuration,
}

/// The lowest limit of calls that is a part of another one.
const FEW_CALLS: usize = 20;

/// How many calls of the provider may be in progress at once. Deployments, classes and credentials have one limit for all of
/// a kind, such as all deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Creations and initializations of VMs.
    pub creations: usize,
    /// Deletions of VMs.
    pub deletions: usize,
    /// All other calls.
    pub others: usize,
    /// Creations of one MachineDeployment; as many deletions, and as many other calls.
    pub per_deployment: usize,
    /// The same of one MachineClass. In Gardener a class is of one zone.
    pub per_class: usize,
    /// All calls with the same credentials.
    pub per_credentials: usize,
}

impl CallLimits {
    /// The limits if this many calls may be in progress. Hung calls of two kinds leave some for the third; those of one
    /// deployment, one class or one account leave some for others. If there are few in all, there is nothing to divide.
    pub fn of(calls: usize) -> Self {
        let percent = |percent: usize| (calls.saturating_mul(percent) / 100).max(FEW_CALLS.min(calls)).max(1);
        Self {
            creations: percent(40),
            deletions: percent(40),
            others: percent(50),
            per_deployment: percent(20),
            per_class: percent(30),
            per_credentials: percent(80),
        }
    }
}

impl MachineSettings {
    pub(super) fn creation_timeout_of(&self, machine: &Machine) -> Duration {
        let effective = EFFECTIVE_CREATION_TIMEOUT.of(machine).filter(|own| *own > GoDuration::ZERO);
        let own = effective.as_ref().or(machine.spec.creation_timeout.as_ref());
        own.map_or(self.creation_timeout, |own| own.to_std())
    }

    pub(super) fn creation_deadline(&self, machine: &Machine) -> Option<Timestamp> {
        created(machine)?.checked_add(self.creation_timeout_of(machine)).ok()
    }

    /// When the health timeout ends of a Machine that is unhealthy since then; `None` if it has none.
    pub(super) fn health_deadline(&self, machine: &Machine, since: Timestamp) -> Option<Timestamp> {
        if machine.spec.disable_health_timeout == Some(true) {
            return None;
        }
        let timeout = machine.spec.health_timeout.as_ref().map_or(self.health_timeout, |own| own.to_std());
        since.checked_add(timeout).ok()
    }

    pub(super) fn update_timeout_of(&self, machine: &Machine) -> Duration {
        machine.spec.in_place_update_timeout.as_ref().map_or(self.update_timeout, |own| own.to_std())
    }

    /// When the update of a Machine in place has failed without an answer. The program has its time from the permission on, which may be
    /// later than the phase.
    pub(super) fn update_deadline(&self, machine: &Machine, permitted: Option<Timestamp>) -> Option<Timestamp> {
        machine.phase_since().max(permitted)?.checked_add(self.update_timeout_of(machine)).ok()
    }

    pub(super) fn drain_timeout_of(&self, machine: &Machine) -> Duration {
        machine.spec.drain_timeout.as_ref().map_or(self.drain_timeout, |own| own.to_std())
    }

    pub(super) fn drain_deadline(&self, machine: &Machine) -> Option<Timestamp> {
        let begun = machine.metadata.deletion_timestamp.as_ref()?.0;
        begun.checked_add(self.drain_timeout_of(machine)).ok()
    }
}

impl Default for MachineSettings {
    fn default() -> Self {
        let conditions = nodewright_api::conditions::node::DEFAULT_UNHEALTHY;
        Self {
            creation_timeout: Duration::from_mins(20),
            health_timeout: Duration::from_mins(10),
            drain_timeout: Duration::from_hours(2),
            max_evict_retries: 360,
            detach_timeout: Duration::from_mins(2),
            reattach_timeout: Duration::from_secs(90),
            update_timeout: Duration::from_mins(20),
            config_update_timeout: Duration::from_mins(30),
            node_conditions: conditions.iter().map(|&condition| condition.to_owned()).collect(),
            exhausted_retry: Duration::from_mins(10),
            short_retry: Duration::from_secs(5),
            medium_retry: Duration::from_mins(3),
            not_ready_limit: Duration::from_mins(5),
            evict_retry: Duration::from_secs(20),
            orphaned_node_grace: Duration::from_mins(5),
            bootstrap_groups: String::new(),
            brake: BrakeSettings::default(),
            limits: CallLimits::of(200),
            has_target: true,
            cloud_node: CloudNodeSettings::default(),
            has_pools: false,
            preserve_timeout: FleetSettings::default().preserve_timeout,
        }
    }
}
