//! Runs that somebody has thought of: what has cost machines elsewhere, and what chance would take long to find.
//!
//! Those that need no hand in the API server are played on a real control plane as well, by the end-to-end tests.

use super::{
    campaign::up_roll_down,
    run::Run,
    schedule::{Act, Edit, Fate, Mistake, Schedule, Trouble},
};
use nodewright_e2e_cloud::{Code, Effect, FaultMatch, FaultOperation, FaultOrder};

/// A run that has a name.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens.
    pub name: String,
    /// The run.
    pub run: Run,
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    [
        clouds(),
        late_vms(),
        caches(),
        managers(),
        rivals(),
        servers(),
        requests(),
        users(),
        orphans(),
        claims(),
        tampered(),
    ]
    .concat()
}

fn clouds() -> Vec<Scenario> {
    vec![
        named(
            "a clock that is set ahead while the cloud does not show a VM that it has made, and is to remove",
            one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                at(350, Act::JumpClock(60)),
                at(400, delete(0)),
            ]),
        ),
        named(
            "a clock that is set ahead when machines run whose VMs the cloud does not show yet, and that are to go",
            one(vec![
                at(19_900, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                at(20_000, scale(3)),
                at(23_300, Act::JumpClock(60)),
                at(23_350, scale(0)),
            ]),
        ),
        named(
            "answers of the cloud that are lost",
            run([], vec![at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true }))]),
        ),
        named(
            "a VM that its cloud does not list at once, and a manager that is killed meanwhile",
            run(
                [],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                    at(400, Act::Crash),
                    at(2_900, Act::Crash),
                ],
            ),
        ),
        named(
            "a VM whose making was never answered, and lists that fail for a minute while its machine goes",
            one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true })),
                at(300, lasting(FaultOperation::List, fails())),
                at(500, delete(0)),
            ]),
        ),
        named(
            "calls that never end, and answers that nobody understands",
            run(
                [scale(5)],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Hang { applied: true })),
                    at(1, cloud(FaultOperation::List, Effect::Garbage)),
                ],
            ),
        ),
    ]
}

/// A machine is deleted while its VM is on its way, and more happens.
fn late_vms() -> Vec<Scenario> {
    let late = |deleted, more: Vec<Trouble>| {
        let made = cloud(FaultOperation::Create, late_by(20.0));
        one([vec![at(0, made), at(deleted, delete(0))], more].concat())
    };
    vec![
        named("a VM that appears after its machine was deleted", late(1_500, vec![])),
        named(
            "a clock that is set ahead while a VM is on its way to a machine that was deleted",
            late(1_500, vec![at(2_000, Act::JumpClock(536))]),
        ),
        named(
            "a manager with a slow clock takes over a machine that goes, whose VM is on its way",
            late(900, vec![at(500, Act::JumpClock(-45)), at(1_000, Act::Crash)]),
        ),
        named(
            "a manager that sleeps while a VM is on its way to a machine that was deleted",
            late(1_500, vec![at(2_000, Act::Sleep(20))]),
        ),
        named(
            "a VM that appears after its machine was deleted, and whose making had waited long for its turn",
            Run {
                calls_at_once: Some(1),
                ..run(
                    [],
                    vec![
                        // Two take the one place for 15 s each; the third waits for it. Each fault counts them all.
                        at(0, struck(FaultOperation::Create, 2, Effect::Hang { applied: false })),
                        at(1, struck(FaultOperation::Create, 3, late_by(18.0))),
                        at(31_000, scale(0)),
                    ],
                )
            },
        ),
        named(
            "a VM that appears between two attempts to delete it, when its node has joined",
            late(
                1_500,
                vec![
                    // It begins before the provider fails, and says that there is no VM.
                    at(1_400, lasting(FaultOperation::List, Effect::Latency { seconds: 3.0 })),
                    at(3_000, lasting(FaultOperation::List, fails())),
                    // Nobody looks at the VM while it goes.
                    at(60_000, lasting(FaultOperation::Delete, Effect::AnswerLate { seconds: 8.0 })),
                ],
            ),
        ),
    ]
}

