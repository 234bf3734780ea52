//! A Node that has lost its Machine: it loses our finalizer, too.
//!
//! The finalizer keeps a Node until its Machine has removed its VM. A Machine that is removed by force, or a cluster that
//! is handed over, leaves Nodes behind that nobody could delete any more.
//!
//! # Guarantees
//! * A Node keeps the finalizer while any Machine of the namespace claims it, by providerID, by the label `node`, or by the
//!   name that the Node bears; and while a Machine cannot be read, because it may be that one.
//! * Before the finalizer goes the API server is asked twice, with a grace in between, whether a Machine of the name that
//!   the Node bears exists in any namespace: another controller manager may keep the machines there.
//! * A Node that bears no name of a Machine (label `node.gardener.cloud/machine-name`) keeps the finalizer.
//! * Only the finalizer is removed. The Node itself and its VM are left alone.
//! * A Node that a Machine claims costs neither a timer nor memory.
//!
//! # Caveats
//! Without the right to list machines in all namespaces nothing is removed.

mod look;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, finalizers, labels, reasons::unreadable};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    finalizers as finalizer,
    object::{Key, has_finalizer, is_deleting, label, name, uid},
    plan::{Moment, Plan, Step},
};

pub use self::look::{Asker, Found, Look, Round};
use crate::shared::clusters::{CONTROL, TARGET};
use crate::shared::{
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::{node_name, vm_id},
};

/// How long a Node that stays keeps the finalizer after the first look has found no Machine.
const GRACE: SignedDuration = SignedDuration::from_hours(1);
/// Pause after a look that failed.
const PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// Pause after a look that has found a Machine of another namespace: its own manager looks after the Node.
const FOREIGN_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// Takes the finalizer off Nodes without a Machine.
#[derive(Clone, Debug)]
pub struct OrphanNodeController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// How long a Node that is being deleted keeps the finalizer after the first look has found no Machine.
    pub grace: Duration,
}

/// A Node and whether it has a Machine.
#[derive(Clone, Debug)]
pub struct World {
    /// The Node.
    pub node: Arc<Node>,
    /// Whether a Machine claims it.
    pub is_claimed: bool,
    /// What to say of a Machine that cannot be read, and may claim it.
    pub unreadable: Option<String>,
}

impl Controller for OrphanNodeController {
    const NAME: &'static str = "orphan-node";
    type Primary = Node;
    type World = World;
    type Effect = Look;

    fn watch(&self, on: &mut Watches<'_>) {
        on.kind::<Node>(TARGET, "").index(NODE_BY_INSTANCE).wakes(|change, stores, wake| {
            // Kubelets change their Nodes all the time: only an orphan is looked at.
            if let Some(node) = change.new.as_ref().filter(|node| is_orphan(stores, node)) {
                wake(Key::of(TARGET, node.as_ref()));
            }
        });
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .wakes_unreadable(|_, stores, wake| {
                let nodes = stores.of::<Node>(TARGET).all();
                let orphans = nodes.iter().filter(|node| is_orphan(stores, node));
                orphans.for_each(|node| wake(Key::of(TARGET, node.as_ref())));
            })
            .wakes(nodes_left_behind);
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        let node = stores.of::<Node>(TARGET).get(key)?;
        let unreadable = stores.of::<Machine>(CONTROL).unreadable();
        let unreadable = unreadable.first().map(|machine| machine.describe::<Machine>());
        Some(World { is_claimed: is_claimed(stores, &node), unreadable, node })
    }

    fn plan(&self, at: &Moment<'_, Look>, world: &World) -> Plan<Look> {
        plan(at, world, SignedDuration::try_from(self.grace).unwrap_or(SignedDuration::MAX))
    }
}

/// The Nodes of a Machine that is gone, or that claims another one now.
fn nodes_left_behind(change: &Change<Machine>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let Some(old) = &change.old else { return };
    let claim = |machine: &Machine| (vm_id(machine).map(str::to_owned), node_name(machine).map(str::to_owned));
    if change.new.as_ref().is_some_and(|new| claim(new) == claim(old)) {
        return;
    }
    let store = stores.of::<Node>(TARGET);
    let mut nodes = vm_id(old).map(|id| store.by(NODE_BY_INSTANCE, instance_id(id))).unwrap_or_default();
    nodes.extend(node_name(old).and_then(|node| store.by_name("", node)));
    for node in nodes.iter().filter(|node| is_orphan(stores, node)) {
        wake(Key::of(TARGET, node.as_ref()));
    }
}

