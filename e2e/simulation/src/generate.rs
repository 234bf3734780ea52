//! Makes runs from seeds.

use fastrand::Rng;

use super::{
    limits::Limits,
    names::{DRAIN_WATCHED, GARBLED, WATCHED},
    rollouts::generate::with_rollout,
    run::Run,
    schedule::{Act, Edit, RequestResult, Schedule, Trouble, UserError},
    updates::Orchestration,
    workload::{App, Budget, Ending, Storage, Volume, Workload},
};
use nodewright_e2e_cloud::{Code, Effect, FaultMatch, FaultOperation, FaultOrder};

/// The kinds that only one of two managers may see late. Machines are not among them: there is no guarantee for them.
const RIVAL_WATCHED: [&str; 4] = ["machinesets", "machinedeployments", "machineclasses", "nodes"];
/// The status codes with which a broken API server refuses requests.
const REFUSALS: [u16; 5] = [409, 429, 500, 503, 504];

/// One in so many runs has pods.
const POD_RUNS: u8 = 5;
/// The choices for pods are made from the seed and this.
const POD_SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// In one of so many runs in which not only managers fail, the store is set back. The choices for that are made from the seed and
/// this.
const SET_BACK_RUNS: u8 = 10;
const SET_BACK_SEED: u64 = 0xd1b5_4a32_d192_ed03;
/// In one of so many runs in which not only managers fail, machines are preserved. The choices for that are made from the seed and this.
const PRESERVATION_RUNS: u8 = 6;
/// In one of so many runs machines are updated in place. The choices for that are made from the seed and this.
const UPDATE_RUNS: u8 = 8;
const UPDATE_SEED: u64 = 0x6a09_e667_f3bc_c908;
const PRESERVATION_SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// In one of so many runs pools update their Nodes. The choices for that are made from the seed and this.
const ROLLOUT_RUNS: u8 = 6;
const ROLLOUT_SEED: u64 = 0x510e_527f_ade6_82d1;

/// One in so many of the other runs has no cloud controller manager. The choices for that are made from the seed and this.
const CLOUD_NODE_RUNS: u8 = 6;
const CLOUD_NODE_SEED: u64 = 0xbb67_ae85_84ca_a73b;

/// Makes the run of a seed. Half of all runs are calm: only the manager and the servers that it talks to fail.
pub fn run(seed: u64) -> Run {
    let mut chance = Rng::with_seed(seed);
    let is_calm = chance.bool();
    let replicas = if chance.u8(0..20) == 0 { chance.u32(8..=20) } else { chance.u32(1..=5) };
    let (surge, unavailable) = [(1, 0), (0, 1), (2, 1), (1, 1)][chance.usize(0..4)];
    let phases = phases(&mut chance, replicas);
    // Roughly the number of steps of such a run.
    let steps = u64::from(replicas) * 16 * (phases.len() as u64 + 1) + 20;
    let count = chance.usize(1..=if is_calm { 8 } else { 12 });
    let troubles = (0..count).flat_map(|_| accompanied(trouble(&mut chance, steps, is_calm), &mut chance));
    let schedule = Schedule(troubles.collect());
    let (elects, heartbeats) = (chance.u8(0..3) == 0, schedule.needs_heartbeats());
    let revisions = chance.bool().then(|| chance.u32(0..=1));
    let (quiet, bookmarks) = (false, [None, Some(120), Some(0)][chance.usize(0..3)]);
    let run = Run {
        seed,
        replicas,
        surge,
        unavailable,
        revisions,
        elects,
        heartbeats,
        quiet,
        bookmarks,
        calls_at_once: None,
        limits: Limits::default(),
        workload: None,
        in_place: None,
        rollout: None,
        cloud_nodes: false,
        phases,
        schedule,
    };
    let mut of_rollout = Rng::with_seed(seed ^ ROLLOUT_SEED);
    if of_rollout.u8(0..ROLLOUT_RUNS) == 0 {
        return with_rollout(&mut of_rollout, &run, |chance, steps| trouble(chance, steps, true));
    }
    let mut of_cloud = Rng::with_seed(seed ^ CLOUD_NODE_SEED);
    if of_cloud.u8(0..CLOUD_NODE_RUNS) == 0 {
        return with_cloud_nodes(&mut of_cloud, run, is_calm);
    }
    match chance.u8(0..12) {
        _ if is_in_place(seed) && is_calm => with_updates(seed, run),
        _ if is_in_place(seed) => with_preservation(seed, with_updates(seed, run)),
        0 => quiet_run(&mut chance, &run),
        1 | 2 if !is_calm => with_user_error(&mut chance, &run),
        _ if is_calm => with_pods(seed, run, is_calm),
        _ => with_preservation(seed, with_set_back(seed, with_pods(seed, run, is_calm))),
    }
}