fn caches() -> Vec<Scenario> {
    vec![
        named(
            "a set that grows while its cache is old",
            run([], vec![at(0, Act::LateWatches(of("machines"), 8_000)), at(3_000, scale(6))]),
        ),
        named(
            "many machines at once, and a cache of them that lags by half a minute",
            run([scale(20), scale(3)], vec![at(3_000, Act::LateWatches(of("machines"), 30_000))]),
        ),
        named(
            "lost answers while caches stand still",
            run(
                [scale(5)],
                (8..24)
                    .map(|step| Trouble::Step { step, fate: Fate::RefuseAfter(504) })
                    .chain([at(100, Act::HoldWatches(of("machines"), 40))])
                    .collect(),
            ),
        ),
        named(
            "watches that break three times, and have to list again each time",
            run([scale(6), scale(0)], (0..3).flat_map(|turn| forgotten(200 + turn * 2_000)).collect()),
        ),
        named(
            "watches that are silent for ten minutes",
            run(
                [scale(6), roll("large")],
                vec![
                    at(100, Act::HoldWatches(of("machines"), 600)),
                    at(150, Act::HoldWatches(of("machinesets"), 600)),
                    at(4_000, Act::HoldWatches(of("nodes"), 600)),
                ],
            ),
        ),
        named(
            "a manager that starts at an API server that lags",
            run(
                [scale(5), scale(2)],
                vec![
                    at(4_500, Act::LaggingServer(3_000)),
                    at(70_000, scale(4)),
                    at(71_000, Act::LaggingServer(20_000)),
                ],
            ),
        ),
    ]
}

fn managers() -> Vec<Scenario> {
    let naps = (0..8).map(|turn| at(2_050 + turn * 3_100, Act::Sleep(20)));
    vec![
        named(
            "a manager that is killed again and again",
            run([roll("large"), Edit::DeletePool.into()], (1..9).map(|turn| at(turn * 1_700, Act::Crash)).collect()),
        ),
        named("a leader that sleeps", Run { elects: true, ..run([scale(6)], naps.collect()) }),
        named(
            "a leader that sleeps while it looks for the VM that it deletes",
            Run {
                elects: true,
                // The answer comes before the next look at the term, which is at whole seconds.
                ..one(vec![
                    at(19_000, lasting(FaultOperation::List, Effect::Latency { seconds: 2.95 })),
                    at(20_000, delete(0)),
                    at(22_900, Act::Sleep(20)),
                ])
            },
        ),
        named(
            "two managers of which one may write, until it is killed",
            Run {
                elects: true,
                ..run([scale(6), roll("large")], vec![at(50, Act::SecondManager(200)), at(30_000, Act::Crash)])
            },
        ),
        named(
            "clocks that are ten minutes fast, and then slow",
            run(
                [roll("large"), scale(0)],
                vec![at(500, Act::JumpClock(600)), at(5_500, Act::JumpClock(-1_200)), at(9_000, Act::JumpClock(600))],
            ),
        ),
    ]
}

fn rivals() -> Vec<Scenario> {
    vec![
        named(
            "two managers with old caches, and a user who cannot decide",
            run(
                [],
                vec![
                    at(0, Act::LateWatches(of("machines"), 6_000)),
                    at(500, Act::SecondManager(90)),
                    at(2_000, scale(5)),
                    at(9_000, scale(1)),
                    at(20_000, scale(4)),
                ],
            ),
        ),
        named(
            "a second manager that has yet to see what was wanted last",
            run([scale(1), scale(5), scale(2), scale(6)], late_rival("machinesets", 6_000, 6)),
        ),
        named(
            "a second manager that sees the deployment as it was",
            run([scale(6), scale(1), scale(8), scale(3)], late_rival("machinedeployments", 12_000, 12)),
        ),
        named(
            "a second manager with an old view of a set meets a machine whose name has had its life",
            run(
                [scale(0)],
                vec![
                    // The creation of the second machine, and the deletion of what it makes when it takes effect.
                    request("patch", "machines", 1, Fate::CommitLate(18)),
                    request("delete", "machines", 3, Fate::ArriveLate(5)),
                    at(2_500, Act::SecondManager(60)),
                    // All three machines are there at 3.5 s, and are deleted then.
                    at(3_300, Act::LateRival(of("machinesets"), 30_000)),
                ],
            ),
        ),
    ]
}

fn servers() -> Vec<Scenario> {
    vec![
        named(
            "ten minutes without the API server",
            run([scale(5)], vec![at(300, Act::ApiDown(60)), at(70_000, Act::ApiDown(600))]),
        ),
        named(
            "five minutes of too many requests, with leases",
            Run {
                elects: true,
                ..run([scale(5)], vec![at(2_000, Act::ApiRefuses { code: 429, percent: 70, seconds: 300 })])
            },
        ),
        named(
            "a machine is deleted while nothing can be written to its set",
            one(vec![at(20_000, Act::ApiRefuses { code: 409, percent: 60, seconds: 30 }), at(20_100, delete(0))]),
        ),
    ]
}

