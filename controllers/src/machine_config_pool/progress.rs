//! How far the Nodes of a pool are, for its status. Counts, conditions and texts are machine-config-operator's; after its texts
//! follows what is waited for.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    ConditionStatus::{False, True},
    conditions::{machine_config_pool as conditions, node::READY},
    machine_config::{MachineConfigPool, MachineConfigPoolStatus},
    reasons::machine_config_pool as reasons,
    stored::Claim,
};
use nodewright_runtime::{
    clip::{clip_list, clip_to},
    events::Event,
    object::name,
    plan::reference,
};

use super::{
    etcd::Etcd,
    rollout::{self, Blocked, Rollout},
    snapshot::Snapshot,
};
use crate::shared::{
    conditions::{Finding, set},
    disruption::node_state::{
        LONGEST_REASON, has_agent, is_behind, is_degraded, is_done, is_drained, is_leaving, is_ready, is_unavailable,
        is_updated, reason,
    },
    node::Node,
    node_agent::asked,
    pause,
    status_writer::count,
};

/// How many Nodes or Pods a text names.
const NAMED: usize = 3;
/// After how long the text about the Pods that are left is brought up to date.
const LOOK: SignedDuration = SignedDuration::from_secs(30);
const LONGEST: usize = 400;

/// The Nodes of a pool, and what becomes of them.
pub(super) struct PoolView<'a> {
    pub(super) nodes: Vec<&'a Node>,
    pub(super) target: Option<&'a str>,
    pub(super) rollout: Rollout<'a>,
    /// Whether Nodes may be moved.
    pub(super) moves: bool,
    /// Why none may be moved, if somebody should know.
    pub(super) halt: Option<String>,
    budget: usize,
    pods: &'a BTreeMap<String, Vec<String>>,
    /// Claimed Nodes that are no longer the pool's.
    left: Vec<&'a Node>,
}

/// The target, if it exists and the pool names it.
fn target(snapshot: &Snapshot) -> Option<&str> {
    let target = snapshot.pool.spec.configuration.name.as_deref().filter(|target| !target.is_empty())?;
    snapshot.has_target().then_some(target)
}

impl<'a> PoolView<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let (pool, members, target) = (snapshot.pool.as_ref(), &snapshot.members, target(snapshot));
        let scope = rollout::Scope::of(snapshot, target.unwrap_or_default(), now);
        let halt = snapshot.errors.first().map(ToString::to_string);
        let halt = halt.or_else(|| members.unreadable_pool.clone()).or_else(|| snapshot.unusable_target());
        let moves = halt.is_none() && pause::permits_updates(pool) && target.is_some();
        let decide = if moves { rollout::decide } else { rollout::hold };
        let rollout = decide(&scope);
        let rollout::Scope { nodes, others: left, budget, .. } = scope;
        Self { nodes, target, rollout, moves, halt, budget, pods: &members.pods, left }
    }
}

impl PoolView<'_> {
    /// Whether a Node is being updated, and has not failed.
    fn gets_on(&self) -> bool {
        let is_claimed = |node: &&&Node| self.rollout.claims.0.contains_key(name(**node));
        self.moves && self.nodes.iter().filter(is_claimed).any(|node| !is_degraded(node))
    }

    /// When to look again: Pods that leave wake no pool.
    pub(super) fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let is_draining = self.nodes.iter().any(|node| is_drained(node));
        now.checked_add(LOOK).ok().filter(|_| is_draining && self.target.is_some())
    }
}

