//! Pools that update their Nodes: what goes wrong on the way.

use super::builders::{at, named, of, request, run};
use crate::{
    rollouts::{AgentFault, NodePool, Rollout, RolloutAct},
    run::{Run, Scenario},
    schedule::{Act, RequestResult, Trouble},
    workload::{App, Budget, Ending, Workload},
};

/// When the target changes for the first time.
const FIRST: u64 = 30_000;

fn pool(name: &str, nodes: u32, max_unavailable: Option<&str>) -> NodePool {
    NodePool { name: of(name), nodes, max_unavailable: max_unavailable.map(of) }
}

fn act(millis: u64, act: RolloutAct) -> Trouble {
    at(millis, Act::Rollout(act))
}

/// Pools with these Nodes and three apps, whose first pool gets a new target.
fn rollout(pools: Vec<NodePool>, troubles: Vec<Trouble>) -> Run {
    let app = |pods, budgets: &[Budget]| App { pods, budgets: budgets.to_vec(), ..App::default() };
    let apps = vec![app(3, &[Budget::MaxUnavailable(1)]), app(2, &[])];
    let changed = act(FIRST, RolloutAct::Configure(0, 1));
    Run {
        replicas: 1,
        rollout: Some(Rollout { pools }),
        workload: Some(Workload { apps, daemons: false }),
        ..run([], [vec![changed], troubles].concat())
    }
}

fn workers(troubles: Vec<Trouble>) -> Run {
    rollout(vec![pool("worker", 4, Some("2"))], troubles)
}

fn with_daemons(mut run: Run) -> Run {
    run.workload.iter_mut().for_each(|workload| workload.daemons = true);
    run
}

/// Runs in which the agent of a Node has a fault before the target comes, and for three minutes after it; the target is taken back, and comes again.
fn faulty() -> Vec<Scenario> {
    let faults = [
        ("never begins", AgentFault::NeverStarts),
        ("hangs", AgentFault::Hangs),
        ("cannot apply it", AgentFault::Unreconcilable),
        ("fails before it is cordoned", AgentFault::FailsBeforeDrain),
        ("fails after it was drained", AgentFault::FailsAfterDrain),
        ("never returns", AgentFault::NeverReturns),
        ("returns unchanged", AgentFault::ReturnsUnchanged),
        ("drifts", AgentFault::Drifts),
        ("has two agents", AgentFault::TwoAgents),
        ("is slow", AgentFault::Slow),
    ];
    let with = |(what, fault): (&str, AgentFault)| {
        let fault = act(FIRST - 5_000, RolloutAct::Agent(0, fault, 200));
        let and_back = [act(90_000, RolloutAct::Configure(0, 0)), act(160_000, RolloutAct::Configure(0, 1))];
        named(
            &format!("a node that {what} in a rollout that is taken back and made again"),
            workers([&[fault][..], &and_back].concat()),
        )
    };
    faults.into_iter().map(with).collect()
}

/// The agents take half a minute for each step, so that users are faster.
fn closed_late() -> Run {
    let slow = (0..4).map(|node| act(FIRST - 5_000, RolloutAct::Agent(node, AgentFault::Slow, 400)));
    let closed = (0..4).map(|node| act(FIRST + 12_000, RolloutAct::Cordon(node, 300)));
    workers(slow.chain(closed).collect())
}

/// Pods take twenty seconds to end. Meanwhile the target is what the Nodes run already.
fn taken_back(others: impl IntoIterator<Item = Trouble>) -> Run {
    let turns = (0..4).flat_map(|turn| {
        let begin = 240_000 + turn * 90_000;
        [act(begin, RolloutAct::Configure(0, 2)), act(begin + 9_000 + turn * 2_000, RolloutAct::Configure(0, 1))]
    });
    let mut run = workers(turns.chain(others).collect());
    for app in run.workload.iter_mut().flat_map(|workload| &mut workload.apps) {
        app.ends = Ending::Killed;
    }
    run
}

/// The same act at regular times; with its number.
fn each(from: u64, period: u64, times: u64, change: impl Fn(usize) -> RolloutAct) -> Vec<Trouble> {
    (0..times).map(|turn| act(from + turn * period, change(usize::try_from(turn).unwrap_or(0)))).collect()
}

