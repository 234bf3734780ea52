//! What must hold at each write of a manager to a pool, to its Nodes, and to their Pods: I36 to I44. See also `claims`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nodewright_api::stored::Disruptions;
use nodewright_testing::api_server::{ChangeRecord, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    claims::{Pool, claims_of, has_claims},
    node::Member,
    past::Past,
};
use crate::names::is_member;

/// After claims were removed or put back by others, a request may rest on those that there were for this long, besides the sight.
const UNCLAIMED: Duration = Duration::from_secs(30);

/// Who writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Writer {
    /// A manager: the writer of what no other names as its own.
    #[default]
    Manager,
    /// A user, or an accident.
    User,
    /// A stand-in on a Node.
    Agent,
}

/// The pools of a run, and their Nodes and Pods.
#[derive(Default)]
pub(in super::super) struct Rollouts {
    is_evaluated: bool,
    /// How old what managers act on may be.
    pub(super) sight: Duration,
    pub(super) writer: Writer,
    pub(super) pools: BTreeMap<String, Past<Pool>>,
    claims: BTreeMap<String, Disruptions>,
    /// When others changed claims.
    touched: BTreeMap<String, Instant>,
    /// The pools whose list of claims was lost, and that have yet to make another one.
    lost: BTreeSet<String>,
    /// How many Nodes each pool has.
    pub(super) sizes: BTreeMap<String, Past<usize>>,
    pub(super) nodes: BTreeMap<String, Watched>,
    pods: BTreeMap<String, Pod>,
    /// How many times a Node was given a configuration, and a user changed something.
    pub(in super::super) moves: u64,
}

/// A Node, and what has become of it.
pub(super) struct Watched {
    pub(super) past: Past<Member>,
    pub(super) pool: Option<String>,
    /// Whether a manager has disrupted it, until it is as before.
    pub(super) is_moved: bool,
    pub(super) disrupted_since: Option<Instant>,
    /// Since when it has what a user has written by hand, until its agent is done with that.
    by_hand: Option<Instant>,
    is_closed_by_user: bool,
}

/// A Pod on a Node of a pool.
struct Pod {
    node: String,
    leaves: bool,
    bound: Instant,
    is_ending: bool,
}

impl Rollouts {
    /// From now on, the pools are evaluated. `sight`: how old what managers act on may be.
    pub(in super::super) fn watch(sight: Duration) -> Self {
        Self { is_evaluated: true, sight, ..Self::default() }
    }