/// The same run, in which managers do the node part of a cloud controller manager. Others delete VMs, and kubelets fall silent. It may
/// have Pods beside that, a restore of the store, or users' errors in place of its other faults.
fn with_cloud_nodes(chance: &mut Rng, run: Run, is_calm: bool) -> Run {
    let mut run = match chance.u8(0..6) {
        0 => pods(chance, run, is_calm),
        1 if !is_calm => set_back(chance, run),
        2 if !is_calm => with_user_error(chance, &run),
        _ => run,
    };
    let count = if is_calm { 0 } else { chance.usize(1..=4) };
    let troubles = (0..count).map(|_| {
        let (vm, millis) = (chance.usize(0..20), chance.u64(20_000..900_000));
        let act = match chance.u8(0..5) {
            0 => Act::KillVm(vm),
            4 => Act::LoseMachine(vm),
            1 => Act::SilenceKubelet(vm, chance.u32(60..=600)),
            _ => Act::VanishVm(vm),
        };
        Trouble::At { millis, act }
    });
    run.schedule.0.extend(troubles);
    Run { cloud_nodes: true, heartbeats: run.heartbeats || !is_calm, ..run }
}

fn is_in_place(seed: u64) -> bool {
    Rng::with_seed(seed ^ UPDATE_SEED).u8(0..UPDATE_RUNS) == 0
}

/// The same run, with machines that are updated in place.
fn with_updates(seed: u64, run: Run) -> Run {
    let is_manual = Rng::with_seed(seed ^ UPDATE_SEED ^ 1).u8(0..3) == 0;
    Run { in_place: Some(if is_manual { Orchestration::Manual } else { Orchestration::Auto }), ..run }
}

/// The same run, with a restore of the store if it is one of those that have it.
fn with_set_back(seed: u64, run: Run) -> Run {
    let mut chance = Rng::with_seed(seed ^ SET_BACK_SEED);
    if chance.u8(0..SET_BACK_RUNS) != 0 || run.workload.is_some() {
        return run;
    }
    set_back(&mut chance, run)
}

fn set_back(chance: &mut Rng, mut run: Run) -> Run {
    let act = Act::SetBack(chance.u32(1..=200));
    run.schedule.0.push(Trouble::At { millis: chance.u64(0..200_000), act });
    run.heartbeats = true;
    run
}

/// The same run, with machines that fail and are preserved, if it is one of those that have them.
fn with_preservation(seed: u64, mut run: Run) -> Run {
    let mut chance = Rng::with_seed(seed ^ PRESERVATION_SEED);
    if chance.u8(0..PRESERVATION_RUNS) != 0 || run.workload.is_some() {
        return run;
    }
    let mut troubles: Vec<Trouble> = (0..chance.usize(1..=4))
        .map(|_| Trouble::At { millis: chance.u64(20_000..300_000), act: preservation(&mut chance).into() })
        .collect();
    troubles.extend((0..chance.usize(1..=3)).map(|_| {
        let (machine, millis) = (chance.usize(0..20), chance.u64(20_000..300_000));
        let act =
            if chance.bool() { Act::KillVm(machine) } else { Act::SilenceKubelet(machine, chance.u32(600..=1_500)) };
        Trouble::At { millis, act }
    }));
    run.schedule.0.extend(troubles);
    run.heartbeats = true;
    run
}

fn preservation(chance: &mut Rng) -> Edit {
    let values = ["now", "when-failed", "when-failed", "auto-preserved", "false", "", "yes"];
    match chance.u8(0..4) {
        0 => Edit::AutoPreserve(chance.u32(0..=2)),
        _ => Edit::Preserve {
            machine: chance.usize(0..20),
            on_node: chance.bool(),
            value: values[chance.usize(0..values.len())].to_owned(),
        },
    }
}

