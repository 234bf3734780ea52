//! The manager in a simulated cluster: see `nodewright_e2e_simulation`. `make simulate` makes thousands of these runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::Mutex,
    thread,
};

use nodewright_e2e_cloud::{Effect, FaultOperation, FaultOrder};
use nodewright_e2e_simulation::{
    Detail, Report, Run, Scenario,
    campaign::{Reference, crashes, drains, edits, examine, in_parallel},
    scenarios,
    schedule::{Act, Edit, RequestResult, Schedule, Trouble},
};

#[track_caller]
fn expect_good(run: &Run, report: &Report) {
    let run = serde_json::to_string(run).expect("a run is JSON");
    assert!(report.violations.is_empty(), "{}\n{run}\n{:#?}", report.trace.join("\n"), report.violations);
}

/// Checks each run, on all processors.
fn check_each(
    runs: impl IntoIterator<Item = Scenario, IntoIter: Send>,
    check: impl Fn(Scenario, &mut Reference) + Sync,
) {
    let runs = Mutex::new(runs.into_iter());
    let next = || runs.lock().expect("no check holds the lock").next();
    in_parallel(None, || {
        let mut reference = Reference::default();
        while let Some(run) = next() {
            check(run, &mut reference);
        }
    });
}

#[test]
fn undisturbed_it_goes_up_rolls_and_goes_down() {
    let run = Run::up_roll_down(1);
    let report = examine(&run, &mut Reference::default(), Detail::Brief);
    expect_good(&run, &report);
    let counted = |kind: &str| report.counts.0.get(kind).copied();
    assert_eq!((counted("machines"), counted("vms"), counted("nodes")), (Some((6, 6)), Some((6, 6)), Some((6, 6))));
}

/// The cloud removes a VM within a second, and is asked for it two seconds after its deletion, as the contract of drivers says.
/// Everything else happens at once.
#[test]
fn a_deletion_without_pods_makes_no_pause_of_its_own() {
    let report = examine(&Run::up_roll_down(1), &mut Reference::default(), Detail::Whole);
    let changes = report.trace.iter().filter_map(|line| {
        let (time, change) = line.trim_start().split_once(' ')?;
        let (_, change) = change.split_once("/machines/")?;
        let (name, what) = change.split_once(' ')?;
        Some((time.parse::<f64>().ok()?, name, what))
    });
    let (mut begun, mut lasted) = (BTreeMap::new(), vec![]);
    for (time, name, what) in changes {
        if what.ends_with(", deleting") {
            begun.entry(name).or_insert(time);
        }
        if let Some(begun) = begun.get(name).filter(|_| what == "is gone") {
            lasted.push(time - begun);
        }
    }
    assert_eq!(lasted, [2.0; 6], "seconds for each machine");
}

#[test]
fn what_somebody_has_thought_of_breaks_nothing() {
    check_each(scenarios::all(), |Scenario { name, run }, reference| {
        let report = examine(&run, reference, Detail::Explained);
        expect_good(&run, &report);
        assert_eq!(report.missed, 0, "{name}: what it is aimed at never comes");
    });
}

/// A change that is taken back within ten seconds, or a template within one, while the caches are late by up to a second: only
/// machines of the change come and go, and the first three stay. As in a real cloud, no VM boots within ten seconds: of machines that
/// all run, machine-controller-manager's order takes the oldest.
#[test]
fn what_is_taken_back_at_once_costs_only_its_own_machines() {
    let at = |millis, act| Trouble::At { millis, act };
    let late = |millis| {
        ["machinedeployments", "machinesets", "machines"].map(|kind| at(0, Act::LateWatches(kind.to_owned(), millis)))
    };
    let (scale, roll) = (|to| Act::from(Edit::Scale(to)), |to: &str| Act::from(Edit::Roll(to.to_owned())));
    let begin = 30_000;
    let changes = [
        ([at(begin, scale(131)), at(begin + 9_000, scale(3))], 131),
        ([at(begin, scale(131)), at(begin + 900, scale(3))], 131),
        ([at(begin, roll("large")), at(begin + 1_000, roll("small"))], 3 + 1),
    ];
    let boot = FaultOrder::always(FaultOperation::Create, Effect::Boot { seconds: 60.0 }).for_seconds(60.0);
    let slow = at(begin - 1, Act::Cloud(boot));
    let lags = [0, 300, 1_000];
    for (lag, (change, most)) in lags.into_iter().flat_map(|lag| changes.clone().map(|change| (lag, change))) {
        let schedule = Schedule(late(lag).into_iter().chain([slow.clone()]).chain(change.clone()).collect());
        let run = Run { phases: vec![], schedule, ..Run::up_roll_down(1) };
        let report = examine(&run, &mut Reference::default(), Detail::Whole);
        expect_good(&run, &report);
        for kind in ["machines", "vms"] {
            let (made, gone) = report.counts.0[kind];
            assert!(made <= most && made - gone <= 3, "{lag} ms late, {change:?}: {made} {kind} made, {gone} gone");
        }
        let of_machines = report.trace.iter().filter_map(|line| Some((line, line.split_once("/machines/")?.1)));
        let changes: Vec<_> =
            of_machines.filter_map(|(line, rest)| Some((line, rest.split_once(' ')?.0.to_owned()))).collect();
        let mut first: Vec<&str> = vec![];
        for (line, name) in &changes {
            if first.len() < 3 && !first.contains(&name.as_str()) {
                first.push(name);
            }
            let is_leaving = line.ends_with(" is gone") || line.ends_with(", deleting");
            assert!(!is_leaving || !first.contains(&name.as_str()), "{lag} ms late, {change:?}: {line}");
        }
        assert_eq!(first.len(), 3, "{:?}", report.trace.first());
    }
}

