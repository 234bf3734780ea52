//! In which rounds the Nodes of a pool would move: what [`decide`] says again and again, as if all went well in between.
//!
//! # Assumptions
//! * A Node that is given the target runs it, is ready and takes Pods before the next round. So does one that is being updated already.
//! * All else stays as it is: Nodes that are unavailable, have failed or are about to go, and claims for machines, take their part of
//!   the budget in each round.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use nodewright_api::{
    labels,
    machine_config::{CURRENT_CONFIG, CURRENT_IMAGE, DESIRED_CONFIG, DESIRED_IMAGE, DONE, STATE},
    stored::{CONFIG_GIVEN, Claim, Disruptions},
};
use nodewright_runtime::object::{label, name, uid};
use serde::Serialize;

use super::rollout::{Rollout, Scope, decide};
use crate::shared::{
    disruption::{
        counts,
        node_state::{current, desired, given, has_agent, is_degraded, is_done, is_leaving},
    },
    node::Node,
    node_agent::is_cordoned_for_agent,
};

/// A Node that gets another configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    /// The name of the Node.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// The MachineConfig that it runs before.
    pub from: String,
    /// Whether it is being updated already.
    #[serde(rename = "begun")]
    pub is_begun: bool,
}

impl Move {
    fn of(node: &Node, is_begun: bool) -> Self {
        let from = current(node).unwrap_or_default().to_owned();
        Self { node: name(node).to_owned(), zone: zone(node), from, is_begun }
    }
}

pub(super) fn zone(node: &Node) -> Option<String> {
    label(node, labels::ZONE).map(str::to_owned)
}

/// The rounds, and in each the Nodes in the order in which they are chosen. None is empty.
pub(super) fn rounds(scope: &Scope<'_>) -> Vec<Vec<Move>> {
    let (first, nodes, claims) = begin(scope);
    let is_open = |node: &&Node| claims.0.contains_key(name(*node));
    let others = scope.others.iter().copied().filter(is_open).collect();
    let nodes = nodes.iter().map(AsRef::as_ref).collect();
    let rest = Scope { nodes, others, claims: &claims, ..scope.clone() };
    // Some count already, as they have failed: they take nothing more, and are chosen together.
    let (failed, others): (Vec<_>, Vec<_>) =
        rest.candidates(&claims).into_iter().partition(|node| counts(node, scope.target));
    let (most, unreadable) = (failed.len() + scope.budget, rest.disrupted(&claims) - failed.len());
    let mut queue = [failed, others].concat();
    let mut rounds = vec![first];
    loop {
        // No more can be chosen at once: a pool of thousands of Nodes is not looked at as a whole in each round.
        let mut nodes: Vec<_> = queue.iter().copied().take(most).collect();
        nodes.sort_by_key(|node| name(*node));
        let none = Disruptions::default();
        let next = Scope { nodes, others: vec![], unreadable, claims: &none, ..scope.clone() };
        let claims = decide(&next).claims;
        let mut chosen = decide(&Scope { claims: &claims, ..next }).targets;
        if chosen.is_empty() {
            break;
        }
        chosen.sort_by_cached_key(|node| scope.order(node));
        rounds.push(chosen.iter().map(|node| Move::of(node, false)).collect());
        let later = queue.split_off(most.min(queue.len()));
        queue.retain(|node| !chosen.iter().any(|it| std::ptr::eq(*it, *node)));
        queue.extend(later);
    }
    rounds.retain(|round| !round.is_empty());
    rounds
}

/// The first round: the Nodes that move, all Nodes of the pool after it, and the claims that are left.
fn begin<'a>(scope: &Scope<'a>) -> (Vec<Move>, Vec<Cow<'a, Node>>, Disruptions) {
    let mut claims = decide(scope).claims;
    let Rollout { targets, releases, .. } = decide(&Scope { claims: &claims, ..scope.clone() });
    let chosen: BTreeSet<_> = targets.into_iter().map(name).collect();
    let (mut moved, mut nodes) = (BTreeMap::new(), vec![]);
    for node in scope.nodes.iter().copied() {
        let (is_chosen, is_begun) = (chosen.contains(name(node)), is_being_updated(node, &claims));
        if !is_chosen && !is_begun {
            nodes.push(Cow::Borrowed(node));
            continue;
        }
        // What somebody else has given a Node, it finishes first.
        let config = if is_chosen { scope.target } else { desired(node) };
        if config == scope.target && current(node) != Some(config) {
            moved.insert((scope.order(node), name(node)), Move::of(node, is_begun));
        }
        nodes.push(Cow::Owned(updated(node, config)));
    }
    let is_settled = |node: &Node| chosen.contains(name(node)) || is_being_updated(node, &claims);
    let settled = scope.nodes.iter().chain(&scope.others).copied().filter(|node| is_settled(node));
    let settled: BTreeSet<_> = settled.chain(releases).map(name).collect();
    let left = claims.0.iter().filter(|(node, _)| !settled.contains(node.as_str()));
    claims = Disruptions(left.map(|(node, claim)| (node.clone(), claim.clone())).collect());
    (moved.into_values().collect(), nodes, claims)
}

/// Whether a Node is on its way to what it is to run, or has yet to take Pods after that.
fn is_being_updated(node: &Node, claims: &Disruptions) -> bool {
    let is_used = |claim: &Claim| !claim.is_of_machine() && claim.uid == uid(node) && given(node) > claim.given;
    let is_claimed = claims.0.get(name(node)).is_some_and(is_used);
    let is_on_its_way = has_agent(node) && !is_done(node) && !desired(node).is_empty();
    (is_on_its_way || is_claimed) && !is_degraded(node) && !is_leaving(node)
}

/// A Node once it runs this configuration.
fn updated(node: &Node, config: &str) -> Node {
    let mut node = node.clone();
    if is_cordoned_for_agent(&node) {
        node.spec.unschedulable = None;
    }
    // It comes back from its reboot.
    node.status.conditions = None;
    let (key, count) = CONFIG_GIVEN.written(&given(&node).wrapping_add(1));
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| ![CURRENT_IMAGE, DESIRED_IMAGE].contains(&key.as_str()));
    let own = [(CURRENT_CONFIG, config), (DESIRED_CONFIG, config), (STATE, DONE), (key, &count)];
    annotations.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    node
}
