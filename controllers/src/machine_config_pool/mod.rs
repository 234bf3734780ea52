//! `MachineConfigPool`: what its nodes should run. The MachineConfigs that it selects become one rendered MachineConfig, whose
//! name follows from its content, and which becomes the pool's target.
//!
//! ```text
//! selected MachineConfigs, ControllerConfig ──▶ Renderer ──▶ what is wanted
//!                                                              │
//!   the target is held, and says why  ◀── brakes ◀─────────────┤ decision
//!                                                              ▼
//!   two quiet seconds  ──▶  create rendered-<pool>-<digest>  ──▶  three more  ──▶  spec.configuration
//!                                                                                        │
//!   agent of the Node  ◀── desiredConfig ◀── claim, within maxUnavailable ◀── Nodes  ◀───┘ rollout
//! ```
//!
//! # Guarantees
//! * A rendered MachineConfig is created, and its spec never written again. The pool targets only one whose name fits its content.
//! * While what goes into the rendering is the same, the target is, in any release.
//! * A MachineConfig that exists and cannot be read never counts as absent.
//! * Whatever is wrong, the target stays, and `RenderDegraded` says what.
//! * This controller deletes no rendered MachineConfig that a pool or a Node names: before a pool names one, its mark is removed,
//!   and each deletion is bound to the version with the mark.
//! * While machine-config-operator runs, no object is written, the status included. An event says so once.
//!
//! # Caveats
//! * A Node's annotations are read from a cache. One that names a configuration that has been unused for the whole retention, and
//!   is not among the newest, may come too late.
//! * A pool that is deleted takes its rendered MachineConfigs along, also those that Nodes name: it owns them, as with
//!   machine-config-operator, and garbage collection asks no controller.

mod call;
mod decision;
mod etcd;
mod garbage;
mod members;
mod memory;
mod metrics;
mod nodes;
mod plan;
mod preview;
mod progress;
mod rendering;
mod rollout;
mod rounds;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod trace;
mod traced;

use std::{sync::Arc, time::Duration};

use nodewright_api::{
    machine_config::{CURRENT_CONFIG, ControllerConfig, DESIRED_CONFIG, KubeletConfig, MachineConfigPool},
    selector,
    stored::DISRUPTIONS,
};
use nodewright_render::rules::EXTENSIONS;
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    object::{ObjectRef, annotation, controller, is_deleting, name},
};

use self::{
    call::Render,
    memory::{Context, Note, Plan},
    snapshot::Snapshot,
};
pub(crate) use self::{call::Renderer, metrics::register as register_metrics};
pub use self::{
    preview::{Objects, Preview, Stay, Target, preview},
    rounds::Move,
};
pub use crate::shared::node::Node;
use crate::shared::{
    TARGET,
    disruption::node_state::gist,
    indexes::{NODES_BY_CURRENT_CONFIG, NODES_BY_DESIRED_CONFIG, NODES_BY_ROLES},
    machine_config::{CachedConfig, target_ref},
    pools::{selects, selects_none},
    wake_every,
};

/// What all pools have in common.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// How long a rendered MachineConfig is kept that no pool and no Node names.
    pub rendered_retention: Duration,
    /// The extensions of the operating system that a MachineConfig may ask for. `None`: any.
    pub extensions: Option<Vec<String>>,
    /// The name of the Node that this process runs on, if that is known. It is moved last: its drain makes another process lead.
    pub own_node: Option<String>,
    /// Whether spans are exported: what they alone need is not looked up otherwise.
    pub traces: bool,
}

/// Three days, and what OpenShift's operating system has.
impl Default for PoolSettings {
    fn default() -> Self {
        let extensions = Some(EXTENSIONS.map(str::to_owned).to_vec());
        Self { rendered_retention: Duration::from_hours(72), extensions, own_node: None, traces: false }
    }
}

/// The controller of MachineConfigPools.
#[derive(Debug)]
pub struct MachineConfigPoolController {
    /// Flags.
    pub settings: PoolSettings,
}