fn is_orphan(stores: &Stores, node: &Node) -> bool {
    has_finalizer(node, finalizers::NODE) && machine_name(node).is_some() && !is_claimed(stores, node)
}

/// Whether any Machine names the Node, rightly or not.
fn is_claimed(stores: &Stores, node: &Node) -> bool {
    let machines = stores.of::<Machine>(CONTROL);
    let by_id = node.provider_id().is_some_and(|id| machines.count(MACHINE_BY_INSTANCE, instance_id(id)) > 0);
    let by_name = machine_name(node).is_some_and(|name| {
        machines.by_name(machines.namespace(), name).is_some()
            || machines.unreadable().iter().any(|machine| machine.name() == name)
    });
    by_id || by_name || machines.count(MACHINE_BY_NODE, name(node)) > 0
}

/// The name of the Machine that the Node bears.
fn machine_name(node: &Node) -> Option<&str> {
    label(node, labels::MACHINE_NAME)
}

/// `grace` is that of a Node that is being deleted.
fn plan(at: &Moment<'_, Look>, world: &World, grace: SignedDuration) -> Plan<Look> {
    let mut plan = Plan::idle();
    let node = world.node.as_ref();
    let orphaned = has_finalizer(node, finalizers::NODE) && !world.is_claimed;
    let Some(machine) = machine_name(node).filter(|_| orphaned) else {
        plan.forgets_outcomes = true;
        return plan;
    };
    if let Some(text) = &world.unreadable {
        plan.wait(unreadable::MACHINE, format!("{text}; until then the node may be its node"));
        return plan;
    }
    let look = |round| Look::new(round, uid(node), machine);
    let Some(first) = absent_since(&mut plan, at, look(Round::First), None) else { return plan };
    let grace = if is_deleting(node) { grace } else { GRACE };
    let due = first.checked_add(grace).unwrap_or(Timestamp::MAX);
    if due > at.now {
        plan.wait(
            "Orphaned",
            format!("no machine claims the node; it loses the finalizer at {due} unless one does by then"),
        );
        plan.wake_at(due);
        return plan;
    }
    if absent_since(&mut plan, at, look(Round::Second), Some(due)).is_some()
        && let Some(remove) = finalizer::remove(&node.metadata, finalizers::NODE)
    {
        plan.then("no machine claims the node", Step::edit(TARGET, node, remove));
    }
    plan
}

/// Since when a look is known to have found no Machine. Where it is not, the plan asks or waits.
fn absent_since(
    plan: &mut Plan<Look>,
    at: &Moment<'_, Look>,
    look: Look,
    not_before: Option<Timestamp>,
) -> Option<Timestamp> {
    let known = at.outcomes.get(&look);
    if known.is_some_and(|known| known.running) {
        plan.wait("LookingForMachine", "the API server is asked whether a machine of the node exists");
        return None;
    }
    let last =
        known.and_then(|known| known.last.as_ref()).filter(|(ended, _)| not_before.is_none_or(|due| *ended >= due));
    let (ended, pause, message) = match last {
        Some((ended, Found::None)) => return Some(*ended),
        Some((ended, Found::Machine)) => {
            let text = format!("a machine {} exists, of which nothing is known here", look.machine());
            (*ended, FOREIGN_PAUSE, text)
        }
        Some((ended, Found::Failed(text))) => (*ended, PAUSE, text.clone()),
        None => {
            plan.then("does a machine of the node exist?", Step::Call(look));
            return None;
        }
    };
    let again = ended.checked_add(pause).unwrap_or(at.now);
    if again <= at.now {
        plan.then("does a machine of the node exist?", Step::Call(look));
    } else {
        plan.wait("MachineSought", message);
        plan.wake_at(again);
    }
    None
}
