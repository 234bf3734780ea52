//! What would become of a pool, without a change of it: its target, and the [rounds](super::rounds) in which its Nodes move.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use nodewright_api::{
    machine_config::{CURRENT_CONFIG, ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool},
    stored::Claim,
};
use nodewright_render::RenderedSpec;
use nodewright_runtime::{
    cache::{Lookup, Stores},
    clip::clip_to,
    effect::Outcomes,
    object::name,
};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use super::{
    PoolSettings,
    call::{Render, render},
    decision::{Decision, decide},
    etcd::Etcd,
    memory::Context,
    rendering::{Rendering, Scope},
    rollout,
    rounds::{Move, rounds, zone},
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    disruption::{
        counts,
        node_state::{
            LONGEST_REASON, current, has_agent, is_behind, is_degraded, is_leaving, is_ready, is_updated, reason,
        },
    },
    indexes::{NODES_BY_CURRENT_CONFIG, NODES_BY_DESIRED_CONFIG, NODES_BY_ROLES},
    machine_config::{CachedConfig, target_ref},
    node::Node,
    pools::{Membership, selects},
    stores::fill,
};

/// The objects of a cluster.
#[derive(Debug, Default)]
pub struct Objects {
    /// All MachineConfigPools: which one a Node is in depends on all of them.
    pub pools: Vec<MachineConfigPool>,
    /// All MachineConfigs, the rendered ones too.
    pub machine_configs: Vec<MachineConfig>,
    /// All ControllerConfigs.
    pub controller_configs: Vec<ControllerConfig>,
    /// All KubeletConfigs.
    pub kubelet_configs: Vec<KubeletConfig>,
    /// All Nodes.
    pub nodes: Vec<Node>,
}

/// What Nodes move to.
#[derive(Debug, Serialize)]
pub struct Target {
    /// The name of a rendered MachineConfig.
    pub name: String,
    /// What it is, if that can be read.
    #[serde(skip)]
    pub spec: Option<RenderedSpec>,
    /// Whether the MachineConfig of that name exists.
    pub exists: bool,
    /// Why it is not what the pool selects, or no Node is given it.
    pub held: Option<String>,
}

/// What would become of a pool.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// What its Nodes move to.
    pub target: Target,
    /// How many Nodes may be unavailable at once.
    pub max_unavailable: usize,
    /// How many Nodes the pool has.
    pub nodes: usize,
    /// How many of them run the target.
    pub updated: usize,
    /// How many of them are unavailable or claimed now.
    #[serde(rename = "unavailable")]
    pub disrupted: usize,
    /// The Nodes that move in each round.
    pub rounds: Vec<Vec<Move>>,
    /// By name, the Nodes that do not move although they do not run the target, or that are unavailable.
    #[serde(rename = "staying")]
    pub stays: Vec<Stay>,
}

/// A Node that does not move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stay {
    /// The name of the Node.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// The MachineConfig that it runs, if it reports one.
    pub from: Option<String>,
    /// Why, in a word: a constant for programs.
    pub reason: &'static str,
    /// Why, for people: it follows the name.
    pub message: String,
    /// Whether it takes a part of the budget.
    #[serde(rename = "unavailable")]
    pub is_unavailable: bool,
}

/// What would become of a pool. The error is a sentence for users about a pool without a target.
pub fn preview(objects: &Objects, pool: &str, settings: &PoolSettings, now: Timestamp) -> Result<Preview, String> {
    let stores = stores(objects);
    let missing = || format!("MachineConfigPool {pool}: not found");
    let mut snapshot = Snapshot::take(&stores, &target_ref(pool), settings).ok_or_else(missing)?;
    // It is taken for granted that etcd can lose a member whenever a Node of the control plane is next.
    snapshot.etcd = Etcd::Room;
    let whole = objects.machine_configs.iter().filter(|config| config.is_rendered());
    snapshot.whole = whole.map(|config| (name(config).to_owned(), Lookup::Found(Arc::new(config.clone())))).collect();
    if let Some(target) = &snapshot.target_name {
        let whole = objects.machine_configs.iter().find(|config| name(*config) == target);
        let found = whole.map_or(Lookup::Missing, |whole| Lookup::Found(Arc::new(whole.clone())));
        snapshot.whole.insert(target.clone(), found);
    }
    let outcomes = rendered(&snapshot, now);
    let context = Context::new(now, &outcomes);
    let scope = Scope::of(&context, &snapshot);
    let decision = decide(&context, &scope);
    let (wanted, held) = match &decision {
        Decision::Hold(_, text) | Decision::Wait(text) => (None, Some(format!("{}: {text}", snapshot.consequence()))),
        Decision::Keep(wanted) => {
            (Some(*wanted), snapshot.unusable_target().map(|text| format!("no node is moved: {text}")))
        }
        decision => (decision.wanted(), None),
    };
    let known = snapshot.target_name.as_deref().filter(|_| snapshot.has_target());
    let why = || format!("MachineConfigPool {pool}: {}", held.as_deref().unwrap_or("it is not rendered"));
    let target = wanted.or(known).ok_or_else(why)?.to_owned();
    let spec = match &scope.rendering {
        Rendering::Done(done, _)
            if let Ok(done) = done.as_ref()
                && done.name == target =>
        {
            Some(done.rendered.spec.clone())
        }
        _ => snapshot.whole(Some(&target)).found().and_then(|config| RenderedSpec::read(&config.spec).ok()),
    };
    let exists = snapshot.by_name(&target).is_some();
    Ok(rolled(objects, &snapshot, Target { name: target, spec, exists, held }, now))
}