impl Controller for MachineConfigPoolController {
    const NAME: &'static str = "machine-config-pool";
    // It compares configurations of a megabyte.
    const COMPUTES: bool = true;
    type Primary = MachineConfigPool;
    type Snapshot = Snapshot;
    type Effect = Render;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        // Which pool a Node belongs to depends on all of them.
        on.primary::<MachineConfigPool>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<MachineConfigPool>(stores, wake))
            .wakes(|change, stores, wake| {
                let part = |pool: &MachineConfigPool| (pool.metadata.uid.clone(), pool.spec.node_selector.clone());
                if change.differs_in(part) && change.sides().any(|pool| !selects_none(pool)) {
                    wake_every::<MachineConfigPool>(stores, wake);
                }
            });
        on.kind::<CachedConfig>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<MachineConfigPool>(stores, wake))
            .wakes(wake_pools);
        on.kind::<ControllerConfig>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<MachineConfigPool>(stores, wake))
            .wakes(|change, stores, wake| {
                let state = |object: &Arc<ControllerConfig>| {
                    let observed = object.status.as_ref().map(|status| status.observed_generation);
                    let progress = (observed, snapshot::is_running(object), snapshot::failing(object));
                    (object.spec.clone(), object.metadata.generation, progress)
                };
                if change.old.as_ref().map(state) != change.new.as_ref().map(state) {
                    wake_every::<MachineConfigPool>(stores, wake);
                }
            });
        on.kind::<KubeletConfig>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<MachineConfigPool>(stores, wake))
            .wakes(|change, stores, wake| {
                let state = |object: &Arc<KubeletConfig>| {
                    let observed = object.status.as_ref().map(|status| status.observed_generation);
                    let progress = (observed, snapshot::refusal(object).map(str::to_owned));
                    (object.spec.machine_config_pool_selector.clone(), object.metadata.generation, progress)
                };
                if change.old.as_ref().map(state) != change.new.as_ref().map(state) {
                    wake_every::<MachineConfigPool>(stores, wake);
                }
            });
        let nodes = on.kind::<Node>(TARGET, "").index(NODES_BY_CURRENT_CONFIG).index(NODES_BY_DESIRED_CONFIG);
        nodes.index(NODES_BY_ROLES).wakes(|change, stores, wake| {
            wake_owners(change, stores, wake);
            wake_members(change, stores, wake);
        });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, &self.settings)
    }

    fn is_outdated(&self, stores: &Stores, snapshot: &Snapshot) -> bool {
        let part = |pool: &MachineConfigPool| {
            (
                pool.spec.paused,
                pool.spec.configuration.name.clone(),
                pool.spec.max_unavailable.clone(),
                is_deleting(pool),
            )
        };
        let pool = stores.of::<MachineConfigPool>(TARGET).by_name("", name(snapshot.pool.as_ref()));
        pool.as_deref().map(part) != Some(part(snapshot.pool.as_ref()))
    }

    fn children(&self, snapshot: &Snapshot) -> usize {
        snapshot.members.nodes.len()
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// Wakes the pool that controls a MachineConfig, and those that select it or did.
fn wake_pools(change: &Change<CachedConfig>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    for side in change.sides() {
        if side.spec.is_none() {
            if let Some(owner) = controller(side.as_ref()) {
                wake(target_ref(&owner.name));
            }
            continue;
        }
        for pool in stores.of::<MachineConfigPool>(TARGET).all() {
            let selector = pool.spec.machine_config_selector.as_ref();
            if selector::matches(selector, side.metadata.labels.as_ref()) {
                wake(ObjectRef::of(TARGET, pool.as_ref()));
            }
        }
    }
}

/// Wakes the pools that select a Node, or did. Kubelets change their Nodes frequently.
fn wake_members(change: &Change<Node>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let pools = stores.of::<MachineConfigPool>(TARGET);
    if pools.is_empty() {
        return;
    }
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && (Node::is_heartbeat(change) || gist(old) == gist(new))
    {
        return;
    }
    for pool in pools.all() {
        let is_selected = |node: &Arc<Node>| selects(&pool, node.metadata.labels.as_ref());
        // One that has left the pool may be claimed still.
        let is_claimed = |node: &Arc<Node>| {
            DISRUPTIONS.of(pool.as_ref()).is_some_and(|claims| claims.0.contains_key(name(node.as_ref())))
        };
        if change.sides().any(|node| is_selected(node) || is_claimed(node)) {
            wake(ObjectRef::of(TARGET, pool.as_ref()));
        }
    }
}

/// Wakes the pools whose rendered MachineConfigs a Node names, or named. Kubelets change their Nodes frequently.
fn wake_owners(change: &Change<Node>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let names = |node: &Node| [CURRENT_CONFIG, DESIRED_CONFIG].map(|key| annotation(node, key).map(str::to_owned));
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && names(old) == names(new)
    {
        return;
    }
    let configs = stores.of::<CachedConfig>(TARGET);
    let affected = change.sides().flat_map(|node| names(node)).flatten();
    for config in affected.filter_map(|name| configs.by_name("", &name)) {
        if let Some(owner) = controller(config.as_ref()) {
            wake(target_ref(&owner.name));
        }
    }
}