/// What becomes of single requests.
fn requests() -> Vec<Scenario> {
    vec![
        named(
            "a deletion that comes late, when another set has the name",
            Run {
                revisions: Some(0),
                // That of the set of the first template, once the second one's machines are there.
                ..run([roll("large"), roll("small")], vec![request("delete", "machinesets", 0, Fate::CommitLate(25))])
            },
        ),
        named(
            "the creation of a set that takes effect when the set has been given its size",
            one(vec![request("patch", "machinesets", 0, Fate::CommitLate(18))]),
        ),
        named(
            "a machine is deleted while what its status has to say is never answered",
            one(vec![request("patch", "machines", 2, Fate::Hang), at(5_000, delete(0))]),
        ),
        named(
            "a machine is deleted while its set cannot note that its name has had its life",
            one(vec![at(20_000, delete(0)), request("patch", "machinesets", 6, Fate::Hang)]),
        ),
        named(
            "a creation that takes effect when its name has had its life",
            run(
                [scale(0)],
                vec![
                    // That of the second machine.
                    request("patch", "machines", 1, Fate::CommitLate(18)),
                    at(12_000, Act::HoldWatches(of("machinesets"), 60)),
                ],
            ),
        ),
    ]
}

fn users() -> Vec<Scenario> {
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
                request("patch", "nodes", 1, Fate::ArriveLate(3)),
                // The one that goes: its successor comes first by name.
                at(21_000, Edit::RecreateMachine(1).into()),
            ]),
        ),
        named(
            "a machine that is deleted by a manager that hears late of its node",
            one(vec![at(200, Act::LateWatches(of("nodes"), 20_000)), at(18_300, delete(0))]),
        ),
    ]
}

/// What an object claims, and what a quiet cluster hides.
fn claims() -> Vec<Scenario> {
    let err = |mistake| at(25_000, Act::Err(mistake, 60));
    let beating = |phases: Vec<Act>, troubles| Run { heartbeats: true, ..run(phases, troubles) };
    let garbled = |kind: &str| err(Mistake::Garble(kind.to_owned(), 1));
    let quiet = |replicas, troubles| Run { replicas, quiet: true, bookmarks: Some(120), ..beating(vec![], troubles) };
    vec![
        named("a VM dies on a quiet cluster", quiet(3, vec![at(400_000, Act::KillVm(0))])),
        named(
            "a VM dies on a quiet cluster whose watches get no bookmarks",
            Run { bookmarks: Some(0), ..quiet(3, vec![at(400_000, Act::KillVm(0))]) },
        ),
        named(
            "a manager starts when kubelets have been silent for long",
            quiet(
                2,
                vec![
                    // It is given up at 945 s, and not by who starts then: its kubelet speaks at 1,080 s.
                    at(300_000, Act::SilenceKubelet(0, 780)),
                    at(900_000, Act::ApiDown(90)),
                    at(901_000, Act::Crash),
                ],
            ),
        ),
        named("four of five VMs die at once", quiet(5, (0..4).map(|vm| at(400_000, Act::KillVm(vm))).collect())),
        named("a copy of a machine, with its labels", run([], vec![err(Mistake::Copy { machine: 1, labelled: true })])),
        named("a copy of a machine, without labels", run([], vec![err(Mistake::Copy { machine: 1, labelled: false })])),
        named("a machine that is made by hand for the VM of another cluster", run([], vec![err(Mistake::Claim)])),
        named("a machine that claims the VM of another cluster", run([], vec![err(Mistake::ProviderId(1))])),
        named(
            "a machine that claims the VM of another cluster, and is deleted",
            run([], vec![err(Mistake::ProviderId(1)), at(30_000, delete(1))]),
        ),
        named(
            "a machine that claims the Node of no machine, and is deleted",
            run([], vec![err(Mistake::NodeLabel(1)), at(25_001, delete(1))]),
        ),
        named("a second Node with the providerID of a machine", run([], vec![err(Mistake::NodeByHand(1))])),
        named(
            "a second Node with the providerID of a machine, which is deleted",
            run([], vec![err(Mistake::NodeByHand(1)), at(30_000, delete(1))]),
        ),
        named(
            "a class that names another cluster while its machines go",
            run([], vec![err(Mistake::ClassCluster), at(26_000, scale(0))]),
        ),
        named(
            "a Node that cannot be read",
            beating(vec![], vec![at(25_000, Act::Err(Mistake::Garble(of("nodes"), 1), 900))]),
        ),
        named(
            "a Node that cannot be read while its machine goes",
            run([], vec![garbled("nodes"), at(30_000, delete(1))]),
        ),
        named(
            "a machine that cannot be read, in a pool that may not be larger for a while",
            Run { surge: 0, unavailable: 1, ..run([], vec![garbled("machines")]) },
        ),
        named("a set that cannot be read", run([], vec![garbled("machinesets")])),
        named("a class that cannot be read", run([], vec![garbled("machineclasses"), at(30_000, delete(0))])),
        named(
            "a rollout to a class whose Secret is missing, and back, when a VM has died",
            beating(
                vec![],
                vec![
                    at(20_000, Act::Err(Mistake::ClassSecret(of("large")), 3_000)),
                    at(21_000, roll("large")),
                    at(40_000, roll("small")),
                    at(60_000, Act::KillVm(0)),
                ],
            ),
        ),
        named(
            "a VM dies while a machine without one cannot go for want of its Secret",
            quiet(
                3,
                vec![
                    at(300_000, Act::Err(Mistake::ClassSecret(of("large")), 7_200)),
                    at(301_000, roll("large")),
                    // Its machine without a VM is deleted then, and counts as stuck 15 min later.
                    at(400_000, roll("small")),
                    at(1_000_000, Act::KillVm(0)),
                ],
            ),
        ),
    ]
}

