//! Makes runs from seeds in which pools update their Nodes.

use fastrand::Rng;

use super::{AgentFault, NodePool, Rollout, RolloutAct};
use crate::{
    names::POOL_WATCHED,
    run::Run,
    schedule::{Act, Schedule, Trouble},
    workload::{App, Budget, Ending, Storage, Volume, Workload},
};

/// The latest time of an act, in milliseconds.
const LATEST: u64 = 600_000;
/// How many contents a MachineConfig may have: few, so that some come back.
const CONTENTS: u32 = 3;
const FAULTS: [AgentFault; 11] = [
    AgentFault::NeverStarts,
    AgentFault::Hangs,
    AgentFault::Unreconcilable,
    AgentFault::FailsBeforeDrain,
    AgentFault::FailsAfterDrain,
    AgentFault::NeverReturns,
    AgentFault::ReturnsUnchanged,
    AgentFault::Drifts,
    AgentFault::TwoAgents,
    AgentFault::Slow,
    AgentFault::Restarts,
];

/// The same run, with pools. `trouble` makes the faults of managers and of the servers that they talk to.
pub(in super::super) fn with_rollout(chance: &mut Rng, run: &Run, trouble: impl Fn(&mut Rng, u64) -> Trouble) -> Run {
    let pools = pools(chance);
    let nodes: u32 = pools.iter().map(|pool| pool.nodes).sum();
    let mut troubles = acts(chance, pools.len());
    // Each Node takes five writes, and there are two or three targets.
    let steps = u64::from(nodes) * 12 + 60;
    troubles.extend((0..chance.usize(0..=5)).map(|_| match chance.u8(0..4) {
        0 => pool_watches(chance),
        _ => trouble(chance, steps),
    }));
    let apps = (0..chance.usize(0..=3)).map(|_| app(chance)).collect::<Vec<_>>();
    let workload = (!apps.is_empty()).then(|| Workload { apps, daemons: chance.bool() });
    let (rollout, schedule) = (Some(Rollout { pools }), Schedule(troubles));
    // The Nodes of pools have no heartbeats, so nobody may wait for them.
    Run { rollout, workload, heartbeats: false, replicas: 1, phases: vec![], schedule, ..run.clone() }
}

fn pools(chance: &mut Rng) -> Vec<NodePool> {
    let names: &[&str] = match chance.u8(0..8) {
        0 => &["master"],
        1 => &["master", "worker"],
        2..=4 => &["worker", "infra"],
        _ => &["worker"],
    };
    names.iter().map(|name| pool(chance, name)).collect()
}

fn pool(chance: &mut Rng, name: &str) -> NodePool {
    let nodes = if chance.u8(0..4) == 0 { chance.u32(8..=12) } else { chance.u32(3..=6) };
    let max_unavailable = chance.bool().then(|| budget(chance));
    NodePool { name: name.to_owned(), nodes, max_unavailable }
}

fn budget(chance: &mut Rng) -> String {
    ["0", "1", "2", "3", "5", "20%", "35%", "50%"][chance.usize(0..8)].to_owned()
}

/// What users do and what goes wrong. The first change of the target always comes.
fn acts(chance: &mut Rng, pools: usize) -> Vec<Trouble> {
    let first = chance.u64(15_000..60_000);
    let mut troubles = vec![at(first, RolloutAct::Configure(chance.usize(0..pools), chance.u32(1..CONTENTS)))];
    for _ in 0..chance.usize(3..=16) {
        let latest = [20_000, 150_000, LATEST][chance.usize(0..3)];
        let millis = first + chance.u64(0..latest);
        let act = act(chance, pools);
        if let RolloutAct::Pause(pool, true) = act
            && chance.u8(0..8) > 0
        {
            troubles.push(at(millis + chance.u64(5_000..200_000), RolloutAct::Pause(pool, false)));
        }
        troubles.push(at(millis, act));
    }
    troubles
}

fn at(millis: u64, act: RolloutAct) -> Trouble {
    Trouble::At { millis, act: Act::Rollout(act) }
}

fn act(chance: &mut Rng, pools: usize) -> RolloutAct {
    let (pool, node) = (chance.usize(0..pools), chance.usize(0..30));
    let seconds = |chance: &mut Rng| {
        let longest = [30, 120, 400][chance.usize(0..3)];
        chance.u32(5..=longest)
    };
    match chance.u8(0..24) {
        0..=4 => RolloutAct::Configure(pool, chance.u32(0..CONTENTS)),
        5 => RolloutAct::Pause(pool, true),
        6 | 7 => RolloutAct::MaxUnavailable(pool, budget(chance)),
        8..=12 => RolloutAct::Agent(node, FAULTS[chance.usize(0..FAULTS.len())], seconds(chance)),
        13 | 14 => RolloutAct::NotReady(node, seconds(chance)),
        15 | 16 => RolloutAct::Cordon(node, seconds(chance)),
        17 => RolloutAct::Uncordon(node),
        18 => RolloutAct::Desire(node, chance.usize(0..3)),
        19 => RolloutAct::Wipe(node),
        20 => RolloutAct::Lose(node, seconds(chance)),
        21 => RolloutAct::WipeClaims(pool),
        22 => RolloutAct::StaleClaims(pool, seconds(chance)),
        _ => RolloutAct::Move(node, chance.usize(0..pools)),
    }
}

/// A fault of the watches of pools and their configuration.
fn pool_watches(chance: &mut Rng) -> Trouble {
    let kind = POOL_WATCHED[chance.usize(0..POOL_WATCHED.len())].to_owned();
    let act = match chance.u8(0..3) {
        0 => Act::HoldWatches(kind, chance.u32(1..=200)),
        1 => Act::CutWatches(kind),
        _ => Act::LateWatches(kind, chance.u32(10..=30_000)),
    };
    Trouble::At { millis: chance.u64(0..LATEST / 2), act }
}

/// Pods that leave in the end: an app whose budget allows nothing, or whose volume is never detached, would stop each drain.
fn app(chance: &mut Rng) -> App {
    let pods = chance.u32(1..=5);
    let storage = [Storage::Provider, Storage::Other, Storage::Network][chance.usize(0..3)];
    let volume = (chance.u8(0..4) == 0).then_some(Volume { storage, detaches: Some([1, 5][chance.usize(0..2)]) });
    let budgets = if chance.bool() { vec![Budget::MaxUnavailable(chance.u32(1..=2))] } else { vec![] };
    App { pods, volume, budgets, ends: [Ending::Soon, Ending::Killed][chance.usize(0..2)] }
}
