//! What the decision sees: the Machines of one deployment that hold a place or wait for one, and the indexes that find them.

#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    Machine, MachinePhase, MachineSet, annotations,
    conditions::{
        self,
        machine::{CONFIGURATION_VALID, INSTANCE_PROVISIONED, NODE_READABLE},
    },
    stored::DeadlineCause,
};
use nodewright_runtime::{
    cache::{Index, Store, Stores},
    object::{annotation, controller_uid, is_deleting, name, uid},
};

use super::brake::{Brake, Level, Levels};
use crate::{
    machine::{settings::MachineSettings, status::announced_deadline},
    shared::{
        CONTROL, TARGET,
        indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, instance_id},
        node::Node,
        ownership::{is_disputed, is_node_of, noted_id, noted_node, vm_id},
        preservation::{is_preserved_failed, preserve_expiry},
    },
};

/// How long a provider may take to delete a VM, and a MachineSet to delete a failed Machine, before that counts as stuck.
const STUCK: Duration = Duration::from_mins(15);

/// The Machines of a deployment that count for its budget.
#[derive(Clone, Debug, Default)]
pub struct BudgetGroup {
    pub limit: Limit,
    /// How many Machines the deployment has; counted only if the limit is a percentage.
    pub total: usize,
    pub places: Vec<Place>,
    pub candidates: Vec<Candidate>,
    /// While it holds, the pool has the Machines of the whole namespace, and `candidates` those that it lets go.
    pub brake: Brake,
}

/// A Machine that holds a place.
#[derive(Clone, Debug)]
pub struct Place {
    pub uid: String,
    pub name: String,
    /// When it counts as stuck. A creation has half of its timeout: after all of it the Machine is replaced, and the other half
    /// is for those that wait. A deletion has the time of all of its stages.
    pub held_until: Option<Timestamp>,
    pub is_creation: bool,
}

/// A Machine that is to be replaced.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub uid: String,
    pub name: String,
    /// When its Node was deleted, or else when it fails: by the times in its object, not by those of this process.
    pub due: Timestamp,
    pub has_lost_node: bool,
    /// Whether the provider knows no VM of it any more, so that it is certain that the Machine is lost.
    pub has_lost_vm: bool,
    /// Whether it stays for now although it is due: it comes after the others, which might wait for ever.
    pub is_stuck: bool,
}

impl Candidate {
    pub(super) fn rank(&self) -> (bool, Timestamp, &str) {
        (self.is_stuck, self.due, &self.name)
    }
}

/// The annotation of the deployment: a count, or a percentage of its Machines. `0` means none, any other percentage at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Count(usize),
    Percent(usize),
}

impl Default for Limit {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Limit {
    pub(super) fn of(set: &MachineSet) -> Self {
        let parse = |text: &str| match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(|percent: usize| Self::Percent(percent.min(100))),
            None => text.parse().ok().map(Self::Count),
        };
        annotation(set, annotations::REMEDIATION_MAX_IN_FLIGHT).and_then(parse).unwrap_or_default()
    }

    /// How many Machines the sets have, if the limit depends on that.
    pub(super) fn total(self, sets: &[Arc<MachineSet>], machines: &Store<Machine>) -> usize {
        match self {
            Self::Count(_) => 0,
            Self::Percent(_) => sets.iter().map(|set| machines.count_owned_by(uid(set.as_ref()))).sum(),
        }
    }

    /// One, unless it is none.
    fn at_most_one(self) -> Self {
        Self::Count(usize::from(!matches!(self, Self::Count(0) | Self::Percent(0))))
    }

    pub(super) fn count(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(0) => 0,
            Self::Percent(percent) => (total * percent / 100).max(1),
        }
    }
}

impl BudgetGroup {
    /// The pool of the deployment that a set belongs to. A set without a deployment is a pool of its own.
    pub(in super::super) fn take(stores: &Stores, set: &Arc<MachineSet>, settings: &MachineSettings) -> Self {
        let machines = stores.of::<Machine>(CONTROL);
        let sets = sibling_sets(stores, set);
        let by = |index| sets.iter().flat_map(|set| machines.by(index, uid(set.as_ref()))).collect::<Vec<_>>();
        let limit = Limit::of(set);
        let levels = Levels::take(stores, settings.brake);
        if levels.of(stores, set).level != Level::Off {
            return Self::take_braked(stores, set, &levels, settings);
        }
        let total = limit.total(&sets, &machines);
        let owners: Vec<_> = sets.iter().map(|set| uid(set.as_ref())).collect();
        let without_node = without_node(stores, &owners, &machines);
        let mut pool = Self { limit, total, ..Self::default() };
        pool.add(&by(PLACES_BY_SET), &by(WAITING_BY_SET), &without_node, settings);
        pool
    }