/// The same run, with pods and the faults of drains if it is one of those that have them. The choices for pods are apart from
/// the others.
fn with_pods(seed: u64, run: Run, is_calm: bool) -> Run {
    let mut chance = Rng::with_seed(seed ^ POD_SEED);
    if chance.u8(0..POD_RUNS) == 0 { pods(&mut chance, run, is_calm) } else { run }
}

fn pods(chance: &mut Rng, mut run: Run, is_calm: bool) -> Run {
    // A drain may take seven minutes, one after the other, and all of them have to be over after an hour.
    if run.replicas > 5 {
        return run;
    }
    let apps = (0..chance.usize(1..=3)).map(|_| app(chance)).collect();
    run.workload = Some(Workload { apps, daemons: chance.bool() });
    let troubles = (0..chance.usize(0..=3)).map(|_| {
        let latest = [60_000, 400_000][chance.usize(0..2)];
        let millis = chance.u64(0..latest);
        Trouble::At { millis, act: drain_fault(chance, is_calm) }
    });
    run.schedule.0.extend(troubles);
    run
}

fn app(chance: &mut Rng) -> App {
    let pods = chance.u32(1..=4);
    let detaches = [Some(1), Some(5), Some(60), None][chance.usize(0..4)];
    let storage = [Storage::Provider, Storage::Provider, Storage::Other, Storage::Network][chance.usize(0..4)];
    let volume = (chance.u8(0..3) == 0).then_some(Volume { storage, detaches });
    let budgets = match chance.u8(0..8) {
        0..=2 => vec![],
        3 => vec![Budget::MinAvailable(chance.u32(0..=pods))],
        4 => vec![Budget::MaxUnavailable(1), Budget::MinAvailable(1)],
        5 => vec![Budget::MaxUnavailable(0)],
        _ => vec![Budget::MaxUnavailable(1)],
    };
    let ends = [Ending::Soon, Ending::Soon, Ending::Soon, Ending::Killed, Ending::Never][chance.usize(0..5)];
    App { pods, volume, budgets, ends }
}

/// A fault of the target cluster, or a user who removes a machine by force.
fn drain_fault(chance: &mut Rng, is_calm: bool) -> Act {
    let kind = |chance: &mut Rng| DRAIN_WATCHED[chance.usize(0..DRAIN_WATCHED.len())].to_owned();
    match chance.u8(0..8) {
        0 => Act::TargetDown(chance.u32(1..=900)),
        1 => Act::RefusePods([403, 429, 500, 503][chance.usize(0..4)], chance.u32(1..=900)),
        2 => Act::StaleBudgets(chance.u32(1..=120)),
        3 => Act::EditBudgets(chance.u32(1..=120)),
        4 => Act::HoldWatches(kind(chance), chance.u32(1..=400)),
        5 => Act::CutWatches(kind(chance)),
        6 if !is_calm => Edit::ForceDeleteMachine(chance.usize(0..20)).into(),
        _ => Act::LateWatches(kind(chance), chance.u32(10..=30_000)),
    }
}

/// A run with default timeouts, and with idle minutes before each fault.
fn quiet_run(chance: &mut Rng, run: &Run) -> Run {
    let (mut millis, mut troubles) = (0, vec![]);
    for _ in 0..chance.u8(1..=4) {
        millis += chance.u64(240_000..=900_000);
        let act = match chance.u8(0..8) {
            0 => Act::Crash,
            1 => Act::ApiDown(chance.u32(1..=120)),
            2 => Act::SilenceKubelet(chance.usize(0..20), chance.u32(10..=3_600)),
            3 => Act::CutWatches(WATCHED[chance.usize(0..WATCHED.len())].to_owned()),
            _ => Act::KillVm(chance.usize(0..20)),
        };
        // Often several VMs die at once.
        let more = if matches!(act, Act::KillVm(_)) { chance.u8(0..=3) } else { 0 };
        troubles.push(Trouble::At { millis, act });
        troubles.extend((0..more).map(|_| Trouble::At { millis: millis + 100, act: Act::KillVm(chance.usize(0..20)) }));
    }
    let schedule = Schedule(troubles);
    Run { quiet: true, heartbeats: true, replicas: run.replicas.min(5), phases: vec![], schedule, ..run.clone() }
}

