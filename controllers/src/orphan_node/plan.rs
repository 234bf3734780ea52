//! When a Node without a Machine loses the finalizer.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{finalizers, reasons::unreadable};
use nodewright_runtime::{
    finalizers as finalizer,
    object::{has_finalizer, is_deleting, uid},
    plan::{Context, Plan, Step},
};

use super::{
    lookup::{Found, Lookup},
    snapshot::{Snapshot, machine_name},
};
use crate::shared::TARGET;

/// How long a Node that is not being deleted keeps the finalizer after the first lookup has found no Machine.
const GRACE: SignedDuration = SignedDuration::from_hours(1);
const PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The wait after a lookup that has found a Machine of another namespace: its own manager keeps the Node.
const FOREIGN_PAUSE: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn plan(context: &Context<'_, Lookup>, snapshot: &Snapshot) -> Plan<Lookup> {
    let mut plan = Plan::idle();
    let node = snapshot.node.as_ref();
    let orphaned = has_finalizer(node, finalizers::NODE) && !snapshot.is_claimed;
    let Some(machine) = machine_name(node).filter(|_| orphaned) else {
        plan.forgets_outcomes = true;
        return plan;
    };
    if let Some(text) = &snapshot.unreadable {
        plan.wait(unreadable::MACHINE, format!("{text}; until then the node may be its node"));
        return plan;
    }
    let lookup = |is_second| Lookup { is_second, node_uid: uid(node).to_owned(), machine: machine.to_owned() };
    let first = match absent_since(context, lookup(false), None) {
        Ok(since) => since,
        Err(search) => return *search,
    };
    let due = first.checked_add(if is_deleting(node) { snapshot.grace } else { GRACE }).unwrap_or(Timestamp::MAX);
    if due > context.now {
        let text = format!("no machine claims the node; it loses the finalizer at {due} unless one does by then");
        plan.wait("Orphaned", text);
        plan.wake_at(due);
        return plan;
    }
    if let Err(search) = absent_since(context, lookup(true), Some(due)) {
        return *search;
    }
    let remove = finalizer::remove(&node.metadata, finalizers::NODE);
    plan.then("no machine claims the node", Step::edit(TARGET, node, remove));
    plan
}

/// When a lookup, which ended at `not_before` or later, has found no Machine; else the plan that makes it or waits for it.
fn absent_since(
    context: &Context<'_, Lookup>,
    lookup: Lookup,
    not_before: Option<Timestamp>,
) -> Result<Timestamp, Box<Plan<Lookup>>> {
    let mut plan = Plan::idle();
    let known = context.outcomes.get(&lookup);
    if known.is_some_and(|known| known.running) {
        plan.wait("LookingForMachine", "the API server is asked whether a machine of the node exists");
        return Err(Box::new(plan));
    }
    let last = known.and_then(|known| known.last.as_ref());
    let again = match last.filter(|(ended, _)| not_before.is_none_or(|due| *ended >= due)) {
        None => None,
        Some((ended, Found::None)) => return Ok(*ended),
        Some((ended, Found::Machine)) => {
            let text = format!("a machine {} exists, of which nothing is known here", lookup.machine);
            Some((ended, FOREIGN_PAUSE, text))
        }
        Some((ended, Found::Failed(text))) => Some((ended, PAUSE, text.clone())),
    };
    let again = again.and_then(|(ended, pause, text)| Some((ended.checked_add(pause).ok()?, text)));
    match again.filter(|(at, _)| *at > context.now) {
        Some((at, text)) => drop(plan.wait("MachineSought", text).wake_at(at)),
        None => drop(plan.then("does a machine of the node exist?", Step::Call(lookup))),
    }
    Err(Box::new(plan))
}
