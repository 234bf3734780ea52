//! The disruption budget of a MachineConfigPool, which node configuration and rollouts of machines share.
//!
//! A Node is disrupted from its cordon until it is Ready and takes Pods again, or is gone. Before somebody disrupts a Node of a pool
//! for a rollout, the pool lists it: the Node is *claimed* in an annotation of the pool, which is changed only by compare-and-swap. For
//! a configuration the pool's controller claims Nodes; for a rollout of machines the Machine controller does, and for an update in place
//! that of the Nodes of rollouts.
//!
//! # Guarantees
//! * A claim is added only while claimed Nodes, unavailable ones, and those that fail on the present target are together within the
//!   budget ([`disrupted`]).
//! * Before the drain of a Node for its update in place begins here, it is claimed, even if it is disrupted: it may take Pods again
//!   before it is updated.
//! * A claim is used once: the write that disrupts the Node tests the Node's count that the claim names, and increases it. What comes
//!   too late, because the claim was taken back, fails.
//!
//! # Caveats
//! * Machines that go for another reason need no claim: a user deletes them, the deployment is made smaller outside of a rollout, they
//!   have failed. They count once their Node is cordoned.
//! * While machine-config-operator has a Lease, or the controllers of pools run in another process, nothing is shared.

pub(crate) mod budget;
pub(crate) mod node_state;
pub(crate) mod order;
pub(crate) mod patches;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{
    annotations,
    machine_config::MachineConfigPool,
    stored::{Claim, DISRUPTIONS, Disruptions},
};
use nodewright_runtime::{
    cache::{Change, Index, Stores},
    clip::clip_list,
    object::{Kind, annotation, is_deleting, name, uid},
    scoped_watch::ScopedWatch,
};

use self::{
    node_state::{given, is_being_replaced, is_failing, is_ready, is_unavailable},
    order::rank,
};
use super::{
    TARGET,
    in_place::{self, Progress},
    machine_config::Operator,
    node::Node,
    pools::{Membership, members_of, unreadable_members},
};

/// The reason of what waits for a claim.
pub(crate) const AWAITING_BUDGET: &str = "AwaitingDisruptionBudget";
/// How many Nodes a text names.
const NAMED: usize = 5;
const LONGEST_NAMES: usize = 400;

/// Nodes that a rollout of machines may be about to disrupt.
pub(crate) const WAITING_NODES: Index<Node> = Index {
    name: "waiting",
    key_of: |node| {
        let goes = node.is_terminating() && !node.is_cordoned();
        (goes || in_place::awaits_begin(node)).then(String::new)
    },
};

/// The Nodes that may be waiting for a change of a pool.
pub(crate) fn waiting_nodes(change: &Change<MachineConfigPool>, stores: &Stores) -> Vec<Arc<Node>> {
    let gist = |pool: &MachineConfigPool| {
        let status = pool.status.as_ref();
        let counts = status.map(|it| (it.machine_count, it.unavailable_machine_count, it.degraded_machine_count));
        let settings =
            [annotations::DISRUPTIONS, annotations::SHARED_BUDGET].map(|key| annotation(pool, key).map(str::to_owned));
        (counts, settings, pool.spec.max_unavailable.clone(), pool.spec.node_selector.clone(), is_deleting(pool))
    };
    if change.differs_in(gist) { stores.of::<Node>(TARGET).by(WAITING_NODES, "") } else { vec![] }
}

/// How many Nodes of a pool are disrupted, with these claims. `unreadable`: Nodes that cannot be read, each of which counts.
pub(crate) fn disrupted<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    unreadable: usize,
    claims: &Disruptions,
    target: &str,
) -> usize {
    let unclaimed = nodes.filter(|node| !claims.0.contains_key(name(*node)));
    claims.0.len() + unclaimed.filter(|node| counts(node, target)).count() + unreadable
}

/// Whether an unclaimed Node takes a part of the budget.
pub(crate) fn counts(node: &Node, target: &str) -> bool {
    is_unavailable(node) || is_failing(node) && node_state::desired(node) == target
}

