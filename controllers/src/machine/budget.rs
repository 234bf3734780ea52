//! How many Machines of a MachineDeployment may be replaced for bad health at once.
//!
//! Each Machine that is being created, replaced or deleted holds a place. A Machine that is to be replaced, because it was
//! unhealthy for too long or because its Node was deleted, takes a free place, or waits and says so in its status.
//!
//! # Guarantees
//! * Those that wait have one order, and the first goes: two that are judged at the same time do not both take the last place.
//! * A place that becomes free wakes the first of those that wait, not all of them.
//! * Only the Machines that hold a place and those that wait are read, not the whole deployment.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_runtime::{
    cache::{Change, Stores},
    object::{ObjectRef, controller_uid, name, uid},
};

use super::{
    contenders::{HELD_BY_SET, PLACES_BY_SET, budget_text, holds_place, is_held, may_be_replaced, sibling_sets},
    decision::Scope,
    settings::Settings,
    snapshot::Owner,
    status::phase_since,
};
use crate::shared::{
    CONTROL, TARGET,
    indexes::{NODE_BY_INSTANCE, SET_BY_UID, instance_id},
    node::Node,
    ownership::vm_id,
    wake_all,
};

/// How long a provider may take to delete a VM before the deletion of its Machine counts as stuck.
const VM_DELETION: Duration = Duration::from_mins(15);
/// If several wait, one whose Node was deleted goes only this long after the deletion: the caches have caught up by then.
const SETTLED: SignedDuration = SignedDuration::from_secs(3);

pub(super) struct Held {
    pub(super) message: String,
    /// The message for the status: without counts, which would be written again and again.
    pub(super) status: String,
    /// When to look again at the latest if nothing changes.
    pub(super) until: Option<Timestamp>,
}

const HELD: &str = "it is replaced once fewer machines of its deployment are being replaced or not up \
     (annotation nodewright.dev/remediation-max-in-flight)";
const NAMED: usize = 3;