/// Sets the counts and the conditions of the Nodes.
pub(super) fn report(
    status: &mut MachineConfigPoolStatus,
    now: Timestamp,
    snapshot: &Snapshot,
    progress: &PoolView<'_>,
) {
    let all = || progress.nodes.iter().copied();
    let (target, unreadable) = (progress.target, count(snapshot.members.unreadable.iter()));
    let is_current = |node: &&Node| target.is_some_and(|target| is_updated(node, target));
    status.machine_count = count(all()).saturating_add(unreadable);
    status.updated_machine_count = count(all().filter(is_current));
    status.ready_machine_count = count(all().filter(is_current).filter(|node| is_ready(node)));
    status.unavailable_machine_count = count(all().filter(|node| is_unavailable(node))).saturating_add(unreadable);
    status.degraded_machine_count = count(all().filter(|node| is_degraded(node)));
    let degraded = degraded(progress);
    set(&mut status.conditions, now, conditions::NODE_DEGRADED, degraded.clone());
    let mut reconciling = None;
    if let Some(target) = target {
        let is_complete = status.updated_machine_count == status.machine_count
            && status.ready_machine_count == status.machine_count
            && status.unavailable_machine_count == 0;
        if is_complete {
            status.configuration = snapshot.pool.spec.configuration.clone();
        }
        let [updated, updating] = findings(snapshot, progress, target, is_complete);
        reconciling = (updating.0 == True).then(|| updating.clone());
        set(&mut status.conditions, now, conditions::UPDATED, updated);
        set(&mut status.conditions, now, conditions::UPDATING, updating);
    }
    // kstatus takes these two for what is in progress, and what has failed: the first one that it finds.
    let stalled = match (&progress.halt, degraded) {
        (Some(halt), _) => Some((True, reasons::INVALID, halt.clone())),
        (None, degraded) => (degraded.0 == True && !progress.gets_on()).then_some(degraded),
    };
    let reconciling = reconciling.filter(|_| stalled.is_none());
    for (kind, finding) in [(conditions::RECONCILING, reconciling), (conditions::STALLED, stalled)] {
        match finding {
            Some(finding) => set(&mut status.conditions, now, kind, finding),
            None => status.conditions.retain(|it| it.condition_type != kind),
        }
    }
}

/// The event that all Nodes run another configuration than before.
pub(super) fn completed(pool: &MachineConfigPool, status: &MachineConfigPoolStatus) -> Option<Event> {
    let done = status.configuration.name.as_deref()?;
    let before = pool.status.as_ref().and_then(|before| before.configuration.name.as_deref());
    let text = || format!("Pool {} has completed update to MachineConfig {done}", name(pool));
    // A pool without nodes has completed nothing.
    (before != Some(done) && status.machine_count > 0)
        .then(|| Event::normal(reference(pool), reasons::COMPLETED, text()))
}

fn degraded<'a>(progress: &PoolView<'_>) -> Finding<'a> {
    let failed: Vec<_> = progress.nodes.iter().filter(|node| is_degraded(node)).collect();
    if failed.is_empty() {
        return (False, reasons::AS_EXPECTED, String::new());
    }
    let text = |node: &&&Node| {
        format!("Node {} is reporting: {:?}", name(**node), clip_to(LONGEST_REASON, reason(node).to_owned()))
    };
    let texts: Vec<_> = failed.iter().map(text).collect();
    let all = failed.len();
    let texts = clip_list(NAMED, LONGEST, texts.into_iter(), ", ");
    (True, reasons::NODES_DEGRADED, format!("{all} nodes are reporting degraded status on sync: {texts}"))
}

/// `Updated` and `Updating`.
fn findings<'a>(snapshot: &Snapshot, progress: &PoolView<'_>, target: &str, is_complete: bool) -> [Finding<'a>; 2] {
    let (ambiguous, unreadable) = (&snapshot.members.ambiguous, &snapshot.members.unreadable);
    let mut notes = vec![];
    if !ambiguous.is_empty() {
        let names = clip_list(NAMED, LONGEST, ambiguous.iter().cloned(), ", ");
        notes.push(format!("nodes that several pools select are in none: {names}"));
    }
    if !unreadable.is_empty() {
        notes.push(clip_list(NAMED, LONGEST, unreadable.iter().cloned(), ", "));
    }
    let with = |text: String, more: Vec<String>| [vec![text], more, notes.clone()].concat().join("; ");
    if is_complete {
        let text = with(format!("All nodes are updated with MachineConfig {target}"), vec![]);
        return [(True, reasons::ALL_UPDATED, text), (False, reasons::ALL_UPDATED, String::new())];
    }
    if !pause::permits_updates(&snapshot.pool) {
        let text = with(format!("Pool is paused; will not update to MachineConfig {target}"), vec![]);
        return [(False, reasons::PAUSED, String::new()), (False, reasons::PAUSED, text)];
    }
    let agents: Vec<_> = progress.nodes.iter().copied().filter(|node| has_agent(node)).collect();
    let (all, lacking) = (progress.nodes.len(), progress.nodes.len() - agents.len());
    let lack = (lacking > 0).then(|| format!("{lacking} of {all} nodes have no agent, which applies configurations"));
    if agents.iter().all(|node| is_updated(node, target) && is_ready(node)) && lacking > 0 {
        let text = with(lack.unwrap_or_default(), vec![]);
        return [(False, reasons::NO_AGENT, text.clone()), (False, reasons::NO_AGENT, text)];
    }
    let more = [waits(progress, target), lack.into_iter().collect()].concat();
    let text = with(format!("All nodes are updating to MachineConfig {target}"), more);
    [(False, reasons::NODES_BEHIND, String::new()), (True, reasons::NODES_BEHIND, text)]
}

