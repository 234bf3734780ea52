//! The Nodes of a pool.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{
    machine_config::MachineConfigPool,
    stored::{DISRUPTIONS, Disruptions},
};
use nodewright_runtime::{
    cache::Stores,
    object::{name, namespace},
};

use crate::shared::{
    TARGET,
    disruption::node_state::is_drained,
    drain::View,
    node::Node,
    pools::{members_of, selects_none, unreadable_members},
};

/// The Nodes of a pool, and its claims on Nodes.
#[derive(Clone, Default)]
pub(super) struct Members {
    /// By name.
    pub(super) nodes: Vec<Arc<Node>>,
    /// Nodes that other pools select as well, so that they are in none.
    pub(super) ambiguous: Vec<String>,
    /// Claimed Nodes that are no longer the pool's.
    pub(super) left: Vec<Arc<Node>>,
    /// The Pods that have yet to leave Nodes which are being drained, by the name of the Node. What a drain watches is not watched
    /// here, so this may be missing.
    pub(super) pods: BTreeMap<String, Vec<String>>,
    /// An annotation that cannot be read has no claims: Nodes that are being updated count by themselves.
    pub(super) claims: Disruptions,
    /// What to say about Nodes that cannot be read, and may be the pool's.
    pub(super) unreadable: Vec<String>,
    /// What to say about a pool that cannot be read: it may have any Node.
    pub(super) unreadable_pool: Option<String>,
}

impl Members {
    pub(super) fn of(stores: &Stores, pool: &MachineConfigPool) -> Self {
        let claims = DISRUPTIONS.of(pool).unwrap_or_default();
        if selects_none(pool) && claims.0.is_empty() {
            return Self::default();
        }
        let (store, pools) = (stores.of::<Node>(TARGET), stores.of::<MachineConfigPool>(TARGET));
        let (nodes, ambiguous) = members_of(stores, pool);
        let unreadable = unreadable_members(stores, pool);
        let mut members = Self {
            nodes,
            ambiguous,
            unreadable: unreadable.iter().map(|node| node.describe::<Node>()).collect(),
            unreadable_pool: pools.unreadable().first().map(|pool| pool.describe::<MachineConfigPool>()),
            ..Self::default()
        };
        let is_member = |node: &str| members.nodes.binary_search_by(|it| name(it.as_ref()).cmp(node)).is_ok();
        let others = claims.0.keys().filter(|node| !is_member(node));
        members.left = others.filter_map(|node| store.by_name("", node)).collect();
        members.claims = claims;
        let drained = members.nodes.iter().filter(|node| is_drained(node));
        members.pods =
            drained.filter_map(|node| Some((name(node.as_ref()).to_owned(), pods_left(stores, node)?))).collect();
        members
    }
}

/// The Pods that a drain of a Node has yet to remove, if they are known.
fn pods_left(stores: &Stores, node: &Node) -> Option<Vec<String>> {
    let pods = View::take(stores, TARGET, node).pods?;
    let left = pods.iter().filter(|pod| pod.leaves());
    Some(left.map(|pod| format!("{}/{}", namespace(pod.as_ref()), name(pod.as_ref()))).collect())
}
