//! How many Machines of a MachineDeployment may be replaced for bad health at once.
//!
//! Each Machine that is being made, replaced or removed holds a place. A Machine that is to be replaced, because it has been
//! unhealthy for too long or because its Node was deleted, takes a free one, or waits and says so.
//!
//! # Guarantees
//! * Of those that wait the first in one order goes: two that are judged at the same time do not both take the last place.
//! * A place that becomes free wakes the first of those that wait, and not all of them.
//! * What is looked at are the Machines that hold a place and those that wait, not the whole deployment.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachinePhase, MachineSet, annotations, conditions};
use nodewright_runtime::{
    cache::{Change, Stores},
    object::{Cluster, Key, annotation, controller_uid, is_deleting, name, uid},
};

use super::indexes::{DELETING_NODES, HELD_BY_SET, PLACES_BY_SET, WAITING_BY_SET};
use super::{
    Owner, Settings, World,
    health::{may_be_replaced, timeout_at},
    status::own_condition,
};
use crate::shared::{
    indexes::{MACHINE_BY_INSTANCE, NODE_BY_INSTANCE, SET_BY_UID, instance_id},
    node::Node,
    ownership::{is_disputed, is_node_of, vm_id},
};

/// How long a provider may take to remove a VM, before the deletion of its Machine counts as stuck.
const VM_DELETION: Duration = Duration::from_mins(15);
/// Where several wait, one whose Node was deleted goes only so long after that: by then the caches show the Nodes that were
/// deleted in the same second, and which Machine took a place just before.
const SETTLED: SignedDuration = SignedDuration::from_secs(3);

/// The other Machines of a deployment, as far as they count for the budget.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Those that hold a place.
    pub places: Vec<Arc<Machine>>,
    /// Those that are unhealthy and not given up yet.
    pub waiting: Vec<Arc<Machine>>,
    /// Those whose Nodes are being deleted, and since when.
    pub nodeless: Vec<(Arc<Machine>, Timestamp)>,
    /// How many Machines the deployment has; counted only where the budget is a percentage.
    pub all: usize,
}

impl Peers {
    /// Looks for the peers of a Machine that may have to wait for a place.
    pub(super) fn of(stores: &Stores, machine: &Machine, owner: &Owner) -> Self {
        let Owner::Set(set) = owner else { return Self::default() };
        let machines = stores.of::<Machine>(Cluster::CONTROL);
        let family = family(stores, set);
        let is_other = |peer: &Arc<Machine>| uid(peer.as_ref()) != uid(machine);
        let by = |index| family.iter().flat_map(|set| machines.by(index, uid(set.as_ref()))).filter(is_other).collect();
        let all = match budget_text(set) {
            Some(text) if text.ends_with('%') => {
                family.iter().map(|set| machines.owned_by(uid(set.as_ref())).len()).sum()
            }
            _ => 0,
        };
        let is_member = |peer: &Machine| {
            let owner = controller_uid(peer);
            !is_deleting(peer) && family.iter().any(|set| Some(uid(set.as_ref())) == owner)
        };
        let of_node = |node: Arc<Node>| {
            let since = node.metadata.deletion_timestamp.as_ref()?.0;
            let found = machines.by(MACHINE_BY_INSTANCE, instance_id(node.provider_id()?));
            let peer = found.into_iter().filter(is_other).find(|peer| is_member(peer) && is_node_of(peer, &node))?;
            Some((peer, since))
        };
        let nodes = stores.of::<Node>(Cluster::TARGET).by(DELETING_NODES, "");
        let nodeless = nodes.into_iter().filter_map(of_node).collect();
        Self { places: by(PLACES_BY_SET), waiting: by(WAITING_BY_SET), nodeless, all }
    }
}

/// The sets of the deployment that a set belongs to.
fn family(stores: &Stores, set: &Arc<MachineSet>) -> Vec<Arc<MachineSet>> {
    match controller_uid(set.as_ref()) {
        Some(deployment) => stores.of::<MachineSet>(Cluster::CONTROL).owned_by(deployment),
        None => vec![set.clone()],
    }
}

