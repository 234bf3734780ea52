//! Which Nodes of a pool are given its target now.
//!
//! A Node is *claimed* before it is given a configuration: the claim is an annotation of the pool, and changed only by
//! compare-and-swap.
//!
//! # Guarantees
//! * A Node is given a configuration only if the pool, as read, has a claim for it: this Node by its UID, this target, and only once.
//!   The Node counts how often it was given one (`config-given`); the claim names the count that the write tests.
//! * A claim is added, and one of a Node that has not begun is used, only while claimed Nodes, unavailable ones, and those that fail
//!   on the present target are together within the budget.
//! * A claim goes when its Node runs the target, is ready and takes Pods, or is gone. One that was not used is taken back first: the
//!   count of the Node grows, so that a request that comes too late fails.
//! * Claims of machines ([`disruption`]) are kept until the Node is gone, or its update in place is over.
//! * Who writes by hand what a Node is to run is not overruled before the Node has finished that, unless its agent reports a failure:
//!   also one of before, until the agent begins. Once the list of claims is lost, what a Node is to run counts as the pool's.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodewright_api::stored::{Claim, Disruptions};
use nodewright_runtime::object::{name, uid};

use super::{etcd::Etcd, snapshot::Snapshot};
use crate::shared::{
    disruption::{
        self, budget, is_claimed_for_machine,
        node_state::{desired, given, has_agent, is_behind, is_degraded, is_done, is_failing, is_leaving, is_ready},
        order::rank,
    },
    node::Node,
    node_agent::is_cordoned_for_agent,
};

/// The limit of the claims' text, in bytes. An API server takes 256 KiB of annotations.
const LARGEST: usize = 160 * 1024;
const NONE: &Disruptions = &Disruptions(BTreeMap::new());

/// What a decision rests on.
#[derive(Clone)]
pub(super) struct Scope<'a> {
    /// The Nodes of the pool, by name.
    pub(super) nodes: Vec<&'a Node>,
    /// Nodes that were claimed, and are no longer the pool's, if they exist.
    pub(super) others: Vec<&'a Node>,
    /// How many Nodes of the pool cannot be read. Each counts as unavailable.
    pub(super) unreadable: usize,
    /// The claims as read.
    pub(super) claims: &'a Disruptions,
    pub(super) target: &'a str,
    pub(super) budget: usize,
    /// The name of the Node that this process runs on, which is claimed last.
    pub(super) own_node: Option<&'a str>,
    /// Whether a Node that runs its configuration may be chosen. One that has failed goes back whatever this says.
    pub(super) etcd: &'a Etcd,
    pub(super) now: Timestamp,
}

/// What becomes of the Nodes of a pool.
#[derive(Debug, Default)]
pub(super) struct Rollout<'a> {
    /// The claims as they are to be.
    pub(super) claims: Disruptions,
    /// Those that are given the target now.
    pub(super) targets: Vec<&'a Node>,
    /// Those that must not be given what they were claimed for.
    pub(super) releases: Vec<&'a Node>,
    /// Those that wait, the next one first.
    pub(super) waiting: Vec<&'a Node>,
    /// What holds claims back beside the budget.
    pub(super) held: Option<Blocked>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Blocked {
    /// Their text is as long as it may be.
    Full,
    /// Etcd has no room for another disruption, or that is not known.
    Etcd(Etcd),
}

pub(super) fn decide<'a>(scope: &Scope<'a>) -> Rollout<'a> {
    let mut rollout = Rollout { claims: scope.kept(), ..Rollout::default() };
    let mut disrupted = scope.disrupted(&rollout.claims);
    let is_within = disrupted <= scope.budget;
    let candidates = scope.candidates(&rollout.claims);
    let mut size = rollout.claims.to_string().len();
    for node in candidates {
        // One that counts already takes nothing more.
        let after = disrupted + usize::from(!disruption::counts(node, scope.target));
        if after > scope.budget {
            rollout.waiting.push(node);
            continue;
        }
        if *scope.etcd != Etcd::Room && !is_failing(node) {
            rollout.held = Some(Blocked::Etcd(scope.etcd.clone()));
            rollout.waiting.push(node);
            continue;
        }
        let claim = scope.claim(node);
        let grown = size + Disruptions([(name(node).to_owned(), claim.clone())].into()).to_string().len();
        if grown > LARGEST {
            rollout.held = Some(Blocked::Full);
            rollout.waiting.push(node);
            continue;
        }
        (disrupted, size) = (after, grown);
        rollout.claims.0.insert(name(node).to_owned(), claim);
    }
    rollout.targets = scope.nodes.iter().copied().filter(|node| scope.is_targeted(node, is_within)).collect();
    rollout.releases = scope.all().filter(|node| scope.is_released(node)).collect();
    rollout
}

