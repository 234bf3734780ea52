//! The plan of a Node whose VM is gone.

use json_patch::Patch;
use nodewright_api::{annotations, finalizers, reasons::node_lifecycle as reasons};
use nodewright_runtime::{
    events::Event,
    finalizers as finalizer,
    object::name,
    plan::{Step, reference},
};

use super::{
    decision::{Decision, decide},
    memory::{Context, Plan},
    snapshot::Snapshot,
};
use crate::shared::{TARGET, patch};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let node = snapshot.node.as_ref();
    let mut plan = Plan::idle();
    match decide(context, snapshot) {
        Decision::Keep => plan.forgets_outcomes = true,
        Decision::Await(at, text) => {
            plan.wait_until(at, "VMGone", text);
        }
        Decision::Hold(until, text) => {
            plan.event(Event::warning(reference(node), reasons::NODE_DELETION_BLOCKED, text.as_str()));
            plan.wait_until(until, reasons::NODE_DELETION_BLOCKED, text);
        }
        Decision::Ask(permit) => {
            plan.then("its VM is gone: may one more node of the zone go?", Step::Call(permit));
        }
        Decision::AwaitAnswer => {
            plan.wait("VMGone", "its VM is gone; whether it may go is not yet known");
        }
        Decision::Delete => {
            let text = format!("Deleting node {} because it does not exist in the cloud provider", name(node));
            plan.event(Event::normal(reference(node), reasons::DELETING_NODE, text));
            plan.then("its VM is gone", Step::delete(TARGET, node)).pin_deletions();
        }
        Decision::Unmark => {
            let unmark = Patch(patch::unannotate(&node.metadata, [annotations::VM_MISSING]));
            plan.then("it is ready, or has a machine or another VM", Step::edit(TARGET, node, unmark));
        }
        Decision::Release => {
            let remove = Step::edit(TARGET, node, finalizer::remove(&node.metadata, finalizers::NODE));
            plan.then("its VM is gone: nothing keeps the node", remove);
            plan.forgets_outcomes = true;
        }
    }
    plan
}