    /// The pool of a Machine without a set: of those without an owner, or of those of a set that is gone, one is replaced at a time.
    pub(in super::super) fn take_without_set(stores: &Stores, machine: &Machine, settings: &MachineSettings) -> Self {
        let machines = stores.of::<Machine>(CONTROL);
        let owner = controller_uid(machine).unwrap_or_default();
        let without_node = without_node(stores, &[owner], &machines);
        let mut pool = Self::default();
        pool.add(&machines.by(PLACES_BY_SET, owner), &machines.by(WAITING_BY_SET, owner), &without_node, settings);
        pool
    }

    /// The pool of the whole namespace, of which one Machine is replaced at a time. Machines that may not go, because their
    /// deployment forbids it or their zone has stopped, keep no others waiting.
    fn take_braked(stores: &Stores, set: &Arc<MachineSet>, levels: &Levels, settings: &MachineSettings) -> Self {
        let machines = stores.of::<Machine>(CONTROL);
        let limit = Limit::of(set).at_most_one();
        let mut pool = Self { limit, brake: levels.of(stores, set), ..Self::default() };
        for other in stores.of::<MachineSet>(CONTROL).all() {
            let by = |index| machines.by(index, uid(other.as_ref()));
            let mut of_set = Self::default();
            let without_node = without_node(stores, &[uid(other.as_ref())], &machines);
            of_set.add(&by(PLACES_BY_SET), &by(WAITING_BY_SET), &without_node, settings);
            if levels.of(stores, &other).level == Level::Stop {
                of_set.stop(settings.brake.timeout);
            }
            if Limit::of(&other).count(1) > 0 {
                pool.candidates.extend(of_set.candidates);
            }
            pool.places.extend(of_set.places);
        }
        pool
    }

    /// Machines whose VM may run are due later, or never.
    pub(super) fn stop(&mut self, timeout: SignedDuration) {
        self.candidates.retain(|candidate| candidate.has_lost_vm || !timeout.is_zero());
        for candidate in self.candidates.iter_mut().filter(|candidate| !candidate.has_lost_vm) {
            candidate.due = candidate.due.saturating_add(timeout).unwrap_or(Timestamp::MAX);
        }
    }

    /// A Machine whose Node was deleted counts once, by that time.
    pub(in super::super) fn add(
        &mut self,
        places: &[Arc<Machine>],
        waiting: &[Arc<Machine>],
        without_node: &[(Arc<Machine>, Timestamp)],
        settings: &MachineSettings,
    ) {
        self.places.extend(places.iter().map(|machine| Place {
            uid: uid(machine.as_ref()).to_owned(),
            name: name(machine.as_ref()).to_owned(),
            held_until: held_until(machine, settings),
            is_creation: is_creation(machine),
        }));
        let candidate = |machine: &Machine, due, has_lost_node| Candidate {
            uid: uid(machine).to_owned(),
            name: name(machine).to_owned(),
            due,
            has_lost_node,
            has_lost_vm: has_lost_vm(machine),
            is_stuck: is_stuck(machine),
        };
        let lost: HashSet<_> = without_node.iter().map(|(machine, _)| uid(machine.as_ref())).collect();
        let waiting = waiting.iter().filter(|machine| !lost.contains(uid(machine.as_ref())));
        let waiting = waiting.filter_map(|machine| Some(candidate(machine, due(machine, settings)?, false)));
        self.candidates.extend(waiting);
        self.candidates.extend(without_node.iter().map(|(machine, since)| candidate(machine, *since, true)));
    }
}

/// The Machines of these owners whose Nodes are being deleted, and since when.
fn without_node(stores: &Stores, owners: &[&str], machines: &Store<Machine>) -> Vec<(Arc<Machine>, Timestamp)> {
    let is_member =
        |machine: &Machine| !is_deleting(machine) && owners.contains(&controller_uid(machine).unwrap_or_default());
    let of_node = |node: Arc<Node>| {
        let since = node.metadata.deletion_timestamp.as_ref()?.0;
        let found = match node.provider_id() {
            Some(id) => machines.by(MACHINE_BY_INSTANCE, instance_id(id)),
            None => machines.by(MACHINE_BY_NODE, name(node.as_ref())),
        };
        let is_its = |machine: &Machine| match node.provider_id() {
            Some(_) => is_node_of(machine, &node),
            None => noted_node(machine) == Some(name(node.as_ref())),
        };
        Some((found.into_iter().find(|machine| is_member(machine) && is_its(machine))?, since))
    };
    stores.of::<Node>(TARGET).by(DELETING_NODES, "").into_iter().filter_map(of_node).collect()
}