/// Every fifth step, once before it and once after it; `make simulate` covers every step.
#[test]
fn killed_at_any_step_it_makes_and_unmakes_the_same() {
    let runs = crashes(&Run::up_roll_down(1));
    assert!(runs.len() > 200, "{} places to be killed at", runs.len());
    check_each(runs.into_iter().skip(1).step_by(5), |Scenario { run, .. }, reference| {
        expect_good(&run, &examine(&run, reference, Detail::Brief));
    });
}

/// About every ninetieth of the faults; `make simulate` covers all.
#[test]
fn whatever_happens_at_any_step_of_a_drain_it_ends_and_breaks_nothing() {
    let runs = drains();
    assert!(runs.len() > 1_000, "{} places for a fault", runs.len());
    check_each(runs.into_iter().skip(40).step_by(91), |Scenario { run, .. }, reference| {
        expect_good(&run, &examine(&run, reference, Detail::Brief));
    });
}

/// Before about every thirtieth step; `make simulate` covers every step.
#[test]
fn what_a_user_changes_between_any_two_steps_breaks_nothing() {
    let mut reference = Reference::default();
    let runs = edits(&Run::up_roll_down(1));
    assert!(runs.len() > 400, "{} places to change something at", runs.len());
    for Scenario { run, .. } in runs.iter().step_by(29) {
        expect_good(run, &examine(run, &mut reference, Detail::Brief));
    }
}

/// No run of a seed breaks an invariant, and two processes have the same random choices.
#[test]
fn runs_of_seeds_break_nothing_and_are_the_same_in_another_process() {
    let traces = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-simulation"));
        command.args(["--traces", "--first=10000", "--runs=50"]).output().expect("it starts")
    };
    let both = thread::scope(|scope| {
        [scope.spawn(traces), scope.spawn(traces)].map(|process| process.join().expect("it ends"))
    });
    let [one, other] = &both;
    let lines = |output: &[u8]| String::from_utf8_lossy(output).lines().map(str::to_owned).collect::<Vec<_>>();
    let (one_lines, other_lines) = (lines(&one.stdout), lines(&other.stdout));
    let violation = one_lines.iter().position(|line| line.starts_with("violation"));
    assert_eq!(violation.map(|at| &one_lines[at.saturating_sub(120)..=at]), None);
    assert!(one.status.success() && other.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    let differs = one_lines.iter().zip(&other_lines).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(one_lines.len(), other_lines.len());
    assert!(one_lines.len() > 10_000, "{} lines", one_lines.len());
}

fn with(troubles: Vec<Trouble>) -> Run {
    Run { phases: vec![Edit::Roll("large".to_owned()).into()], schedule: Schedule(troubles), ..Run::up_roll_down(1) }
}

fn at(millis: u64, act: Act) -> Trouble {
    Trouble::At { millis, act }
}

/// Regressions found by the simulation.
#[test]
fn what_was_found_by_simulation_stays_mended() {
    let runs = [
        // A set restored with fewer replicas than machines never removed the surplus.
        with(vec![Trouble::Step { step: 60, request_result: RequestResult::CrashAfter }, at(36_000, Act::Restore)]),
        // Two managers reverted each other's writes as fast as they could.
        Run {
            heartbeats: true,
            ..with(vec![
                at(14_000, Act::ApiDown(30)),
                at(1_400, Act::KillVm(1)),
                at(20_000, Act::SecondManager(77)),
                at(20_000, Act::CloudDown(60)),
            ])
        },
    ];
    let mut reference = Reference::default();
    for run in &runs {
        expect_good(run, &examine(run, &mut reference, Detail::Brief));
    }
}

/// The controllers that the simulation runs.
const CONTROLLERS: [&str; 12] = [
    "machine",
    "machine-class",
    "machine-class-secret",
    "machine-config-pool",
    "machine-deployment",
    "machine-set",
    "node-drain",
    "node-lifecycle",
    "orphan-node",
    "orphan-vm",
    "rollout-node",
    "unowned-node",
];

/// Each plan is made twice, and all are the same in another process, whose hash maps have another order. It runs later, and in
/// another time zone.
#[test]
fn plans_depend_on_their_arguments_alone() {
    let plans = |zone: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-simulation"));
        command.args(["--plans", "--first=2", "--runs=2"]).env("TZ", zone).output().expect("it starts")
    };
    let both = thread::scope(|scope| {
        let both = ["Asia/Kathmandu", "America/St_Johns"].map(|zone| scope.spawn(move || plans(zone)));
        both.map(|process| process.join().expect("it ends"))
    });
    let [one, other] = both.each_ref().map(|output| String::from_utf8_lossy(&output.stdout));
    let violation = one.lines().chain(other.lines()).find(|line| line.starts_with("violation"));
    assert_eq!(violation, None);
    assert!(both.iter().all(|output| output.status.success()));
    let differs = one.lines().zip(other.lines()).enumerate().find(|(_, (one, other))| one != other);
    assert_eq!(differs, None, "the first plan that is another one in another process");
    assert_eq!(one.lines().count(), other.lines().count());
    let planned: BTreeSet<_> = one.lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
    assert_eq!(planned, BTreeSet::from(CONTROLLERS));
}
