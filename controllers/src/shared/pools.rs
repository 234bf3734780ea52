//! Which MachineConfigPool a Node belongs to.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{
    machine_config::{MachineConfigPool, WORKER},
    selector,
};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{label, name, uid},
};

use super::{
    TARGET,
    indexes::{NODES_BY_ROLES, has_selected_roles},
    node::Node,
};

/// The pool of the control plane.
pub(crate) const MASTER: &str = "master";

/// The pool of a Node, as machine-config-operator chooses it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Membership {
    /// No pool selects it, or its operating system takes no configuration.
    None,
    Of(Arc<MachineConfigPool>),
    /// More than one pool selects it that is neither [`MASTER`] nor [`WORKER`]: it is in none. Their names.
    Ambiguous(Vec<String>),
}

impl Membership {
    pub(crate) fn of(stores: &Stores, node: &Node) -> Self {
        Self::among(&stores.of::<MachineConfigPool>(TARGET).all(), node)
    }

    /// The pool among all. [`MASTER`] comes before others, and all before [`WORKER`].
    pub(crate) fn among(pools: &[Arc<MachineConfigPool>], node: &Node) -> Self {
        if label(node, "kubernetes.io/os") == Some("windows") {
            return Self::None;
        }
        let (mut master, mut worker, mut custom) = (None, None, vec![]);
        for pool in pools.iter().filter(|pool| selects(pool, node.metadata.labels.as_ref())) {
            match name(pool.as_ref()) {
                MASTER => master = Some(pool),
                WORKER => worker = Some(pool),
                _ => custom.push(pool),
            }
        }
        if custom.len() > 1 {
            let mut names: Vec<_> = custom.into_iter().map(|pool| name(pool.as_ref()).to_owned()).collect();
            names.sort();
            return Self::Ambiguous(names);
        }
        master.or_else(|| custom.pop()).or(worker).map_or(Self::None, |pool| Self::Of(pool.clone()))
    }
}

/// The Nodes of a pool by name, and those that other pools select as well, so that they are in none: what to say about each.
pub(crate) fn members_of(stores: &Stores, pool: &MachineConfigPool) -> (Vec<Arc<Node>>, Vec<String>) {
    let (store, pools) = (stores.of::<Node>(TARGET), stores.of::<MachineConfigPool>(TARGET).all());
    let roles = store.keys_of(NODES_BY_ROLES);
    let roles = roles.into_iter().filter(|roles| has_selected_roles(roles, pool.spec.node_selector.as_ref()));
    let (mut nodes, mut ambiguous) = (vec![], vec![]);
    for node in roles.flat_map(|roles| store.by(NODES_BY_ROLES, &roles)) {
        if !selects(pool, node.metadata.labels.as_ref()) {
            continue;
        }
        match Membership::among(&pools, &node) {
            Membership::Of(owner) if uid(owner.as_ref()) == uid(pool) => nodes.push(node),
            Membership::Ambiguous(pools) => {
                ambiguous.push(format!("{} ({})", name(node.as_ref()), pools.join(", ")));
            }
            Membership::Of(_) | Membership::None => {}
        }
    }
    nodes.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    ambiguous.sort();
    (nodes, ambiguous)
}

/// The Nodes that cannot be read, and may be the pool's.
pub(crate) fn unreadable_members(stores: &Stores, pool: &MachineConfigPool) -> Vec<Arc<Unreadable>> {
    let may_be_its = |node: &Arc<Unreadable>| {
        let labels = node.metadata().map(|metadata| metadata.labels.as_ref());
        labels.map_or_else(|| !selects_none(pool), |labels| selects(pool, labels))
    };
    stores.of::<Node>(TARGET).unreadable().into_iter().filter(may_be_its).collect()
}

/// Whether a pool selects Nodes with these labels.
pub(crate) fn selects(pool: &MachineConfigPool, labels: Option<&BTreeMap<String, String>>) -> bool {
    !selects_none(pool) && selector::matches(pool.spec.node_selector.as_ref(), labels)
}

/// Whether a pool can have no Node: its selector is empty.
pub(crate) fn selects_none(pool: &MachineConfigPool) -> bool {
    selector::is_empty(pool.spec.node_selector.as_ref())
}
