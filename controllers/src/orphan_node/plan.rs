//! The plan of a Node that may have no Machine: the steps of its decision.

use nodewright_api::{finalizers, reasons::unreadable};
use nodewright_runtime::{
    finalizers as finalizer,
    plan::{Context, Plan, Step},
};

use super::{
    decision::{Decision, decide},
    lookup::Lookup,
    snapshot::Snapshot,
};
use crate::shared::TARGET;

pub(super) fn plan(context: &Context<'_, Lookup>, snapshot: &Snapshot) -> Plan<Lookup> {
    let mut plan = Plan::idle();
    match decide(context, snapshot) {
        Decision::Keep => plan.forgets_outcomes = true,
        Decision::AwaitReadable(text) => {
            plan.wait(unreadable::MACHINE, format!("{text}; until then the node may be its node"));
        }
        Decision::LookUp(lookup) => {
            plan.then("ask whether a machine of the node exists", Step::Call(lookup));
        }
        Decision::AwaitLookup => {
            plan.wait("LookingForMachine", "the API server is asked whether a machine of the node exists");
        }
        Decision::LookUpAgain(at, text) => {
            plan.wait("MachineSought", text).wake_at(at);
        }
        Decision::Grace(due) => {
            let text = format!("no machine claims the node; it loses the finalizer at {due} unless one does by then");
            plan.wait("Orphaned", text).wake_at(due);
        }
        Decision::RemoveFinalizer => {
            let node = snapshot.node.as_ref();
            let remove = finalizer::remove(&node.metadata, finalizers::NODE);
            plan.then("no machine claims the node", Step::edit(TARGET, node, remove));
        }
    }
    plan
}
