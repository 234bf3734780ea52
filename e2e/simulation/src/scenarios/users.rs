//! Users' changes, and machines that lose their owners.

use nodewright_e2e_cloud::{Code, Effect, FaultOperation};

use super::builders::{at, cloud, delete, lasting, named, of, one, request, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, RequestResult, UserError},
};

pub(super) fn users() -> Vec<Scenario> {
    vec![
        named(
            "a user who changes his mind",
            run([scale(1)], vec![at(6_000, scale(5)), at(6_050, scale(3)), at(6_100, roll("large"))]),
        ),
        named(
            "somebody who writes into everything",
            run(
                [scale(5), Edit::DeletePool.into()],
                vec![at(100, Act::Disturb(80)), at(5_000, Act::DropManagedFields), at(9_000, Act::Disturb(80))],
            ),
        ),
        named(
            "somebody who takes machines and sets from their owners, in a rollout",
            run(
                [roll("large")],
                vec![at(100, Act::TakeOwners(50)), at(19_000, roll("small")), at(19_500, Act::TakeOwners(100))],
            ),
        ),
        // So many without an owner are an overshoot: the set is frozen for a moment.
        named(
            "somebody who takes machines and sets from their owners, while the deployment is scaled to zero",
            run([], vec![at(20_000, Act::TakeOwners(100)), at(20_000, scale(0))]),
        ),
        named(
            "a machine that is removed by force while its VM is being made, and made again",
            Run {
                phases: vec![scale(0)],
                ..one(vec![
                    at(0, cloud(FaultOperation::Create, Effect::ApplyLate { seconds: 5.0, code: Code::Unknown })),
                    at(300, Edit::RecreateMachine(0).into()),
                ])
            },
        ),
        named(
            "a machine that is removed by force while it goes, and made again",
            one(vec![
                at(20_000, delete(0)),
                request("patch", "nodes", 1, RequestResult::ArriveLate(3)),
                // The machine that leaves: its successor comes first by name.
                at(21_000, Edit::RecreateMachine(1).into()),
            ]),
        ),
        named(
            "a machine that is deleted by a manager that hears late of its node",
            one(vec![at(200, Act::LateWatches(of("nodes"), 20_000)), at(18_300, delete(0))]),
        ),
    ]
}

/// Objects whose fields point at objects of others.
pub(super) fn tampered() -> Vec<Scenario> {
    let err = |user_error| at(25_000, Act::Err(user_error, 60));
    let copied = |labelled| vec![err(UserError::Copy { machine: 1, labelled }), at(35_000, delete(1))];
    vec![
        named("a copy of a machine that is deleted", run([], copied(false))),
        named("a copy of a machine that is deleted, with its labels", run([], copied(true))),
        named(
            "a machine that runs, by its status, on the VM of another cluster",
            run([], vec![err(UserError::RunningClaim)]),
        ),
        named(
            "a Node that says that its machine has put there what others have",
            run([], vec![err(UserError::ForgeRecord(1)), at(40_000, Edit::Relabel(of("second")).into())]),
        ),
        named("labels of Nodes that change", run([Edit::Relabel(of("second")).into()], vec![at(26_000, Act::Crash)])),
    ]
}

/// Machines that outlive their owner.
pub(super) fn orphans() -> Vec<Scenario> {
    vec![
        named(
            "machines that outlive their deployment",
            run([Act::OrphanMachines, scale(1), Act::OrphanMachines], vec![]),
        ),
        named(
            "machines that change their set while they wait for their VMs",
            run(
                [],
                vec![
                    at(0, lasting(FaultOperation::List, Effect::Latency { seconds: 6.0 })),
                    at(500, Act::LateWatches(of("machines"), 4_000)),
                    at(500, Act::LateWatches(of("machinesets"), 4_000)),
                    at(1_000, Act::OrphanMachines),
                ],
            ),
        ),
        named(
            "a deployment that hears late that it goes, when its set is left behind",
            run([Act::OrphanMachines, scale(5)], vec![at(0, Act::LateWatches(of("machinedeployments"), 500))]),
        ),
        named(
            "a rollout whose objects are restored while a machine of the former template has yet to go",
            run(
                [],
                vec![
                    at(19_000, roll("large")),
                    // The old set has its new size by then: more machines are left for it to adopt than it wants.
                    request("delete", "machines", 0, RequestResult::Hang),
                    at(45_000, Act::Restore),
                ],
            ),
        ),
        named("machines that outlive their deployment while the API server does not answer each request", {
            let refuses = at(20_000, Act::ApiRefuses { code: 503, percent: 40, seconds: 40 });
            Run { replicas: 5, elects: false, ..run([], vec![refuses, at(20_000, Act::OrphanMachines)]) }
        }),
        named(
            "a set that hears late that it goes, and leaves its machines behind",
            run([Act::OrphanMachines], vec![at(0, Act::LateWatches(of("machinesets"), 300))]),
        ),
        named(
            "machines that outlive their deployment and its set, while caches are late",
            run(
                [Act::OrphanMachines, Act::OrphanMachines],
                vec![at(0, Act::LateWatches(of("machinesets"), 300)), at(4_000, Act::LateWatches(of("machines"), 700))],
            ),
        ),
    ]
}