/// Since when the pool of a Node has a claim for its Machine.
pub(crate) fn claimed_since(stores: &Stores, node: &Node) -> Option<Timestamp> {
    if stores.of::<MachineConfigPool>(TARGET).is_empty() {
        return None;
    }
    let Membership::Of(pool) = Membership::of(stores, node) else { return None };
    let claim = DISRUPTIONS.of(pool.as_ref())?.0.remove(name(node))?;
    (claim.is_of_machine() && claim.uid == uid(node)).then_some(claim.since)
}

/// Whether the disruption of a Node is to be claimed whose Machine a rollout replaces: it works. Another one counts already, until it is
/// gone.
pub(crate) fn needs_claim(node: &Node) -> bool {
    is_ready(node) && !is_deleting(node)
}

/// Whether a rollout of machines still wants to disrupt a Node that it has claimed, or does.
pub(crate) fn is_claimed_for_machine(node: &Node) -> bool {
    is_deleting(node) || node.is_terminating() || Progress::of(node) != Progress::None
}

/// The pool with which the disruption of a Node shares its budget.
#[derive(Clone, Debug)]
pub(crate) struct SharedBudget {
    pool: Arc<MachineConfigPool>,
    /// The Nodes of the pool, by name.
    nodes: Vec<Arc<Node>>,
    unreadable: usize,
    claims: Disruptions,
    /// Whether the pool has the list of its claims: one that is lost is written again by the pool's controller.
    is_listed: bool,
    /// Whether it is known that machine-config-operator does not move the Nodes of the pool.
    is_alone: bool,
}

/// Whether a rollout may disrupt a Node now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisruptionDecision {
    /// It may: the pool has a claim, which the write that disrupts the Node uses.
    Granted,
    /// The pool has room, and is to list the Node first, with this claim.
    Claim(Claim),
    /// Why it has to wait.
    Wait(String),
}

impl SharedBudget {
    /// `None` if the Node shares no budget.
    pub(crate) fn of(stores: &Stores, node: &Node) -> Option<Self> {
        let pools = stores.of::<MachineConfigPool>(TARGET);
        if pools.is_empty() {
            return None;
        }
        let is_alone = Operator::of(stores).is_absent();
        if is_alone == Some(false) {
            return None;
        }
        let Membership::Of(pool) = Membership::of(stores, node) else { return None };
        if is_deleting(pool.as_ref()) || is_opted_out(pool.as_ref()) {
            return None;
        }
        let claims = DISRUPTIONS.of(pool.as_ref());
        let unreadable = unreadable_members(stores, &pool).len();
        let (nodes, _) = members_of(stores, &pool);
        let (is_listed, claims) = (claims.is_some(), claims.unwrap_or_default());
        Some(Self { pool, nodes, unreadable, claims, is_listed, is_alone: is_alone.is_some() })
    }

    /// The watch that plans need which ask for a permit.
    pub(crate) fn watch() -> ScopedWatch {
        Operator::watch()
    }

    pub(crate) fn pool(&self) -> &MachineConfigPool {
        &self.pool
    }

    /// Whether a Node may be disrupted whose Machine is being deleted. Nodes that wait for the same come one after the other.
    pub(crate) fn deletion(&self, node: &Node) -> DisruptionDecision {
        self.permit(node, |room| {
            let waits = |other: &&Node| {
                other.is_terminating()
                    && is_being_replaced(other)
                    && needs_claim(other)
                    && self.claim_of(other).is_none()
            };
            let earlier = self.nodes().filter(waits).filter(|other| rank(other) < rank(node)).count();
            earlier < room
        })
    }

    /// Whether a Node may be closed to Pods that is to be updated in place, or was closed for another reason.
    pub(crate) fn update(&self, node: &Node) -> DisruptionDecision {
        // One that can no longer be used is taken over.
        let is_used = |claim: &Claim| claim.given != given(node) || is_ready(node);
        if self.claim_of(node).is_some_and(|claim| !claim.is_of_machine() && is_used(claim)) {
            let pool = self.name();
            return DisruptionDecision::Wait(if is_failing(node) {
                format!("the node has failed to get the configuration of pool {pool}, and has to get one first")
            } else {
                format!("the node is being given a configuration by pool {pool}")
            });
        }
        self.permit(node, |_| true)
    }