/// A run with users' errors after all machines have joined, and without any other fault.
fn with_user_error(chance: &mut Rng, run: &Run) -> Run {
    let mut troubles = vec![];
    for _ in 0..chance.u8(1..=3) {
        let (user_error, seconds, millis) = (user_error(chance), chance.u32(1..=100), chance.u64(20_000..200_000));
        // Machines that exist have joined.
        let more = (user_error == UserError::ShortTimeout).then(|| Edit::Scale(chance.u32(1..=6)).into());
        troubles.push(Trouble::At { millis, act: Act::Err(user_error, seconds) });
        troubles.extend(more.map(|act| Trouble::At { millis: millis + 1_000, act }));
    }
    let schedule = Schedule(troubles);
    Run { heartbeats: chance.bool(), replicas: run.replicas.min(5), phases: vec![], schedule, ..run.clone() }
}

/// The cluster name of a class stays: VMs created meanwhile would belong to another cluster.
fn user_error(chance: &mut Rng) -> UserError {
    let machine = chance.usize(0..20);
    match chance.u8(0..13) {
        12 => UserError::NeighbourAhead,
        11 => UserError::Neighbour(machine),
        10 => UserError::EditLedger(machine),
        9 => UserError::ShortTimeout,
        0 => UserError::Copy { machine, labelled: chance.bool() },
        1 => UserError::ProviderId(machine),
        2 => UserError::NodeLabel(machine),
        3 => UserError::ClassSecret(["small", "large"][chance.usize(0..2)].to_owned()),
        4 => UserError::NodeByHand(machine),
        5 => UserError::Claim,
        6 => UserError::RunningClaim,
        7 => UserError::ForgeRecord(machine),
        _ => UserError::Garble(GARBLED[chance.usize(0..GARBLED.len())].to_owned(), machine),
    }
}

fn trouble(chance: &mut Rng, steps: u64, is_calm: bool) -> Trouble {
    if !is_calm && chance.u8(0..10) == 0 {
        return Trouble::Edit { step: chance.u64(0..steps), edit: edit(chance) };
    }
    if chance.u8(0..10) < 6 {
        return Trouble::Step { step: chance.u64(0..steps), request_result: request_result(chance) };
    }
    let latest = [2_000, 20_000, 200_000][chance.usize(0..3)];
    let millis = chance.u64(0..latest);
    Trouble::At { millis, act: if is_calm || chance.bool() { calm(chance) } else { wild(chance) } }
}

/// Adds a second manager to a trouble that only a second manager can meet.
fn accompanied(trouble: Trouble, chance: &mut Rng) -> Vec<Trouble> {
    let Trouble::At { millis, act: Act::LateRival(..) } = trouble else { return vec![trouble] };
    vec![Trouble::At { millis, act: Act::SecondManager(chance.u32(10..=120)) }, trouble]
}

fn phases(chance: &mut Rng, replicas: u32) -> Vec<Act> {
    let scale = |replicas| Edit::Scale(replicas);
    let roll = |class: &str| Edit::Roll(class.to_owned());
    let other = |chance: &mut Rng| chance.u32(0..=replicas + 3);
    let edits = match chance.u8(0..6) {
        0 => vec![],
        1 => vec![roll("large"), Edit::DeletePool],
        2 => vec![scale(other(chance)), roll("large")],
        3 => vec![roll("large"), roll("small"), scale(other(chance))],
        4 => vec![scale(0), scale(other(chance)), Edit::DeletePool],
        _ => vec![scale(other(chance)), scale(other(chance))],
    };
    edits.into_iter().map(Act::from).collect()
}

/// A user's change with a single request.
fn edit(chance: &mut Rng) -> Edit {
    match chance.u8(0..10) {
        0..=3 => Edit::Scale(chance.u32(0..=6)),
        4 | 5 => Edit::Roll(["small", "large"][chance.usize(0..2)].to_owned()),
        6 | 7 => Edit::DeleteMachine(chance.usize(0..20)),
        8 => Edit::RecreateMachine(chance.usize(0..20)),
        _ => Edit::DeletePool,
    }
}