/// What objects say of what is another's.
fn tampered() -> Vec<Scenario> {
    let err = |mistake| at(25_000, Act::Err(mistake, 60));
    let copied = |labelled| vec![err(Mistake::Copy { machine: 1, labelled }), at(35_000, delete(1))];
    vec![
        named("a copy of a machine that is deleted", run([], copied(false))),
        named("a copy of a machine that is deleted, with its labels", run([], copied(true))),
        named(
            "a machine that runs, by its status, on the VM of another cluster",
            run([], vec![err(Mistake::RunningClaim)]),
        ),
        named(
            "a Node that says that its machine has put there what others have",
            run([], vec![err(Mistake::ForgeRecord(1)), at(40_000, Edit::Relabel(of("second")).into())]),
        ),
        named("labels of Nodes that change", run([Edit::Relabel(of("second")).into()], vec![at(26_000, Act::Crash)])),
    ]
}

/// Machines that outlive who made them.
fn orphans() -> Vec<Scenario> {
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
                    // The former set has its new size by then: more machines are left to be taken than it wants.
                    request("delete", "machines", 0, Fate::Hang),
                    at(45_000, Act::Restore),
                ],
            ),
        ),
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

fn named(name: &str, run: Run) -> Scenario {
    Scenario { name: name.to_owned(), run }
}

/// Three machines, what a user does, and what goes wrong.
fn run(phases: impl Into<Vec<Act>>, troubles: Vec<Trouble>) -> Run {
    Run { phases: phases.into(), schedule: Schedule(troubles), ..up_roll_down(1) }
}

/// One machine, and what goes wrong.
fn one(troubles: Vec<Trouble>) -> Run {
    Run { replicas: 1, ..run([], troubles) }
}

/// What becomes of the n-th write of a verb to a kind.
fn request(verb: &str, plural: &str, number: u64, fate: Fate) -> Trouble {
    Trouble::Request { verb: verb.to_owned(), plural: plural.to_owned(), number, fate }
}

fn at(millis: u64, act: Act) -> Trouble {
    Trouble::At { millis, act }
}

fn of(kind: &str) -> String {
    kind.to_owned()
}

fn scale(replicas: u32) -> Act {
    Edit::Scale(replicas).into()
}

fn roll(class: &str) -> Act {
    Edit::Roll(class.to_owned()).into()
}

fn delete(machine: usize) -> Act {
    Edit::DeleteMachine(machine).into()
}

/// A second manager, and what its watches of a kind have to tell comes so late, from so many times ten seconds on.
fn late_rival(plural: &str, millis: u32, times: u64) -> Vec<Trouble> {
    let late = (0..times).map(|turn| at(turn * 10_000, Act::LateRival(of(plural), millis)));
    late.chain([at(50, Act::SecondManager(300))]).collect()
}

/// The watches of all that changes break, and the history is gone from which they would go on.
fn forgotten(millis: u64) -> impl Iterator<Item = Trouble> {
    let kinds = ["machines", "machinesets", "machinedeployments"];
    let cuts = kinds.map(|kind| Act::CutWatches(kind.to_owned()));
    cuts.into_iter().chain([Act::Compact]).map(move |act| at(millis, act))
}

fn fails() -> Effect {
    Effect::Error { code: Code::Unavailable, message: None, applied: false }
}

/// What the cloud does to all calls for a minute.
fn lasting(operation: FaultOperation, effect: Effect) -> Act {
    let matching = FaultMatch::default();
    Act::Cloud(FaultOrder { operation, matching, count: None, for_seconds: Some(60.0), probability: None, effect })
}

/// What the cloud does to the next three calls within a minute.
fn cloud(operation: FaultOperation, effect: Effect) -> Act {
    struck(operation, 3, effect)
}

/// What the cloud does to the next calls within a minute.
fn struck(operation: FaultOperation, calls: u64, effect: Effect) -> Act {
    let (matching, count) = (FaultMatch::default(), Some(calls));
    Act::Cloud(FaultOrder { operation, matching, count, for_seconds: Some(60.0), probability: None, effect })
}

/// A call that ends at once, and takes effect so many seconds later.
fn late_by(seconds: f64) -> Effect {
    Effect::ApplyLate { seconds, code: Code::DeadlineExceeded }
}
