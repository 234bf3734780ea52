//! The Nodes of a pool.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{
    machine_config::MachineConfigPool,
    stored::{Claim, DISRUPTIONS, Disruptions},
};
use nodewright_runtime::{
    cache::Stores,
    object::{name, namespace, resource_version, uid},
    scoped_watch::ScopedWatch,
};

use crate::shared::{
    TARGET,
    disruption::{
        is_claimed_for_machine,
        node_state::{desired, given, is_drained, is_failing, is_unavailable},
    },
    drain::View,
    node::Node,
    pools::{members_of, selects_none, unreadable_members},
};

/// How many claims are made for Nodes after a loss. More of them count by themselves.
const REBUILT: usize = 500;

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
    /// The claims; `None` if their list is lost, and the Nodes have yet to be read.
    pub(super) claims: Option<Disruptions>,
    /// Whether the list of the claims is missing, or cannot be read.
    pub(super) is_lost: bool,
    /// What to say about Nodes that cannot be read, and may be the pool's.
    pub(super) unreadable: Vec<String>,
    /// What to say about a pool that cannot be read: it may have any Node.
    pub(super) unreadable_pool: Option<String>,
}

impl Members {
    pub(super) fn of(stores: &Stores, pool: &MachineConfigPool) -> Self {
        let known = DISRUPTIONS.of(pool);
        if selects_none(pool) && known.as_ref().is_none_or(|claims| claims.0.is_empty()) {
            return Self { claims: Some(Disruptions::default()), ..Self::default() };
        }
        let (store, pools) = (stores.of::<Node>(TARGET), stores.of::<MachineConfigPool>(TARGET));
        let (mut nodes, ambiguous) = members_of(stores, pool);
        let is_lost = known.is_none();
        let claims = known.or_else(|| rebuilt(stores, pool, &mut nodes));
        let unreadable = unreadable_members(stores, pool);
        let mut members = Self {
            nodes,
            ambiguous,
            is_lost,
            unreadable: unreadable.iter().map(|node| node.describe::<Node>()).collect(),
            unreadable_pool: pools.unreadable().first().map(|pool| pool.describe::<MachineConfigPool>()),
            ..Self::default()
        };
        let is_member = |node: &str| members.nodes.binary_search_by(|it| name(it.as_ref()).cmp(node)).is_ok();
        let claimed = claims.iter().flat_map(|claims| claims.0.keys());
        let others = claimed.filter(|node| !is_member(node));
        members.left = others.filter_map(|node| store.by_name("", node)).collect();
        members.claims = claims;
        let drained = members.nodes.iter().filter(|node| is_drained(node));
        members.pods =
            drained.filter_map(|node| Some((name(node.as_ref()).to_owned(), pods_left(stores, node)?))).collect();
        members
    }
}

/// The watch that reads all Nodes once more, while the list of a pool is lost. No Node has such a name: each loss has a list of its own,
/// which is begun after it.
pub(super) fn watch(pool: &MachineConfigPool) -> ScopedWatch {
    ScopedWatch::at::<Node>(TARGET, all_since(pool))
}

fn all_since(pool: &MachineConfigPool) -> String {
    format!("metadata.name!={}@{}", name(pool), resource_version(pool))
}

/// The claims of a pool whose list is lost, by the Nodes that are disrupted. They have to be as new as the loss, which the cache may not
/// be: those of a list from the quorum replace older ones. A cache that is older still, here or in another process, has the claims then.
fn rebuilt(stores: &Stores, pool: &MachineConfigPool, nodes: &mut [Arc<Node>]) -> Option<Disruptions> {
    let listed = stores.seen::<Node>(TARGET, &all_since(pool))?;
    for node in &mut *nodes {
        if let Some(newer) = listed.by_name("", name(node.as_ref())).filter(|it| version(it) > version(node)) {
            *node = newer;
        }
    }
    Some(used_claims(nodes.iter().map(AsRef::as_ref)))
}

/// The claims by which these Nodes may have been disrupted.
pub(super) fn used_claims<'a>(nodes: impl Iterator<Item = &'a Node>) -> Disruptions {
    let claims = nodes.filter_map(|node| Some((name(node).to_owned(), used_claim(node)?)));
    Disruptions(claims.take(REBUILT).collect())
}

/// The claim by which a Node may have been disrupted: one that was used. It goes once the Node takes Pods again.
fn used_claim(node: &Node) -> Option<Claim> {
    let is_disrupted = is_unavailable(node) || is_failing(node);
    let given = given(node).checked_sub(1).filter(|_| is_disrupted)?;
    let target = if is_claimed_for_machine(node) { Claim::MACHINE } else { desired(node) };
    (!target.is_empty()).then(|| Claim {
        uid: uid(node).to_owned(),
        target: target.to_owned(),
        given,
        from: None,
        since: Claim::SINCE_NOW,
    })
}

fn version(node: &Arc<Node>) -> u64 {
    resource_version(node.as_ref())
}

/// The Pods that a drain of a Node has yet to remove, if they are known.
fn pods_left(stores: &Stores, node: &Node) -> Option<Vec<String>> {
    let pods = View::take(stores, TARGET, node).pods?;
    let left = pods.iter().filter(|pod| pod.leaves());
    Some(left.map(|pod| format!("{}/{}", namespace(pod.as_ref()), name(pod.as_ref()))).collect())
}
