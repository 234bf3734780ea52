//! The plan of a Node that may have no Machine: the steps of its decision.

use json_patch::{Patch, PatchOperation};
use nodewright_api::{annotations, finalizers, reasons::unreadable};
use nodewright_runtime::{
    finalizers as finalizer,
    object::is_deleting,
    plan::{Context, Plan, Step},
};

use super::{
    decision::{Decision, decide},
    lookup::MachineSearch,
    snapshot::{Snapshot, is_marked},
};
use crate::shared::{TARGET, node::Node, patch};

pub(super) fn plan(context: &Context<'_, MachineSearch>, snapshot: &Snapshot) -> Plan<MachineSearch> {
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
            let text = format!("no machine claims the node; it counts as abandoned at {due} unless one does by then");
            plan.wait("Orphaned", text).wake_at(due);
        }
        Decision::Abandon => {
            let node = snapshot.node.as_ref();
            plan.then("no machine claims the node", Step::edit(TARGET, node, Patch(abandoned(node))));
        }
        Decision::Unmark => {
            let node = snapshot.node.as_ref();
            let unmark = patch::unannotate(&node.metadata, [annotations::NOT_MANAGED]);
            plan.then("a machine claims the node again", Step::edit(TARGET, node, Patch(unmark)));
            plan.forgets_outcomes = true;
        }
    }
    plan
}

fn abandoned(node: &Node) -> Vec<PatchOperation> {
    let mut operations = finalizer::remove(&node.metadata, finalizers::NODE).0;
    if !is_deleting(node) && !is_marked(node) {
        let mark = (annotations::NOT_MANAGED, annotations::NOT_MANAGED_VALUE.to_owned());
        operations.extend(patch::annotate(&node.metadata, &[mark].into()).0);
    }
    operations
}
