//! The plan of a Node that may have no Machine: the steps of its decision.

use json_patch::Patch;
use nodewright_api::{reasons::node_lifecycle as reasons, taints};
use nodewright_driver::Instance;
use nodewright_runtime::{
    events::Event,
    plan::{Step, reference},
};

use super::{
    decision::{Decision, decide},
    memory::{Context, Plan, Reported},
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET, cloud_node,
    node::{self, Node},
    patch,
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let node = snapshot.node.as_ref();
    let mut plan = Plan::idle();
    for watch in &snapshot.scoped_watches {
        plan.scoped_watch(watch.clone());
    }
    match decide(context, snapshot) {
        Decision::Leave => plan.forgets_outcomes = true,
        Decision::Await(due) => {
            plan.wait(reasons::NOT_INITIALIZED, "it may have a machine, or others may initialize it").wake_at(due);
        }
        Decision::Blocked { why, due, is_late } => {
            let text = format!("the node is not initialized: {why}");
            if is_late {
                let reported = Reported(text.clone());
                let is_new = context.noted_since(&reported).is_none();
                plan.event(is_new.then(|| Event::warning(reference(node), reasons::NOT_INITIALIZED, text.as_str())));
                plan.notes.add(reported);
            }
            plan.wait(reasons::NOT_INITIALIZED, text).wake_at(due);
        }
        Decision::Ask(call) => {
            plan.then("the node is to be initialized", Step::Call(call));
        }
        Decision::AwaitAnswer => {
            plan.wait(reasons::NOT_INITIALIZED, "the provider is asked about its VM");
        }
        Decision::Initialize { addresses, instance } => {
            let addresses = cloud_node::address_patch(node, &addresses);
            plan.then("its VM has these addresses", Step::edit_status(TARGET, node, addresses));
            plan.then("the provider knows its VM", Step::edit(TARGET, node, initialized(node, instance)));
        }
    }
    plan
}

/// The patch that sets the labels of the VM, and takes the taint away.
fn initialized(node: &Node, instance: &Instance) -> Patch {
    let labels = instance.metadata.as_ref().map(|metadata| cloud_node::initial_labels(node, metadata));
    let mut operations = patch::merge("labels", node.metadata.labels.as_ref(), &labels.unwrap_or_default());
    let mut rest = node.taints().to_vec();
    rest.retain(|taint| !node::is_no_schedule(taint, taints::UNINITIALIZED));
    operations.extend(node::set_taints(node, &rest));
    Patch(operations)
}