pub(super) fn permit(scope: &Scope<'_>) -> Result<(), Held> {
    let (machine, settings, now) = (scope.machine, scope.settings, scope.now());
    let (owner, others) = (&scope.snapshot.owner, &scope.snapshot.contenders);
    if let Owner::Unreadable(text) = owner {
        let message = format!("{text}; the replacement budget and the other machines are not known until then");
        return Err(Held { status: message.clone(), message, until: None });
    }
    let budget = budget(owner, others.total);
    let stuck_at = |other: &Machine| stuck_at(other, machine, settings);
    let holds = |other: &&Arc<Machine>| stuck_at(other).is_none_or(|at| at > now);
    let places: Vec<_> = others.places.iter().filter(holds).collect();
    let node = scope.snapshot.node.as_deref();
    let deleted = node.and_then(|node| node.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
    let own = (rank(machine, deleted, settings), name(machine));
    let nodeless = |other: &Machine| others.nodeless.iter().any(|(one, _)| uid(one.as_ref()) == uid(other));
    let waiting = others.waiting.iter().filter(|other| !nodeless(other)).map(|other| (other, None));
    let waiting = waiting.chain(others.nodeless.iter().map(|(other, since)| (other, Some(*since))));
    // By the times in the objects, not by those of this process: all of them have to see the same order.
    let waiting = waiting.map(|(other, since)| (rank(other, since, settings), name(other.as_ref())));
    let due: Vec<_> = waiting.filter(|(at, _)| at.is_some_and(|at| at <= now)).collect();
    let before = due.iter().filter(|rank| **rank < own).count();
    let settled = deleted.filter(|_| !due.is_empty()).and_then(|at| at.checked_add(SETTLED).ok());
    if places.len() + before < budget {
        return match settled.filter(|at| *at > now) {
            Some(at) => {
                let message = "other nodes are being deleted, too".to_owned();
                Err(Held { status: HELD.to_owned(), message, until: Some(at) })
            }
            None => Ok(()),
        };
    }
    let message = format!(
        "{} other machines of the deployment are being replaced or not up, {before} are due before this one, \
         and at most {budget} may be replaced for bad health at once (annotation {})",
        places.len(),
        annotations::REMEDIATION_MAX_IN_FLIGHT
    );
    let until = places.iter().filter_map(|other| stuck_at(other)).min();
    let holders = places.iter().map(|other| (name(other.as_ref()), stuck_at(other)));
    Err(Held { message, status: held_status(holders), until })
}

fn held_status<'a>(holders: impl Iterator<Item = (&'a str, Option<Timestamp>)>) -> String {
    let mut holders: Vec<_> = holders.collect();
    holders.sort_unstable();
    let names = holders.iter().take(NAMED).map(|(name, until)| match until {
        Some(until) => format!("{name} (until {until:.0} at the latest)"),
        None => (*name).to_owned(),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    match holders.len() {
        0 => HELD.to_owned(),
        count if count <= NAMED => format!("{HELD}; now these are: {names}"),
        count => format!("{HELD}; now these are: {names} and {} more", count - NAMED),
    }
}

/// The place of a Machine in the order: when its Node was deleted, or else when it is given up.
fn rank(machine: &Machine, node_deleted: Option<Timestamp>, settings: &Settings) -> Option<Timestamp> {
    node_deleted.or_else(|| settings.health_deadline(machine, phase_since(machine)?))
}

/// When a Machine counts as stuck and no longer holds a place: a deletion whose stages have all had their time, or an overdue
/// creation without a VM, if its class is not that of the Machine that asks, whose successor would fail as well.
fn stuck_at(machine: &Machine, asking: &Machine, settings: &Settings) -> Option<Timestamp> {
    let Some(begun) = &machine.metadata.deletion_timestamp else {
        let is_apart = vm_id(machine).is_none() && machine.class_name() != asking.class_name();
        return settings.creation_deadline(machine).filter(|_| is_apart);
    };
    let begun = begun.0;
    let has_stages = vm_id(machine).is_some() && !machine.is_force_deletion();
    let stages = if has_stages {
        settings.drain_timeout_of(machine).saturating_add(settings.detach_timeout)
    } else {
        Duration::ZERO
    };
    begun.checked_add(stages.saturating_add(VM_DELETION)).ok()
}

/// How many may be replaced at once: a count, or a percentage of the deployment's Machines, at least one.
fn budget(owner: &Owner, all: usize) -> usize {
    let Owner::Set(set) = owner else { return 1 };
    let Some(text) = budget_text(set) else { return 1 };
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<usize>().ok().map(|percent| all * percent.min(100) / 100),
        None => text.parse().ok(),
    };
    parsed.unwrap_or(1).max(1)
}

/// Wakes the waiting Machines that a change lets go on: as many as there are free places, in their order.
pub(super) fn wake_next(
    change: &Change<Machine>,
    stores: &Stores,
    settings: &Settings,
    wake: &mut dyn FnMut(ObjectRef),
) {
    if weight(change.new.as_deref()) >= weight(change.old.as_deref()) {
        return;
    }
    let Some(owner) = change.old.as_ref().and_then(|machine| controller_uid(machine.as_ref())) else { return };
    let Some(set) = stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, owner).into_iter().next() else { return };
    let (machines, nodes) = (stores.of::<Machine>(CONTROL), stores.of::<Node>(TARGET));
    let sets = sibling_sets(stores, &set);
    let mut held: Vec<_> = sets.iter().flat_map(|set| machines.by(HELD_BY_SET, uid(set.as_ref()))).collect();
    if held.is_empty() {
        return;
    }
    held.sort_by_cached_key(|machine| {
        let nodes = vm_id(machine).map(|id| nodes.by(NODE_BY_INSTANCE, instance_id(id))).unwrap_or_default();
        let deleted = nodes.iter().find_map(|node| node.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
        (rank(machine, deleted, settings), name(machine.as_ref()).to_owned())
    });
    let places: usize = sets.iter().map(|set| machines.count(PLACES_BY_SET, uid(set.as_ref()))).sum();
    let all = sets.iter().map(|set| machines.owned_by(uid(set.as_ref())).len()).sum();
    // At least one: a stuck deletion is among the places and holds none.
    let free = budget(&Owner::Set(set), all).saturating_sub(places).max(1);
    wake_all(held.into_iter().take(free), wake);
}

/// How much a Machine keeps others waiting: it holds a place, comes before them in the order, or neither.
fn weight(machine: Option<&Machine>) -> u8 {
    match machine {
        Some(machine) if holds_place(machine) => 2,
        Some(machine) if may_be_replaced(machine) || is_held(machine) => 1,
        _ => 0,
    }
}

pub(super) fn wake_held(change: &Change<MachineSet>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let text = |set: &Option<Arc<MachineSet>>| set.as_deref().and_then(budget_text).map(str::to_owned);
    if change.old.is_some() && text(&change.old) == text(&change.new) {
        return;
    }
    let set = change.sides().last().map(|set| uid(set.as_ref()).to_owned()).unwrap_or_default();
    wake_all(stores.of::<Machine>(CONTROL).by(HELD_BY_SET, &set), wake);
}