/// What becomes of the claims while no Node is given a configuration: those of machines go once they are over.
pub(super) fn hold<'a>(scope: &Scope<'a>) -> Rollout<'a> {
    let is_over = |node_name: &String, claim: &Claim| {
        let node = scope.all().find(|node| name(*node) == node_name && uid(*node) == claim.uid);
        claim.is_of_machine() && node.is_none_or(|node| is_over(node, claim))
    };
    let mut claims = scope.dated(scope.claims.clone());
    claims.0.retain(|node, claim| !is_over(node, claim));
    let is_released = |node: &&Node| scope.claim_of(node).is_some_and(Claim::is_of_machine) && scope.is_released(node);
    Rollout { claims, releases: scope.all().filter(is_released).collect(), ..Rollout::default() }
}

impl<'a> Scope<'a> {
    /// That of a pool that has this target.
    pub(super) fn of(snapshot: &'a Snapshot, target: &'a str, now: Timestamp) -> Self {
        let members = &snapshot.members;
        Self {
            nodes: members.nodes.iter().map(AsRef::as_ref).collect(),
            others: members.left.iter().map(AsRef::as_ref).collect(),
            unreadable: members.unreadable.len(),
            // Of a list that is lost, none counts.
            claims: members.claims.as_ref().unwrap_or(NONE),
            target,
            // That of a pool that is refused is not used.
            budget: budget::of(&snapshot.pool, members.nodes.len()).unwrap_or_default(),
            own_node: snapshot.own_node.as_deref(),
            etcd: &snapshot.etcd,
            now,
        }
    }