/// What the rollout waits for: Nodes in progress, those whose turn has yet to come, and those that cannot be moved.
fn waits(progress: &PoolView<'_>, target: &str) -> Vec<String> {
    let mut texts = vec![];
    texts.extend(progress.halt.as_ref().map(|halt| format!("no node is moved: {halt}")));
    let all = || progress.nodes.iter().copied().filter(|node| has_agent(node));
    let rollout = &progress.rollout;
    let claim = |node: &Node| rollout.claims.0.get(name(node));
    let since = |node: &Node| claim(node).map(|claim| claim.since);
    let updated = all().filter(|node| is_updated(node, target)).count();
    texts.push(format!("{updated} of {} are updated", progress.nodes.len()));
    let is_moving = |node: &&Node| {
        since(node).is_some() || has_agent(node) && (!is_done(node) || is_updated(node, target) && !is_ready(node))
    };
    let moving = progress.nodes.iter().chain(&progress.left).copied().filter(is_moving);
    let moving: Vec<_> = moving.map(|node| described(node, claim(node), progress)).collect();
    if !moving.is_empty() {
        texts.push(clip_list(NAMED, LONGEST, moving.into_iter(), ", "));
    }
    let waiting = rollout.waiting.len();
    if waiting > 0 {
        let why = match &rollout.held {
            None | Some(Blocked::Etcd(Etcd::Room | Etcd::Pending)) => {
                format!("at most {} may be unavailable", progress.budget)
            }
            Some(Blocked::Full) => "the list of claims is as large as it may be".to_owned(),
            Some(Blocked::Etcd(Etcd::Full(why))) => why.clone(),
        };
        texts.push(format!("{waiting} wait for their turn: {why}"));
    }
    let held = all().filter(|node| is_done(node) && is_behind(node, target) && since(node).is_none());
    let held: Vec<_> = held.filter_map(|node| Some(format!("node {} {}", name(node), obstacle(node)?))).collect();
    if !held.is_empty() {
        texts.push(clip_list(NAMED, LONGEST, held.into_iter(), ", "));
    }
    texts
}

/// What a Node that is being updated is about to do.
fn described(node: &Node, claim: Option<&Claim>, progress: &PoolView<'_>) -> String {
    let is_current = progress.target.is_some_and(|target| is_updated(node, target));
    let what = match node {
        _ if claim.is_some_and(Claim::is_of_machine) && is_leaving(node) => "goes with its machine".to_owned(),
        _ if claim.is_some_and(Claim::is_of_machine) => "is being updated in place".to_owned(),
        _ if !has_agent(node) => "has no agent any more".to_owned(),
        _ if is_degraded(node) => format!("has failed: {}", clip_to(LONGEST_REASON, reason(node).to_owned())),
        _ if is_drained(node) => match progress.pods.get(name(node)) {
            Some(pods) if !pods.is_empty() => {
                format!("is being drained of {}", clip_list(NAMED, LONGEST, pods.iter().cloned(), " "))
            }
            _ => "is being drained".to_owned(),
        },
        _ if asked(node).is_some() => "is about to take pods again".to_owned(),
        _ if is_current && node.is_cordoned() => "is updated, and cordoned".to_owned(),
        _ if is_current => "is updated, and not ready".to_owned(),
        _ if is_done(node) => "has yet to begin".to_owned(),
        _ if node.condition(READY).is_some_and(|condition| condition.status != "True") => {
            "is being updated, and not ready".to_owned()
        }
        _ => "is being updated".to_owned(),
    };
    let since = claim.map(|claim| format!(" (chosen at {:.0})", claim.since)).unwrap_or_default();
    let left =
        if progress.left.iter().any(|it| std::ptr::eq(*it, node)) { ", and is no longer of the pool" } else { "" };
    format!("node {} {what}{left}{since}", name(node))
}

/// Why a Node cannot be chosen.
fn obstacle(node: &Node) -> Option<&'static str> {
    match node {
        _ if is_leaving(node) => Some("is left out: its machine is about to go"),
        _ if node.is_cordoned() => Some("is left out: it is cordoned"),
        _ if !is_ready(node) => Some("is left out: it is not ready"),
        _ => None,
    }
}
