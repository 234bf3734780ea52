//! What spans alone need of other objects: which requests have changed what a pool selects, and the Machines of claimed Nodes.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use nodewright_api::{
    Machine,
    machine_config::{CONTROLLER_CONFIG, ControllerConfig, KubeletConfig},
    stored::Disruptions,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    cache::Stores,
    object::{controller, name, resource_version},
};

use crate::shared::{
    CONTROL, TARGET, indexes::MACHINE_BY_NODE, machine_config::CachedConfig, node::Node, ownership::is_node_of,
    pool_traces::change, traces,
};

/// What a plan has to know for spans alone. Without traces nothing is looked up.
#[derive(Clone, Default)]
pub(super) struct Traced {
    /// The selected MachineConfigs by their versions, the newest first: the requests that have changed them.
    pub(super) inputs: Vec<(u64, TraceContext)>,
    /// The generation of the ControllerConfig, and the request that has made it.
    pub(super) controller_config: Option<(i64, TraceContext)>,
    /// The creations of the Machines of claimed Nodes, by the name of the Node.
    machines: BTreeMap<String, TraceContext>,
}

impl Traced {
    pub(super) fn of(stores: &Stores, selected: &[Arc<CachedConfig>], claims: Option<&Disruptions>) -> Self {
        let mut inputs: Vec<_> =
            selected.iter().map(|config| (resource_version(config.as_ref()), request(stores, config))).collect();
        inputs.sort_by_key(|(version, _)| Reverse(*version));
        let controller_config = stores.of::<ControllerConfig>(TARGET).by_name("", CONTROLLER_CONFIG);
        let claimed = claims.iter().flat_map(|claims| claims.0.keys());
        Self {
            inputs,
            controller_config: controller_config
                .map(|object| (object.metadata.generation.unwrap_or_default(), change(object.as_ref()))),
            machines: claimed.filter_map(|node| Some((node.clone(), creation_of(stores, node)?))).collect(),
        }
    }

    /// The creation of the Machine of a claimed Node.
    pub(super) fn machine(&self, node: &str) -> Option<TraceContext> {
        self.machines.get(node).copied()
    }
}

/// The request that a MachineConfig follows from: the one for the object that it was generated of, or its own.
fn request(stores: &Stores, config: &CachedConfig) -> TraceContext {
    let owner = controller(config);
    let of = |kind: &str| owner.filter(|owner| owner.kind == kind).map(|owner| owner.name.as_str());
    let kubelet = of("KubeletConfig").and_then(|name| stores.of::<KubeletConfig>(TARGET).by_name("", name));
    let templates = of("ControllerConfig").and_then(|name| stores.of::<ControllerConfig>(TARGET).by_name("", name));
    let owner = kubelet.map(|object| change(object.as_ref()));
    owner.or_else(|| templates.map(|object| change(object.as_ref()))).unwrap_or_else(|| change(config))
}

/// The span of the creation of a Node's Machine. No pool waits for the cache of Machines, which may be one of another cluster.
fn creation_of(stores: &Stores, node: &str) -> Option<TraceContext> {
    if !stores.is_listed::<Machine>(CONTROL) {
        return None;
    }
    let node = stores.of::<Node>(TARGET).by_name("", node)?;
    let machines = stores.of::<Machine>(CONTROL).by(MACHINE_BY_NODE, name(node.as_ref()));
    let machine = machines.into_iter().find(|machine| is_node_of(machine, &node))?;
    Some(traces::within(&machine, traces::CREATION, traces::creation(&machine)))
}