fn request_result(chance: &mut Rng) -> RequestResult {
    match chance.u8(0..10) {
        0 => RequestResult::CrashBefore,
        1 | 2 => RequestResult::CrashAfter,
        3 => RequestResult::LoseAnswer,
        4 => RequestResult::CommitLate(chance.u32(1..=20)),
        5 => RequestResult::AnswerLate(chance.u32(1..=60)),
        6 => RequestResult::ArriveLate(chance.u32(1..=20)),
        7 => RequestResult::Refuse(REFUSALS[chance.usize(0..REFUSALS.len())]),
        8 => RequestResult::RefuseAfter([500, 503, 504][chance.usize(0..3)]),
        _ => [RequestResult::Hang, RequestResult::HangAfter][chance.usize(0..2)],
    }
}

/// A fault of the manager or of a server that it talks to.
fn calm(chance: &mut Rng) -> Act {
    let kind = |chance: &mut Rng| WATCHED[chance.usize(0..WATCHED.len())].to_owned();
    match chance.u8(0..14) {
        13 => Act::ApiSwallows { percent: chance.u8(10..=100), seconds: chance.u32(1..=60) },
        12 => Act::LateRival(RIVAL_WATCHED[chance.usize(0..RIVAL_WATCHED.len())].to_owned(), chance.u32(10..=30_000)),
        11 => Act::LaggingServer(chance.u32(10..=30_000)),
        0 | 1 => Act::Crash,
        10 => Act::Sleep(chance.u32(1..=60)),
        2 => Act::SecondManager(chance.u32(1..=120)),
        3 => Act::HoldWatches(kind(chance), chance.u32(1..=400)),
        4 | 5 => Act::LateWatches(kind(chance), chance.u32(10..=30_000)),
        6 => Act::CutWatches(kind(chance)),
        7 => [Act::Compact, Act::DropManagedFields][chance.usize(0..2)].clone(),
        8 => Act::ApiSlow(chance.u32(10..=5_000)),
        _ => {
            let code = REFUSALS[chance.usize(0..REFUSALS.len())];
            Act::ApiRefuses { code, percent: chance.u8(10..=100), seconds: chance.u32(1..=60) }
        }
    }
}

/// A fault of machines, users or clouds.
fn wild(chance: &mut Rng) -> Act {
    match chance.u8(0..15) {
        0..=4 => edit(chance).into(),
        5 => [Act::Disturb, Act::WipeStatus, Act::TakeOwners][chance.usize(0..3)](chance.u32(1..=100)),
        6 => Act::Restore,
        // A clock that is behind for long lets timeouts end as much later.
        7 => [Act::JumpClock, Act::JumpRival, Act::DriftClock][chance.usize(0..3)](chance.i64(-600..=7_200)),
        8 => Act::ApiDown(chance.u32(1..=120)),
        9 => Act::CloudDown(chance.u32(1..=300)),
        10 => Act::KillVm(chance.usize(0..20)),
        11 => Act::SilenceKubelet(chance.usize(0..20), chance.u32(1..=900)),
        12 => Act::OrphanMachines,
        _ => Act::Cloud(cloud(chance)),
    }
}

fn cloud(chance: &mut Rng) -> FaultOrder {
    let seconds = f64::from(chance.u32(1..=20));
    let code = [Code::Internal, Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Unknown]
        [chance.usize(0..5)];
    let effect = match chance.u8(0..8) {
        0 => Effect::Latency { seconds },
        1 => Effect::Error { code, message: None, applied: chance.bool() },
        2 => Effect::Hang { applied: chance.bool() },
        3 => Effect::AnswerLate { seconds },
        4 => Effect::Cut { applied: chance.bool() },
        5 => Effect::ApplyLate { seconds, code },
        6 => Effect::Garbage,
        // No longer than the driver's configured limit for the cloud's consistency delay.
        _ => Effect::Invisible { seconds: f64::from(chance.u8(1..=4)) },
    };
    let operation = match effect {
        Effect::ApplyLate { .. } => [FaultOperation::Create, FaultOperation::Delete][chance.usize(0..2)],
        Effect::Invisible { .. } => FaultOperation::Create,
        _ => [
            FaultOperation::Create,
            FaultOperation::Get,
            FaultOperation::List,
            FaultOperation::Delete,
            FaultOperation::Any,
        ][chance.usize(0..5)],
    };
    FaultOrder {
        operation,
        matching: FaultMatch::default(),
        count: Some(chance.u64(1..=10)),
        for_seconds: Some(f64::from(chance.u32(1..=120))),
        probability: None,
        effect,
    }
}