/// A Machine has to wait for a place.
pub(super) struct Held {
    /// For what.
    pub(super) message: String,
    /// What its status says: without counts, which would be written again and again.
    pub(super) told: String,
    /// When to look again at the latest, though nothing changes.
    pub(super) until: Option<Timestamp>,
}

/// What the status of a Machine that waits says first.
const HELD: &str = "it is replaced once fewer machines of its deployment are being replaced or not up \
     (annotation nodewright.dev/remediation-max-in-flight)";
/// How many of those that hold a place are named.
const NAMED: usize = 3;

/// Whether the budget lets this Machine be replaced now.
pub(super) fn permit(world: &World, settings: &Settings, now: Timestamp) -> Result<(), Held> {
    if let Owner::Unreadable(text) = &world.owner {
        let message = format!("{text}; the replacement budget and the other machines are not known until then");
        return Err(Held { told: message.clone(), message, until: None });
    }
    let peers = &world.peers;
    let budget = budget(&world.owner, peers.all);
    let stuck_at = |peer: &Machine| stuck_at(peer, &world.machine, settings);
    let holds = |peer: &&Arc<Machine>| stuck_at(peer).is_none_or(|at| at > now);
    let places: Vec<_> = peers.places.iter().filter(holds).collect();
    let deleted = world.node.as_deref().and_then(|node| node.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
    let own = (rank(&world.machine, deleted, settings), name(world.machine.as_ref()));
    let nodeless = |peer: &Machine| peers.nodeless.iter().any(|(other, _)| uid(other.as_ref()) == uid(peer));
    let waiting = peers.waiting.iter().filter(|peer| !nodeless(peer)).map(|peer| (peer, None));
    let claims = waiting.chain(peers.nodeless.iter().map(|(peer, since)| (peer, Some(*since))));
    // By their own times, whatever this process may make of them: the order has to be the same for all of them.
    let claims = claims.map(|(peer, since)| (rank(peer, since, settings), name(peer.as_ref())));
    let due: Vec<_> = claims.filter(|(at, _)| at.is_some_and(|at| at <= now)).collect();
    let before = due.iter().filter(|claim| **claim < own).count();
    let settled = deleted.filter(|_| !due.is_empty()).and_then(|at| at.checked_add(SETTLED).ok());
    if places.len() + before < budget {
        return match settled.filter(|at| *at > now) {
            Some(at) => {
                let message = "other nodes are being deleted, too".to_owned();
                Err(Held { told: HELD.to_owned(), message, until: Some(at) })
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
    let until = places.iter().filter_map(|peer| stuck_at(peer)).min();
    let holders = places.iter().map(|peer| (name(peer.as_ref()), stuck_at(peer)));
    Err(Held { message, told: told(holders), until })
}

/// What the status of a Machine that waits says: who holds the places, and until when at the latest where that is known.
fn told<'a>(holders: impl Iterator<Item = (&'a str, Option<Timestamp>)>) -> String {
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
    node_deleted.or_else(|| timeout_at(machine, settings))
}

/// Whether a Machine is being made, replaced or removed.
pub(crate) fn holds_place(machine: &Machine) -> bool {
    let preserved = machine.status.as_ref().is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
    let waiting = matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available | MachinePhase::Unknown);
    !preserved && (!waiting || is_deleting(machine))
}

/// Whether a Machine says that it waits for a place.
pub(crate) fn is_held(machine: &Machine) -> bool {
    let said = own_condition(machine, conditions::machine::REMEDIATION_ALLOWED);
    said.is_some_and(|said| said.status == "False") && !is_deleting(machine) && !is_disputed(machine)
}

/// When a Machine counts as stuck, and no longer holds a place: so one that cannot get on does not stop the replacement of
/// all others. That is a deletion whose stages have all had their time, and a birth that has no VM after its creation
/// timeout; the latter only if it is of another class than the Machine that asks, whose successor might get on no better.
fn stuck_at(machine: &Machine, asking: &Machine, settings: &Settings) -> Option<Timestamp> {
    let Some(begun) = &machine.metadata.deletion_timestamp else {
        let is_apart = vm_id(machine).is_none() && machine.class_name() != asking.class_name();
        let limit = SignedDuration::try_from(settings.creation_timeout_of(machine)).ok()?;
        return machine.metadata.creation_timestamp.as_ref().filter(|_| is_apart)?.0.checked_add(limit).ok();
    };
    let begun = begun.0;
    let has_stages = vm_id(machine).is_some() && !machine.is_force_deletion();
    let stages = if has_stages {
        settings.drain_timeout_of(machine).saturating_add(settings.detach_timeout)
    } else {
        Duration::ZERO
    };
    begun.checked_add(SignedDuration::try_from(stages.saturating_add(VM_DELETION)).ok()?).ok()
}

fn budget_text(set: &MachineSet) -> Option<&str> {
    annotation(set, annotations::REMEDIATION_MAX_IN_FLIGHT)
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

/// Wakes those of the Machines that wait which a change lets go on: as many as there are free places, in their order.
pub(super) fn wake_next(change: &Change<Machine>, stores: &Stores, settings: &Settings, wake: &mut dyn FnMut(Key)) {
    if weight(change.new.as_deref()) >= weight(change.old.as_deref()) {
        return;
    }
    let Some(owner) = change.old.as_ref().and_then(|machine| controller_uid(machine.as_ref())) else { return };
    let Some(set) = stores.of::<MachineSet>(Cluster::CONTROL).by(SET_BY_UID, owner).into_iter().next() else { return };
    let (machines, nodes) = (stores.of::<Machine>(Cluster::CONTROL), stores.of::<Node>(Cluster::TARGET));
    let family = family(stores, &set);
    let mut held: Vec<_> = family.iter().flat_map(|set| machines.by(HELD_BY_SET, uid(set.as_ref()))).collect();
    if held.is_empty() {
        return;
    }
    held.sort_by_cached_key(|machine| {
        let nodes = vm_id(machine).map(|id| nodes.by(NODE_BY_INSTANCE, instance_id(id))).unwrap_or_default();
        let deleted = nodes.iter().find_map(|node| node.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
        (rank(machine, deleted, settings), name(machine.as_ref()).to_owned())
    });
    let places: usize = family.iter().map(|set| machines.count(PLACES_BY_SET, uid(set.as_ref()))).sum();
    let all = family.iter().map(|set| machines.owned_by(uid(set.as_ref())).len()).sum();
    // One at least: a deletion that is stuck is among the places, and holds none.
    let free = budget(&Owner::Set(set), all).saturating_sub(places).max(1);
    for machine in held.iter().take(free) {
        wake(Key::of(Cluster::CONTROL, machine.as_ref()));
    }
}

/// How much a Machine stands in the way of others: with a place, before them in the order, or not at all.
fn weight(machine: Option<&Machine>) -> u8 {
    match machine {
        Some(machine) if holds_place(machine) => 2,
        Some(machine) if may_be_replaced(machine) || is_held(machine) => 1,
        _ => 0,
    }
}

/// Wakes all that wait when the budget itself changes.
pub(super) fn wake_all(change: &Change<MachineSet>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let text = |set: &Option<Arc<MachineSet>>| set.as_deref().and_then(budget_text).map(str::to_owned);
    if change.old.is_some() && text(&change.old) == text(&change.new) {
        return;
    }
    let set = change.sides().last().map(|set| uid(set.as_ref()).to_owned()).unwrap_or_default();
    for machine in stores.of::<Machine>(Cluster::CONTROL).by(HELD_BY_SET, &set) {
        wake(Key::of(Cluster::CONTROL, machine.as_ref()));
    }
}