/// The stores as the manager's caches would fill them.
fn stores(objects: &Objects) -> Stores {
    let stores = Stores::default();
    fill(&stores, TARGET, objects.pools.iter().cloned());
    fill(&stores, TARGET, objects.machine_configs.iter().cloned().map(CachedConfig::from));
    fill(&stores, TARGET, objects.controller_configs.iter().cloned());
    fill(&stores, TARGET, objects.kubelet_configs.iter().cloned());
    let nodes = fill(&stores, TARGET, objects.nodes.iter().cloned());
    for index in [NODES_BY_CURRENT_CONFIG, NODES_BY_DESIRED_CONFIG, NODES_BY_ROLES] {
        nodes.add_index(index);
    }
    stores
}

/// The renderings that the controller would have made.
fn rendered(snapshot: &Snapshot, now: Timestamp) -> Outcomes<Render> {
    let mut outcomes = Outcomes::default();
    // Once for the digest, and once more if that is not the target's.
    for _ in 0..2 {
        let scope = Scope::of(&Context::new(now, &outcomes), snapshot);
        let Rendering::Pending(Some(call), _) = scope.rendering else { break };
        outcomes.begin(&call, now);
        outcomes.finish(&call, now, render(&call, &Counter::default()));
    }
    outcomes
}

/// What would become of the Nodes.
fn rolled(objects: &Objects, snapshot: &Snapshot, to: Target, now: Timestamp) -> Preview {
    let target = to.name.as_str();
    let scope = rollout::Scope::of(snapshot, target, now);
    let claims = scope.claims;
    let rounds = rounds(&scope);
    let moved: BTreeSet<_> = rounds.iter().flatten().map(|it| it.node.as_str()).collect();
    let mut stays: Vec<_> = excluded(objects, &snapshot.pool);
    for node in scope.nodes.iter().copied().filter(|node| !moved.contains(name(*node))) {
        let is_claimed = claims.0.get(name(node)).map(Claim::is_of_machine);
        let is_unavailable = is_claimed.is_some() || counts(node, target);
        if is_unavailable || !is_updated(node, target) {
            let (reason, message) = why(node, target, is_claimed == Some(true));
            stays.push(Stay { is_unavailable, ..stay(node, reason, message) });
        }
    }
    stays.sort_by(|a, b| a.node.cmp(&b.node));
    let (max_unavailable, nodes, disrupted) = (scope.budget, scope.nodes.len(), scope.disrupted(claims));
    let updated = scope.nodes.iter().filter(|node| is_updated(node, target)).count();
    Preview { target: to, max_unavailable, nodes, updated, disrupted, rounds, stays }
}

/// The Nodes that a pool selects, and that no pool has.
fn excluded(objects: &Objects, pool: &MachineConfigPool) -> Vec<Stay> {
    let pools: Vec<_> = objects.pools.iter().cloned().map(Arc::new).collect();
    let selected = objects.nodes.iter().filter(|node| selects(pool, node.metadata.labels.as_ref()));
    let excluded = selected.filter_map(|node| match Membership::among(&pools, node) {
        Membership::Of(_) => None,
        Membership::None => Some(stay(node, "Windows", "runs Windows, which takes no configuration".to_owned())),
        Membership::Ambiguous(names) => {
            let text = format!("is in no pool, as several select it: {}", names.join(", "));
            Some(stay(node, "SeveralPools", text))
        }
    });
    excluded.collect()
}

fn stay(node: &Node, reason: &'static str, message: String) -> Stay {
    let from = current(node).map(str::to_owned);
    Stay { node: name(node).to_owned(), zone: zone(node), from, reason, message, is_unavailable: false }
}

/// Why a Node does not move.
fn why(node: &Node, target: &str, is_of_machine: bool) -> (&'static str, String) {
    let (reason, text) = match node {
        _ if is_leaving(node) => ("Leaving", "is about to go, or its machine is"),
        _ if is_of_machine => ("InPlaceUpdate", "is being updated in place"),
        _ if !has_agent(node) => {
            return ("NoAgent", format!("has no agent: the annotation {CURRENT_CONFIG} is not set"));
        }
        _ if is_degraded(node) && !is_behind(node, target) => {
            let said = clip_to(LONGEST_REASON, reason(node).to_owned());
            return ("Failed", format!("has failed: {said}"));
        }
        _ if node.is_cordoned() => ("Cordoned", "is cordoned"),
        _ if !is_ready(node) => ("NotReady", "is not ready"),
        _ if is_behind(node, target) => ("Waiting", "waits, as no more nodes may be unavailable"),
        _ => ("Updating", "is being updated"),
    };
    (reason, text.to_owned())
}
