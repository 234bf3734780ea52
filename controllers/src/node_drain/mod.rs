//! The drain of a Node whose agent applies configurations, such as OpenShift's machine-config-daemon: the part of
//! machine-config-operator's drain controller.
//!
//! ```text
//! desiredDrain = drain-R     ──▶ cordon, and record it ──▶ evict the Pods ──▶ lastAppliedDrain = drain-R
//!                                                                               │ the agent applies R
//! desiredDrain = uncordon-R  ──▶ uncordon, lastAppliedDrain = uncordon-R ◀──────┘
//! ```
//!
//! The agent asks by an annotation of its Node, and goes on once another one has the same value.
//!
//! # Guarantees
//! * A drain is acknowledged once all Pods that leave are gone, and never while the Node is schedulable: if somebody uncordons it,
//!   it is cordoned again.
//! * A Node that was unschedulable before its agent asked, or that a user cordons between target and request, stays so.
//! * A Pod whose eviction is refused is evicted later or never. The one exception is a pool that has both a drain timeout and the
//!   drain policy `Force`.
//! * When a drain began is recorded on the Node: neither its limits nor its forced end depend on the life of a process.
//! * Each write tests all that it depends on, the request included.
//! * A Node that is being deleted, or whose Machine is, is left to that drain.
//! * While machine-config-operator runs, no Node is written. A Node whose agent asks for nothing has no watches and no plans.
//!
//! # Caveats
//! * A request has no number: an agent that asks twice for the same drain gets it once, as with machine-config-operator. An uncordon is
//!   done once more if a drain has begun since.
//! * Pods with attached volumes leave one by one, as before the end of a Machine. The last volumes are not waited for.
//! * A drain that machine-config-operator began and did not end has no record: the Node counts as cordoned by a user.
//! * A drain that is forced is over a minute later, whatever the API server has deleted by then.

mod decision;
mod memory;
mod metrics;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;
mod trace;

use nodewright_api::{
    annotations::{DRAIN_POLICY, DRAIN_TIMEOUT},
    machine_config::MachineConfigPool,
};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{ObjectRef, annotation},
};

pub(crate) use self::metrics::register as register_metrics;
use self::{
    memory::{Context, Note, Plan},
    snapshot::{ASKING_NODES, Snapshot, asked},
};
pub use crate::shared::drain::preview::{Leaving, Objects, Preview, preview};
use crate::shared::{TARGET, node::Node};

/// The controller of the drains that the agents of Nodes ask for.
#[derive(Clone, Copy, Debug)]
pub struct NodeDrainController {
    /// Whether spans are exported: the pool of a Node, which has the trace, is not looked up otherwise.
    pub traces: bool,
}

impl Controller for NodeDrainController {
    const NAME: &'static str = "node-drain";
    type Primary = Node;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        on.kind::<Node>(TARGET, "").index(ASKING_NODES).wakes(|change, _, wake| {
            if let Some(node) = change.sides().last().filter(|_| concerns_drain(change)) {
                wake(ObjectRef::of(TARGET, node.as_ref()));
            }
        });
        on.kind::<MachineConfigPool>(TARGET, "").wakes_unreadable(|_, stores, wake| wake_asking(stores, wake)).wakes(
            |change, stores, wake| {
                let limits = |pool: &MachineConfigPool| {
                    let settings = [DRAIN_POLICY, DRAIN_TIMEOUT].map(|key| annotation(pool, key).map(str::to_owned));
                    (settings, pool.spec.node_selector.clone())
                };
                if change.differs_in(limits) {
                    wake_asking(stores, wake);
                }
            },
        );
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, self.traces)
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// Whether a change is one of a Node whose agent asks for something, or did. Kubelets change their Nodes frequently.
fn concerns_drain(change: &Change<Node>) -> bool {
    change.sides().any(|node| asked(node).is_some()) && !Node::is_heartbeat(change)
}

fn wake_asking(stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let nodes = stores.of::<Node>(TARGET).by(ASKING_NODES, "");
    for node in &nodes {
        wake(ObjectRef::of(TARGET, node.as_ref()));
    }
}