    fn permit(&self, node: &Node, is_next: impl Fn(usize) -> bool) -> DisruptionDecision {
        if !self.is_alone {
            return DisruptionDecision::Wait("it has yet to be read whether machine-config-operator runs".to_owned());
        }
        if !self.is_listed {
            return DisruptionDecision::Wait(format!(
                "pool {} has yet to list the nodes that it disrupts",
                self.name()
            ));
        }
        let claim = self.claim_of(node);
        if let Some(claim) = claim.filter(|claim| claim.is_of_machine()) {
            if claim.given == given(node) {
                return DisruptionDecision::Granted;
            }
            if claim.given > given(node) && given(node) > 0 {
                return DisruptionDecision::Wait(format!(
                    "the claim of pool {} is newer than the node is seen",
                    self.name()
                ));
            }
            // It was used or taken back, and may be about to go, or the count was wiped: it is claimed once more.
        }
        let known = if claim.is_some() { usize::MAX } else { self.room_for(node) };
        if known == 0 || claim.is_none() && !is_next(known) {
            return DisruptionDecision::Wait(self.wait());
        }
        let since = claim.map_or(Claim::SINCE_NOW, |claim| claim.since);
        let (uid, target) = (uid(node).to_owned(), Claim::MACHINE.to_owned());
        DisruptionDecision::Claim(Claim { uid, target, given: given(node), from: None, since })
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().map(AsRef::as_ref)
    }

    fn name(&self) -> &str {
        name(self.pool.as_ref())
    }

    fn claim_of(&self, node: &Node) -> Option<&Claim> {
        self.claims.0.get(name(node)).filter(|claim| claim.uid == uid(node))
    }

    fn budget(&self) -> usize {
        budget::of(&self.pool, self.nodes.len()).unwrap_or(1)
    }

    fn target(&self) -> &str {
        self.pool.spec.configuration.name.as_deref().unwrap_or_default()
    }

    /// How many Nodes may be claimed now, of which this one, without a claim, is one. If it counts already, it takes nothing more.
    fn room_for(&self, node: &Node) -> usize {
        let budget = self.budget();
        // Mostly the claims alone are as many.
        if self.claims.0.len() >= budget {
            return 0;
        }
        let all = disrupted(self.nodes(), self.unreadable, &self.claims, self.target());
        budget.saturating_sub(all.saturating_sub(usize::from(counts(node, self.target()))))
    }

    fn wait(&self) -> String {
        let is_unclaimed = |node: &&Node| !self.claims.0.contains_key(name(*node)) && counts(node, self.target());
        let unclaimed = self.nodes().filter(is_unclaimed).map(|node| name(node).to_owned());
        let names = self.claims.0.keys().cloned().chain(unclaimed);
        let names = clip_list(NAMED, LONGEST_NAMES, names.collect::<Vec<_>>().into_iter(), ", ");
        let (pool, budget) = (self.name(), self.budget());
        format!("at most {budget} nodes of pool {pool} may be unavailable; it waits for {names}")
    }
}

#[cfg(test)]
impl SharedBudget {
    /// That of a pool with these Nodes.
    pub(crate) fn with(pool: MachineConfigPool, nodes: impl IntoIterator<Item = Node>) -> Self {
        let claims = DISRUPTIONS.of(&pool);
        let (is_listed, claims) = (claims.is_some(), claims.unwrap_or_default());
        let nodes = nodes.into_iter().map(Arc::new).collect();
        Self { pool: Arc::new(pool), nodes, unreadable: 0, claims, is_listed, is_alone: true }
    }
}

/// Whether the annotation [`annotations::SHARED_BUDGET`] of a pool or a set says that nothing is shared.
pub(crate) fn is_opted_out(object: &impl Kind) -> bool {
    annotation(object, annotations::SHARED_BUDGET) == Some("false")
}