pub(super) fn sibling_sets(stores: &Stores, set: &Arc<MachineSet>) -> Vec<Arc<MachineSet>> {
    match controller_uid(set.as_ref()) {
        Some(deployment) => stores.of::<MachineSet>(CONTROL).owned_by(deployment),
        None => vec![set.clone()],
    }
}

/// When a Machine fails, as its status says; `None` if it has no health timeout.
pub(super) fn due(machine: &Machine, settings: &MachineSettings) -> Option<Timestamp> {
    announced_deadline(machine).or_else(|| settings.health_deadline(machine, machine.phase_since()?))
}

fn has_lost_vm(machine: &Machine) -> bool {
    let condition = machine.condition(conditions::machine::HEALTH_TIMEOUT);
    condition.is_some_and(|condition| DeadlineCause::of(condition) == DeadlineCause::VmGone)
}

fn is_creation(machine: &Machine) -> bool {
    let phases = [MachinePhase::Unset, MachinePhase::CrashLoopBackOff, MachinePhase::Pending];
    !is_deleting(machine) && phases.contains(machine.phase())
}

fn held_until(machine: &Machine, settings: &MachineSettings) -> Option<Timestamp> {
    if let Some(begun) = &machine.metadata.deletion_timestamp {
        let has_stages = vm_id(machine).is_some() && !machine.is_force_deletion();
        let stages = if has_stages {
            settings.drain_timeout_of(machine).saturating_add(settings.detach_timeout)
        } else {
            Duration::ZERO
        };
        return begun.0.checked_add(stages.saturating_add(STUCK)).ok();
    }
    if is_creation(machine) {
        let created = machine.metadata.creation_timestamp.as_ref()?.0;
        return created.checked_add(settings.creation_timeout_of(machine) / 2).ok();
    }
    if *machine.phase() == MachinePhase::InPlaceUpdating {
        return settings.update_deadline(machine, None);
    }
    // It is about to be deleted, or in a phase of another manager that nothing ends.
    machine.phase_since()?.checked_add(STUCK).ok()
}

/// Whether a Machine says why nothing is decided about it: somebody keeps it, its Node cannot be read, or it is not settled whose VM
/// it has. Only the order depends on this: of two Machines that are evaluated at the same time still only one goes.
pub(super) fn is_stuck(machine: &Machine) -> bool {
    let is_refuted = |kind| machine.condition(kind).is_some_and(|condition| condition.status == "False");
    let is_unproven =
        || noted_id(machine).is_none() && [CONFIGURATION_VALID, INSTANCE_PROVISIONED].into_iter().any(is_refuted);
    is_preserved_failed(machine) || is_disputed(machine) || is_refuted(NODE_READABLE) || is_unproven()
}

// These four find Machines by the UID of their set, or by nothing if they have none.

pub(in super::super) const PLACES_BY_SET: Index<Machine> =
    Index { name: "places", key_of: |machine| of_set_if(holds_place(machine), machine) };

/// Machines that were refused a place and say so.
pub(in super::super) const HELD_BY_SET: Index<Machine> =
    Index { name: "held", key_of: |machine| of_set_if(is_held(machine), machine) };

pub(in super::super) const WAITING_BY_SET: Index<Machine> =
    Index { name: "waiting", key_of: |machine| of_set_if(may_be_replaced(machine), machine) };

pub(in super::super) const LEAVING_BY_SET: Index<Machine> =
    Index { name: "leaving", key_of: |machine| of_set_if(is_deleting(machine), machine) };

fn of_set_if(is_listed: bool, machine: &Machine) -> Option<String> {
    is_listed.then(|| controller_uid(machine).unwrap_or_default().to_owned())
}

pub(in super::super) const DELETING_NODES: Index<Node> =
    Index { name: "deleting", key_of: |node| is_deleting(node).then(String::new) };

/// Whether a Machine is being created, replaced or deleted, and so holds a place of the replacement budget.
pub(in super::super) fn holds_place(machine: &Machine) -> bool {
    let waiting = matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available | MachinePhase::Unknown);
    preserve_expiry(machine).is_none() && (!waiting || is_deleting(machine))
}

pub(super) fn is_held(machine: &Machine) -> bool {
    let condition = machine.condition(conditions::machine::REMEDIATION_ALLOWED);
    condition.is_some_and(|condition| condition.status == "False") && !is_deleting(machine) && !is_disputed(machine)
}

/// Whether the budget limits a Machine's replacement. The health of a disputed Machine is not evaluated, and one whose Node switches
/// its health timeout off does not fail: they must not block others.
pub(in super::super) fn may_be_replaced(machine: &Machine) -> bool {
    let waits = matches!(machine.phase(), MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed);
    waits && !is_deleting(machine) && !is_disputed(machine) && !machine.is_health_timeout_disabled()
}
