//! Which MachineConfigPool a Node belongs to.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{
    machine_config::{MachineConfigPool, WORKER},
    selector,
};
use nodewright_runtime::{
    cache::Stores,
    object::{label, name},
};

use super::{TARGET, node::Node};

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

/// Whether a pool selects Nodes with these labels.
pub(crate) fn selects(pool: &MachineConfigPool, labels: Option<&BTreeMap<String, String>>) -> bool {
    !selects_none(pool) && selector::matches(pool.spec.node_selector.as_ref(), labels)
}

/// Whether a pool can have no Node: its selector is empty.
pub(crate) fn selects_none(pool: &MachineConfigPool) -> bool {
    selector::is_empty(pool.spec.node_selector.as_ref())
}