    /// Checks a change of an object.
    pub(in super::super) fn change(&mut self, plural: &str, name: &str, change: &ChangeRecord) -> Vec<String> {
        if !self.is_evaluated {
            return vec![];
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        match plural {
            "machineconfigpools" => self.pool(name, old, new),
            "nodes" if is_member(name) => self.node(name, new),
            "pods" => {
                self.pod(name, new);
                vec![]
            }
            _ => vec![],
        }
    }

    fn pool(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>) -> Vec<String> {
        let Some(new) = new else {
            self.pools.remove(name);
            self.claims.remove(name);
            return vec![];
        };
        if self.writer != Writer::Manager && old.is_some_and(has_claims) && !has_claims(new) {
            // Nothing says any more which Nodes the pool itself has given what they are to run.
            let own = self.nodes.values_mut().filter(|node| node.pool.as_deref() == Some(name));
            own.for_each(|node| node.by_hand = None);
            self.lost.insert(name.to_owned());
        }
        let (claims, mut wrongs) = (claims_of(new), vec![]);
        let before = self.claims.get(name).cloned().unwrap_or_default();
        match self.writer {
            Writer::Manager => {
                let is_lost = has_claims(new) && self.lost.remove(name);
                wrongs.extend(self.claimed(name, (&before, &claims), is_lost));
                let done = |pool: &Value| pool["status"]["configuration"]["name"].as_str().map(str::to_owned);
                let completed = done(new).filter(|config| old.and_then(done).as_ref() != Some(config));
                wrongs.extend(completed.and_then(|config| self.incomplete(name, &config)));
            }
            _ if before != claims => drop(self.touched.insert(name.to_owned(), Instant::now())),
            _ => {}
        }
        self.claims.insert(name.to_owned(), claims);
        let (pool, sight) = (Pool::of(new), self.sight);
        self.pools.entry(name.to_owned()).or_insert_with(|| Past::new(pool.clone())).set(pool, sight);
        self.count();
        wrongs
    }

    /// Why a pool may not say that all its Nodes run a configuration.
    fn incomplete(&self, pool: &str, config: &str) -> Option<String> {
        let own = self.nodes.iter().filter(|(_, node)| node.pool.as_deref() == Some(pool));
        let is_behind = |node: &Watched| {
            let member = node.past.now();
            node.past.is_settled(self.sight) && !(member.is_done() && member.current == config && member.is_open())
        };
        let (behind, _) = own.into_iter().find(|(_, node)| is_behind(node))?;
        Some(format!("I43: pool {pool} has completed {config}, and node {behind} has not"))
    }

    /// Counts the Nodes of each pool, and sets to which one each belongs.
    fn count(&mut self) {
        let Self { pools, nodes, sizes, sight, .. } = self;
        let mut counts: BTreeMap<&String, usize> = pools.keys().map(|pool| (pool, 0)).collect();
        for node in nodes.values_mut() {
            let pool = node.past.now().pool(pools.keys()).map(str::to_owned);
            if pool != node.pool {
                // For its new pool, it is disrupted by others.
                (node.is_moved, node.disrupted_since) = (false, None);
            }
            let target = pool.as_ref().and_then(|pool| pools.get(pool)).map(|pool| pool.now().target.as_str());
            let is_disrupted = node.past.now().counts(target.unwrap_or_default());
            node.is_moved &= is_disrupted;
            node.disrupted_since = is_disrupted.then(|| node.disrupted_since.unwrap_or_else(Instant::now));
            if let Some(count) = pool.as_ref().and_then(|pool| counts.get_mut(pool)) {
                *count += 1;
            }
            node.pool = pool;
        }
        for (pool, count) in counts {
            sizes.entry(pool.clone()).or_insert_with(|| Past::new(count)).set(count, *sight);
        }
    }

    fn node(&mut self, name: &str, new: Option<&Value>) -> Vec<String> {
        let Some(member) = new.map(Member::of) else {
            self.nodes.remove(name);
            self.count();
            return vec![];
        };
        let Some(known) = self.nodes.get(name).filter(|known| known.past.now().uid == member.uid) else {
            let (past, pool) = (Past::new(member), None);
            let node =
                Watched { past, pool, is_moved: false, disrupted_since: None, by_hand: None, is_closed_by_user: false };
            self.nodes.insert(name.to_owned(), node);
            self.count();
            return vec![];
        };
        let before = known.past.now().clone();
        let is_given = before.desired != member.desired;
        let mut wrongs = vec![];
        if self.writer == Writer::Manager {
            if is_given {
                self.moves += 1;
                wrongs.extend(self.given(name, known, &member));
            }
            wrongs.extend(drained(name, known, &member));
            wrongs.extend(self.acknowledged(name, &before, &member));
        }
        let (sight, writer) = (self.sight, self.writer);
        if let Some(node) = self.nodes.get_mut(name) {
            node.note(&before, &member, writer);
            node.past.set(member, sight);
        }
        self.count();
        wrongs
    }

    /// Checks that a Node is given a configuration.
    fn given(&self, name: &str, known: &Watched, member: &Member) -> Vec<String> {
        let (config, before) = (&member.desired, known.past.now());
        let mut wrongs = vec![];
        let pool = self.pools.iter().find(|(pool, _)| config.starts_with(&format!("rendered-{pool}-")));
        let Some((pool, spec)) = pool else {
            return vec![format!("I37: node {name} is given {config:?}, which is no pool's")];
        };
        if spec.seen(self.sight).all(|spec| spec.target != *config) {
            wrongs.push(format!("I37: node {name} is given {config}, which is not the target of pool {pool}"));
        }
        if known.past.seen(self.sight).all(|member| member.pool(self.pools.keys()) != Some(pool)) {
            wrongs.push(format!("I37: node {name} is given {config}, and is none of pool {pool}"));
        }
        if spec.seen(self.sight).all(|spec| spec.is_paused) {
            wrongs.push(format!("I38: pool {pool} is paused, and node {name} is given {config}"));
        }
        let is_touched = self.touched.get(pool).is_some_and(|at| at.elapsed() <= self.sight + UNCLAIMED);
        let claim = self.claims.get(pool).and_then(|claims| claims.0.get(name));
        let is_claimed = claim.is_some_and(|claim| claim.uid == member.uid && claim.given == before.given);
        if !is_claimed && !is_touched {
            wrongs.push(format!("I37: node {name} is given {config}, and pool {pool} has no claim for it: {claim:?}"));
        }
        let target = &spec.now().target;
        if !before.counts(target) && !is_touched {
            let others = self.disrupted(pool).into_iter().filter(|other| *other != name).collect::<Vec<_>>();
            let most = self.budget(pool);
            if others.len() + 1 > most {
                wrongs.push(format!(
                    "I36: node {name} is given {config} while {others:?} are disrupted, and {most} may be"
                ));
            }
        }
        wrongs.extend(self.unready(name, known));
        wrongs
    }

    /// Why a Node may not be given a configuration, by what it says itself.
    fn unready(&self, name: &str, known: &Watched) -> Option<String> {
        let before = known.past.now();
        if before.is_done() && before.is_cordoned {
            let is_hidden = known.past.seen(self.sight).any(|member| !member.is_done());
            return (!is_hidden).then(|| format!("I39: node {name} is cordoned, and is given a configuration"));
        }
        if known.past.seen(self.sight).all(|member| member.is_done() && !member.is_ready) {
            return Some(format!("I39: node {name} is not ready, and is given a configuration"));
        }
        let is_busy = known.by_hand.is_some_and(|since| since.elapsed() > self.sight);
        is_busy
            .then(|| format!("I39: node {name} is not done with what a user has given it, and is given something else"))
    }

    /// Checks what a manager tells the agent of a Node.
    fn acknowledged(&self, name: &str, before: &Member, member: &Member) -> Option<String> {
        if before.done == member.done {
            return None;
        }
        if member.done != member.asks {
            return Some(format!(
                "I41: node {name} has the answer {:?}, and has asked for {:?}",
                member.done, member.asks
            ));
        }
        let config = member.done.strip_prefix("drain-")?;
        if !member.is_cordoned {
            return Some(format!("I41: node {name} has the answer that it is drained for {config}, and takes pods"));
        }
        // Nobody ends the Pods of a Node that does not answer.
        let is_left = |pod: &Pod| {
            pod.node == name && pod.leaves && pod.bound.elapsed() > self.sight && (member.is_ready || !pod.is_ending)
        };
        let (left, _) = self.pods.iter().find(|(_, pod)| is_left(pod))?;
        Some(format!("I41: node {name} has the answer that it is drained for {config}, and pod {left} is there"))
    }

    fn pod(&mut self, name: &str, new: Option<&Value>) {
        let node = new.and_then(|pod| pod["spec"]["nodeName"].as_str()).filter(|node| is_member(node));
        let (Some(new), Some(node)) = (new, node) else {
            self.pods.remove(name);
            return;
        };
        let metadata = &new["metadata"];
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let stays = owners.any(|owner| owner["kind"] == "DaemonSet")
            || !metadata["annotations"]["kubernetes.io/config.mirror"].is_null();
        let bound = self.pods.get(name).map_or_else(Instant::now, |pod| pod.bound);
        let is_ending = !metadata["deletionTimestamp"].is_null();
        self.pods.insert(name.to_owned(), Pod { node: node.to_owned(), leaves: !stays, bound, is_ending });
    }

    /// Checks a request of a manager for a Pod.
    pub(in super::super) fn request(&self, request: &RequestRecord) -> Option<String> {
        let path = request.path.split_once("/pods/")?.1;
        let (name, is_eviction) = match path.split_once('/') {
            Some((name, "eviction")) => (name, true),
            None if request.verb == "delete" => (path, false),
            _ => return None,
        };
        let pod = self.pods.get(name)?;
        let node = self.nodes.get(&pod.node)?;
        if !is_eviction {
            return Some(format!("I40: pod {name} of node {} is deleted, not evicted", pod.node));
        }
        if !pod.leaves {
            return Some(format!("I40: pod {name} is evicted, which is a DaemonSet's or a mirror pod"));
        }
        let is_drained = |member: &Member| member.is_cordoned && member.drain().is_some();
        let may_leave = node.past.seen(self.sight).any(is_drained);
        (!may_leave).then(|| format!("I40: pod {name} is evicted, and node {} is not being drained", pod.node))
    }
}

/// Checks that a manager cordons or uncordons a Node.
fn drained(name: &str, known: &Watched, member: &Member) -> Option<String> {
    let before = known.past.now();
    if !before.is_cordoned && member.is_cordoned && before.drain().is_none() {
        return Some(format!("I40: node {name} is cordoned, and its agent asks for no drain"));
    }
    if !before.is_cordoned || member.is_cordoned {
        return None;
    }
    if !before.asks.starts_with("uncordon-") {
        return Some(format!("I42: node {name} is uncordoned, and its agent does not ask for that"));
    }
    // Before the first drain nothing says who has cordoned it: the agent's request opens it, as with machine-config-operator.
    let is_known = known.is_closed_by_user && !(before.record.is_empty() && before.done.is_empty());
    is_known.then(|| format!("I42: node {name} is uncordoned, and a user has cordoned it"))
}

impl Watched {
    /// Notes who has done what.
    fn note(&mut self, before: &Member, member: &Member, writer: Writer) {
        let is_given = before.desired != member.desired;
        match writer {
            Writer::Manager if is_given => {
                self.by_hand = None;
                self.is_moved |= self.disrupted_since.is_none();
            }
            Writer::User if is_given && !member.desired.is_empty() => self.by_hand = Some(Instant::now()),
            _ => {}
        }
        if member.is_done() || member.has_failed() || !member.has_agent() {
            self.by_hand = None;
        }
        if writer != Writer::User {
            self.is_closed_by_user &= member.is_cordoned;
            return;
        }
        // Of a Node that is cordoned for its drain, and was opened by hand, nobody knows who closes it again. The same without the
        // record of the drain.
        let is_known = before.record == member.record && !member.record.starts_with("cordoned;");
        self.is_closed_by_user = member.is_cordoned && is_known && (self.is_closed_by_user || !before.is_cordoned);
    }
}