    /// The Nodes that may be claimed beside these, the next one first.
    pub(super) fn candidates(&self, claims: &Disruptions) -> Vec<&'a Node> {
        let is_free = |node: &&Node| !claims.0.contains_key(name(*node)) && self.is_candidate(node);
        let mut candidates: Vec<_> = self.nodes.iter().copied().filter(is_free).collect();
        candidates.sort_by_cached_key(|node| self.order(node));
        candidates
    }

    /// The order in which Nodes are claimed.
    pub(super) fn order(&self, node: &Node) -> impl Ord + use<> {
        (self.own_node == Some(name(node)), rank(node))
    }

    /// How many Nodes are disrupted, with these claims.
    pub(super) fn disrupted(&self, claims: &Disruptions) -> usize {
        disruption::disrupted(self.nodes.iter().copied(), self.unreadable, claims, self.target)
    }

    fn member(&self, node: &str) -> Option<&'a Node> {
        self.nodes.binary_search_by(|member| name(*member).cmp(node)).ok().map(|at| self.nodes[at])
    }

    fn claim_of(&self, node: &Node) -> Option<&'a Claim> {
        self.claims.0.get(name(node)).filter(|claim| claim.uid == uid(node))
    }

    fn claim(&self, node: &Node) -> Claim {
        let (uid, target) = (uid(node).to_owned(), self.target.to_owned());
        let from = (!is_done(node)).then(|| desired(node).to_owned());
        Claim { uid, target, given: given(node), from, since: self.now }
    }

    /// The claims that stay, some with another target.
    fn kept(&self) -> Disruptions {
        let kept = self.claims.0.iter().filter_map(|(node_name, claim)| {
            let member = self.member(node_name);
            let left = || self.others.iter().copied().find(|node| name(*node) == node_name);
            let node = member.or_else(left).filter(|node| uid(*node) == claim.uid && !is_over(node, claim))?;
            let is_moved = member.is_some() && !claim.is_of_machine();
            let claim = if is_moved { self.renewed(node, claim) } else { claim.clone() };
            Some((node_name.clone(), claim))
        });
        self.dated(Disruptions(kept.collect()))
    }

    /// The claims, of which those that were made after a loss begin now.
    fn dated(&self, mut claims: Disruptions) -> Disruptions {
        let undated = claims.0.values_mut().filter(|claim| claim.since == Claim::SINCE_NOW);
        undated.for_each(|claim| claim.since = self.now);
        claims
    }

    /// A claim for the present target, unless somebody else has given the Node another configuration, and it is not done with that.
    fn renewed(&self, node: &Node, claim: &Claim) -> Claim {
        if given(node) < claim.given && given(node) > 0 {
            // It is seen as it was before.
            return claim.clone();
        }
        // What was wiped is counted again.
        let is_unused = claim.given == given(node) || given(node) == 0;
        let is_current = claim.target == self.target && (is_unused || desired(node) == self.target);
        let is_ours = if is_unused { is_from(claim, node) } else { desired(node) == claim.target };
        let is_of_others = !is_ours && !is_done(node) && !is_degraded(node);
        if is_current || is_of_others || !is_behind(node, self.target) {
            let given = if is_unused { given(node) } else { claim.given };
            return Claim { given, ..claim.clone() };
        }
        Claim { since: claim.since, ..self.claim(node) }
    }

    fn is_candidate(&self, node: &Node) -> bool {
        // A failed update has left it cordoned: it may go back.
        let is_stuck = is_failing(node) && node.is_cordoned() && is_cordoned_for_agent(node);
        // One that is being updated finishes that first: somebody else may have chosen it.
        let may_move = (is_done(node) || is_degraded(node)) && (is_ready(node) || is_stuck);
        has_agent(node) && is_behind(node, self.target) && !is_leaving(node) && may_move
    }

    /// Whether a Node is claimed for the target, and has yet to be given it. `is_within`: no more Nodes are disrupted than may be.
    fn is_targeted(&self, node: &Node, is_within: bool) -> bool {
        let Some(claim) = self.claim_of(node).filter(|claim| claim.target == self.target) else { return false };
        let is_unused = claim.given == given(node);
        let may_begin = if is_done(node) {
            // It has to be seen that it takes Pods, and that others do: since it was claimed it may have been cordoned, and others may
            // have failed.
            is_within && is_ready(node)
        } else {
            // What somebody has had it begin since then, it finishes first.
            is_degraded(node) || is_from(claim, node)
        };
        is_unused && has_agent(node) && is_behind(node, self.target) && may_begin && !is_leaving(node)
    }

    /// Whether a Node is claimed for a target that it will not be given.
    fn is_released(&self, node: &Node) -> bool {
        let Some(claim) = self.claim_of(node).filter(|claim| claim.given == given(node)) else { return false };
        if claim.is_of_machine() {
            return !is_claimed_for_machine(node);
        }
        let is_wanted = || self.member(name(node)).is_some() && is_behind(node, self.target) && has_agent(node);
        let is_spared = || is_leaving(node) && is_done(node);
        !is_wanted() || is_spared()
    }

    /// The Nodes of the pool, and those that are claimed.
    fn all(&self) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().chain(&self.others).copied()
    }
}

/// Whether a Node is to run what it was to run when it was claimed, and was not done with.
fn is_from(claim: &Claim, node: &Node) -> bool {
    claim.from.as_deref() == Some(desired(node))
}

/// Whether a claim was used or taken back, and its Node is done and takes Pods. A smaller count is that of an old cache, or was wiped.
fn is_over(node: &Node, claim: &Claim) -> bool {
    let is_done = || is_done(node) || !has_agent(node);
    let is_free = || if claim.is_of_machine() { !is_claimed_for_machine(node) } else { is_done() };
    given(node) > claim.given && is_ready(node) && is_free()
}
