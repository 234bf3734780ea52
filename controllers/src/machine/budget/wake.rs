//! Whom a change lets go on: those that wait for a place of the replacement budget.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::{Change, Stores},
    object::{ObjectRef, controller_uid, name, uid},
};

use super::pool::{
    HELD_BY_SET, Limit, PLACES_BY_SET, due, holds_place, is_held, is_stuck, may_be_replaced, sibling_sets,
};
use crate::{
    machine::settings::MachineSettings,
    shared::{
        CONTROL, TARGET,
        indexes::{NODE_BY_INSTANCE, SET_BY_UID, instance_id},
        node::Node,
        ownership::vm_id,
        wake_all,
    },
};

/// Wakes the waiting Machines that a change lets go on: as many as there are free places, in their order.
pub(in super::super) fn wake_next(
    change: &Change<Machine>,
    stores: &Stores,
    settings: &MachineSettings,
    wake: &mut dyn FnMut(ObjectRef),
) {
    if weight(change.new.as_deref()) >= weight(change.old.as_deref()) {
        return;
    }
    let Some(owner) = change.old.as_ref().map(|machine| controller_uid(machine.as_ref()).unwrap_or_default()) else {
        return;
    };
    let set = stores.of::<MachineSet>(CONTROL).by(SET_BY_UID, owner).into_iter().next();
    let (machines, nodes) = (stores.of::<Machine>(CONTROL), stores.of::<Node>(TARGET));
    let sets = set.as_ref().map(|set| sibling_sets(stores, set)).unwrap_or_default();
    let mut owners: Vec<_> = sets.iter().map(|set| uid(set.as_ref())).collect();
    if set.is_none() {
        owners.push(owner);
    }
    let mut held: Vec<_> = owners.iter().flat_map(|owner| machines.by(HELD_BY_SET, owner)).collect();
    if held.is_empty() {
        return;
    }
    held.sort_by_cached_key(|machine| {
        let nodes = vm_id(machine).map(|id| nodes.by(NODE_BY_INSTANCE, instance_id(id))).unwrap_or_default();
        let deleted = nodes.iter().find_map(|node| node.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
        (is_stuck(machine), deleted.or_else(|| due(machine, settings)), name(machine.as_ref()).to_owned())
    });
    let places: usize = owners.iter().map(|owner| machines.count(PLACES_BY_SET, owner)).sum();
    // At least one: a stuck deletion is among the places and holds none.
    let limit = set.as_deref().map(Limit::of).unwrap_or_default();
    let free = limit.count(limit.total(&sets, &machines)).saturating_sub(places).max(1);
    wake_all(held.into_iter().take(free), wake);
}

/// How much a Machine keeps others waiting: it holds a place, comes before them in the order, or neither.
fn weight(machine: Option<&Machine>) -> u8 {
    match machine {
        Some(machine) if holds_place(machine) => 2,
        Some(machine) if (may_be_replaced(machine) || is_held(machine)) && !is_stuck(machine) => 1,
        _ => 0,
    }
}

/// Wakes all that wait once the budget of their set has changed.
pub(in super::super) fn wake_held(change: &Change<MachineSet>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let limit = |set: &Option<Arc<MachineSet>>| set.as_deref().map(Limit::of);
    if change.old.is_some() && limit(&change.old) == limit(&change.new) {
        return;
    }
    let set = change.sides().last().map(|set| uid(set.as_ref()).to_owned()).unwrap_or_default();
    wake_all(stores.of::<Machine>(CONTROL).by(HELD_BY_SET, &set), wake);
}
