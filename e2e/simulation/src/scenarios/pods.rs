//! Nodes with pods, disruption budgets and volumes.

use super::builders::{at, delete, named, of, request, roll, run};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, RequestResult, Trouble},
    workload::{App, Budget, Ending, Storage, Volume, Workload},
};

/// All machines run, with their pods. Drains begin then.
const UP: u64 = 30_000;
const ONE: Budget = Budget::MaxUnavailable(1);

fn app(pods: u32, budgets: impl Into<Vec<Budget>>) -> App {
    App { pods, budgets: budgets.into(), ..App::default() }
}

fn store(pods: u32, detaches: Option<u32>) -> App {
    App { volume: Some(Volume { storage: Storage::Provider, detaches }), ..app(pods, [ONE]) }
}

fn workload(apps: impl Into<Vec<App>>) -> Workload {
    Workload { apps: apps.into(), daemons: true }
}

/// Two machines with pods, and one of them is deleted.
fn drain(apps: impl Into<Vec<App>>, troubles: Vec<Trouble>) -> Run {
    let troubles = [vec![at(UP, delete(0))], troubles].concat();
    Run { replicas: 2, workload: Some(workload(apps)), ..run([], troubles) }
}

/// The drain of ten pods with two disruption budgets and three volumes: all are on one Node, and move to the next one. It begins
/// when all of them have run for a while.
pub fn ten_pods() -> Run {
    let apps = [app(5, [ONE]), store(3, Some(2)), app(2, [])];
    Run { replicas: 1, workload: Some(workload(apps)), ..run([], vec![at(10_000, roll("large"))]) }
}

pub(super) fn pods() -> Vec<Scenario> {
    [budgets(), volumes(), target(), forced()].concat()
}

fn budgets() -> Vec<Scenario> {
    let never = || app(3, [Budget::MaxUnavailable(0)]);
    let twice = app(2, [ONE, Budget::MinAvailable(1)]);
    vec![
        named("ten pods with two budgets and three volumes move", ten_pods()),
        named("a budget that never allows a disruption, and a pod with two budgets", drain([never(), twice], vec![])),
        named(
            "budgets whose status is old while pods are evicted, and while a VM dies",
            Run {
                heartbeats: true,
                ..drain(
                    [app(6, [ONE]), app(4, [Budget::MinAvailable(2)])],
                    vec![at(UP - 1_000, Act::StaleBudgets(90)), at(UP + 10_000, Act::KillVm(1))],
                )
            },
        ),
        named(
            "budgets that a user changes, and whose status is older",
            drain([app(6, [ONE])], vec![at(UP - 1_000, Act::EditBudgets(60))]),
        ),
        named(
            "pods that are killed at the end of their grace, and pods that never end",
            drain([App { ends: Ending::Killed, ..app(4, [ONE]) }, App { ends: Ending::Never, ..app(2, []) }], vec![]),
        ),
        named(
            "several nodes with pods of the same budget are drained at once",
            Run {
                replicas: 4,
                ..drain([app(8, [Budget::MaxUnavailable(2)])], vec![at(UP, delete(1)), at(UP, delete(2))])
            },
        ),
    ]
}

fn volumes() -> Vec<Scenario> {
    let other = |storage| App { volume: Some(Volume { storage, detaches: Some(30) }), ..app(2, []) };
    let free = |pods, detaches| App { budgets: vec![], ..store(pods, detaches) };
    vec![
        named("volumes that are detached slowly", drain([free(3, Some(80))], vec![])),
        named("volumes that are never detached", drain([free(6, None)], vec![])),
        named(
            "volumes of other providers and of the network",
            drain([other(Storage::Other), other(Storage::Network), free(2, Some(5))], vec![]),
        ),
        named(
            "caches of pods and volumes that are late, silent and cut",
            drain(
                [free(4, Some(3)), app(4, [ONE])],
                vec![
                    at(UP - 100, Act::LateWatches(of("pods"), 8_000)),
                    at(UP - 100, Act::LateWatches(of("poddisruptionbudgets"), 5_000)),
                    at(UP + 2_000, Act::HoldWatches(of("volumeattachments"), 30)),
                    at(UP + 50_000, Act::CutWatches(of("pods"))),
                    at(UP + 60_000, Act::HoldWatches(of("persistentvolumeclaims"), 30)),
                ],
            ),
        ),
        named(
            "a manager that starts while the volumes of a node are being detached",
            drain([free(4, Some(20))], vec![at(UP + 12_000, Act::Crash), at(UP + 60_000, Act::Crash)]),
        ),
    ]
}

fn target() -> Vec<Scenario> {
    let apps = || [app(4, [ONE]), store(2, Some(5))];
    let never = || [app(4, [Budget::MaxUnavailable(0)]), store(2, Some(5))];
    vec![
        named(
            "the API server of the target cluster is away from the beginning of a drain until after its timeout",
            drain(apps(), vec![at(UP + 1_000, Act::TargetDown(900))]),
        ),
        named(
            "the API server of the target cluster goes away just before a drain is overdue",
            drain(never(), vec![at(UP + 295_000, Act::TargetDown(900))]),
        ),
        named(
            "the API server of the target cluster goes away while the cordon of a node is unanswered",
            drain(
                never(),
                // Each Node is labelled once before.
                vec![request("patch", "nodes", 2, RequestResult::HangAfter), at(UP + 1_000, Act::TargetDown(900))],
            ),
        ),
        named("a policy denies all removals of pods", drain(never(), vec![at(UP, Act::RefusePods(403, 900))])),
        named("all evictions fail", drain(apps(), vec![at(UP, Act::RefusePods(500, 900))])),
        named("too many requests, for a while", drain(apps(), vec![at(UP, Act::RefusePods(429, 100))])),
    ]
}

fn forced() -> Vec<Scenario> {
    let never = || [app(4, [Budget::MaxUnavailable(0)]), App { ends: Ending::Never, ..app(2, []) }];
    let force = |machine| Act::from(Edit::ForceDeleteMachine(machine));
    vec![
        named("a machine that is drained is then deleted by force", drain(never(), vec![at(UP + 30_000, force(0))])),
        named(
            "a machine is deleted by force while the API server of the target cluster is away",
            drain(never(), vec![at(UP + 20_000, Act::TargetDown(600)), at(UP + 30_000, force(0))]),
        ),
        named(
            "a node with pods and volumes whose VM dies",
            Run { heartbeats: true, ..drain([store(4, Some(5)), app(2, [ONE])], vec![at(UP + 1_000, Act::KillVm(0))]) },
        ),
    ]
}