fn content(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

pub(super) fn rollouts() -> Vec<Scenario> {
    [faulty(), targets(), users(), managers()].concat()
}

/// Targets, budgets and nodes that change on the way.
fn targets() -> Vec<Scenario> {
    vec![
        named("a rollout", with_daemons(workers(vec![]))),
        named("a rollout of the control plane", rollout(vec![pool("master", 3, Some("3"))], vec![])),
        named(
            "rollouts of two pools at once, one of which has what the other has",
            rollout(
                vec![pool("worker", 4, None), pool("infra", 6, Some("50%"))],
                vec![act(FIRST + 9_000, RolloutAct::Configure(1, 2))],
            ),
        ),
        named(
            "a target that changes with each step of a rollout",
            workers(each(FIRST + 7_000, 11_000, 20, |turn| RolloutAct::Configure(0, content(turn % 3)))),
        ),
        named(
            "a rollout that is paused again and again",
            workers(each(FIRST + 3_000, 9_000, 21, |turn| RolloutAct::Pause(0, turn % 2 == 0 && turn < 20))),
        ),
        named(
            "a rollout whose budget goes up and down",
            workers(each(FIRST + 3_000, 8_000, 20, |turn| {
                RolloutAct::MaxUnavailable(0, of(["1", "4", "20%", "3"][turn % 4]))
            })),
        ),
        named(
            "a rollout while nodes fail one after the other",
            workers(each(FIRST + 1_000, 13_000, 20, |turn| RolloutAct::NotReady(turn, 25))),
        ),
        named("targets that are taken back while nodes are drained for them", taken_back([])),
        // What the agents do then is to ask for an uncordon, as they did after the rollout before.
        named(
            "targets that are taken back while nodes are drained for them, and agents that start again",
            taken_back((0..4).map(|node| act(235_000, RolloutAct::Agent(node, AgentFault::Restarts, 400)))),
        ),
    ]
}

/// What users and accidents do to nodes and claims.
fn users() -> Vec<Scenario> {
    vec![
        named(
            "a rollout while users cordon and uncordon nodes",
            workers(
                [
                    each(FIRST - 1_000, 9_500, 16, |turn| RolloutAct::Cordon(turn, 40)),
                    each(FIRST + 2_000, 7_000, 16, |turn| RolloutAct::Uncordon(turn + 2)),
                ]
                .concat(),
            ),
        ),
        named("nodes that users cordon after they were given their target", closed_late()),
        named(
            "a rollout while users choose the configuration of nodes",
            workers(each(FIRST + 1_000, 8_000, 16, |turn| RolloutAct::Desire(turn, turn / 2))),
        ),
        named(
            "nodes of a paused pool that a user updates by hand",
            workers(
                [
                    vec![act(FIRST - 1_000, RolloutAct::Pause(0, true)), act(300_000, RolloutAct::Pause(0, false))],
                    each(FIRST + 20_000, 40_000, 3, |turn| RolloutAct::Desire(turn, 1)),
                ]
                .concat(),
            ),
        ),
        named(
            "a rollout whose nodes are deleted midway, and come back",
            workers(each(FIRST + 9_000, 12_000, 12, |turn| RolloutAct::Lose(turn, 10))),
        ),
        named(
            "a rollout whose nodes lose their annotations",
            workers(each(FIRST + 9_000, 10_000, 12, RolloutAct::Wipe)),
        ),
        named(
            "a rollout whose claims somebody removes",
            workers(each(FIRST + 9_000, 10_000, 12, |_| RolloutAct::WipeClaims(0))),
        ),
        named(
            "a rollout whose claims somebody puts back",
            workers(each(FIRST + 9_000, 25_000, 8, |_| RolloutAct::StaleClaims(0, 20))),
        ),
        named(
            "a rollout among nodes that move to another pool and back",
            rollout(
                vec![pool("worker", 4, Some("2")), pool("infra", 4, Some("2"))],
                each(FIRST + 6_000, 9_000, 16, |turn| RolloutAct::Move(turn, turn / 4)),
            ),
        ),
    ]
}

/// What goes wrong with managers and their API server.
fn managers() -> Vec<Scenario> {
    let killed = |plural: &str, numbers: std::ops::Range<u64>| -> Vec<Trouble> {
        numbers.map(|number| request("patch", plural, number, RequestResult::CrashAfter)).collect()
    };
    let blind = (0..6).map(|turn| at(FIRST - 2_000 + turn * 50_000, Act::HoldWatches(of("nodes"), 30))).collect();
    vec![
        named("a rollout whose manager dies after each write of a node", workers(killed("nodes", 0..16))),
        named("a rollout whose manager dies after each write of a pool", workers(killed("machineconfigpools", 2..20))),
        named(
            "a rollout with two managers of which one sees nodes late",
            workers(super::builders::late_rival("nodes", 8_000, 12)),
        ),
        named(
            "a rollout with two managers of which one sees pools late",
            workers(super::builders::late_rival("machineconfigpools", 8_000, 12)),
        ),
        named(
            "a rollout with two managers while the target changes",
            workers(
                [
                    super::builders::late_rival("nodes", 3_000, 20),
                    each(FIRST + 7_000, 11_000, 12, |turn| RolloutAct::Configure(0, content(turn % 2))),
                ]
                .concat(),
            ),
        ),
        named(
            "a rollout with targets that are given late, while the target changes",
            workers(
                [
                    (0..12).map(|turn| request("patch", "nodes", turn * 2, RequestResult::CommitLate(18))).collect(),
                    each(FIRST + 7_000, 11_000, 8, |turn| RolloutAct::Configure(0, content(turn % 2))),
                ]
                .concat(),
            ),
        ),
        named(
            "a rollout with a target cluster that is away",
            workers(vec![at(FIRST + 12_000, Act::TargetDown(60)), at(FIRST + 100_000, Act::TargetDown(30))]),
        ),
        named("a rollout whose manager hears late of nodes", workers(blind)),
    ]
}
