//! When a Node without a Machine loses the finalizer.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{finalizers, reasons::unreadable};
use nodewright_runtime::{
    finalizers as finalizer,
    object::{has_finalizer, is_deleting, uid},
    plan::{Context, Plan, Step},
};

use super::{
    lookup::{Found, Lookup, Round},
    snapshot::{Snapshot, machine_name},
};
use crate::shared::clusters::TARGET;

/// How long a Node that is not being deleted keeps the finalizer after the first lookup has found no Machine.
const GRACE: SignedDuration = SignedDuration::from_hours(1);
/// The wait after a failed lookup.
const PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The wait after a lookup that has found a Machine of another namespace: its own manager keeps the Node.
const FOREIGN_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// The result of one lookup so far.
enum Search {
    /// No Machine existed at this time.
    Absent(Timestamp),
    /// No result: the lookup is due.
    Due,
    /// No result yet: the lookup is in progress.
    Running,
    /// A Machine exists, or the lookup failed. The next one is due at this time.
    Again(Timestamp, String),
}

/// `grace` is the grace period of a Node that is being deleted.
pub(super) fn plan(context: &Context<'_, Lookup>, snapshot: &Snapshot, grace: SignedDuration) -> Plan<Lookup> {
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
    let lookup = |round| Lookup::new(round, uid(node), machine);
    let first = match search(context, &lookup(Round::First), None) {
        Search::Absent(since) => since,
        other => return ask(lookup(Round::First), other),
    };
    let due = first.checked_add(if is_deleting(node) { grace } else { GRACE }).unwrap_or(Timestamp::MAX);
    if due > context.now {
        let text = format!("no machine claims the node; it loses the finalizer at {due} unless one does by then");
        plan.wait("Orphaned", text);
        plan.wake_at(due);
        return plan;
    }
    match search(context, &lookup(Round::Second), Some(due)) {
        Search::Absent(_) => {
            let remove = finalizer::remove(&node.metadata, finalizers::NODE);
            plan.then("no machine claims the node", remove.and_then(|remove| Step::edit(TARGET, node, remove)));
            plan
        }
        other => ask(lookup(Round::Second), other),
    }
}

/// Looks up the Machine, or waits for the result.
fn ask(lookup: Lookup, search: Search) -> Plan<Lookup> {
    let mut plan = Plan::idle();
    match search {
        Search::Absent(_) => {}
        Search::Due => drop(plan.then("does a machine of the node exist?", Step::Call(lookup))),
        Search::Running => {
            plan.wait("LookingForMachine", "the API server is asked whether a machine of the node exists");
        }
        Search::Again(at, message) => {
            plan.wait("MachineSought", message);
            plan.wake_at(at);
        }
    }
    plan
}

/// The result of a lookup that ended at `not_before` or later.
fn search(context: &Context<'_, Lookup>, lookup: &Lookup, not_before: Option<Timestamp>) -> Search {
    let known = context.outcomes.get(lookup);
    if known.is_some_and(|known| known.running) {
        return Search::Running;
    }
    let last =
        known.and_then(|known| known.last.as_ref()).filter(|(ended, _)| not_before.is_none_or(|due| *ended >= due));
    let (ended, pause, message) = match last {
        None => return Search::Due,
        Some((ended, Found::None)) => return Search::Absent(*ended),
        Some((ended, Found::Machine)) => {
            let text = format!("a machine {} exists, of which nothing is known here", lookup.machine());
            (ended, FOREIGN_PAUSE, text)
        }
        Some((ended, Found::Failed(text))) => (ended, PAUSE, text.clone()),
    };
    let again = ended.checked_add(pause).unwrap_or(context.now);
    if again <= context.now { Search::Due } else { Search::Again(again, message) }
}
