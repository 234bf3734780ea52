//! Many runs: compares them with a run without faults, counts them, and shrinks those that fail.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
    thread,
};

use super::{
    limits::Limits,
    names::DRAIN_WATCHED,
    oracles::Counts,
    run::{Report, Run, Scenario},
    scenarios,
    schedule::{Act, Edit, RequestResult, Schedule, Trouble},
    trace::Detail,
};

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// The counts of runs without faults, computed once per kind of run.
#[derive(Debug, Default)]
pub struct Reference(BTreeMap<String, Counts>);

impl Reference {
    fn of(&mut self, run: &Run) -> Option<&Counts> {
        let plain = Run {
            seed: 0,
            elects: false,
            heartbeats: false,
            quiet: false,
            bookmarks: None,
            calls_at_once: None,
            limits: Limits::default(),
            workload: None,
            schedule: Schedule::default(),
            ..run.clone()
        };
        let name = serde_json::to_string(&plain).ok()?;
        Some(self.0.entry(name).or_insert_with(|| plain.run(Detail::Brief).counts))
    }
}

/// Runs and evaluates a run. A panic anywhere in it is a violation as well, even if some code caught it.
pub fn examine(run: &Run, reference: &mut Reference, detail: Detail) -> Report {
    hear_panics();
    PANICS.with_borrow_mut(Vec::clear);
    let made = catch_unwind(AssertUnwindSafe(|| run.run(detail)));
    let panics = PANICS.with_borrow_mut(std::mem::take);
    let mut report = made.unwrap_or_default();
    report.violations.extend(panics.into_iter().map(|panic| format!("P: {panic}")));
    if report.violations.is_empty() && run.schedule.is_controller_side() && !run.has_conflicting_managers() {
        // A creation that takes effect very late may create a machine with a retired name: it gets no VM, and is deleted. Or it
        // creates a set of a deleted deployment, and the garbage collector deletes the set.
        let ghosts = run.schedule.request_results().any(|request_result| {
            matches!(request_result, RequestResult::CommitLate(_) | RequestResult::ArriveLate(_))
        });
        let differs = |expected: &Counts| {
            let kinds =
                expected.0.keys().filter(|kind| !ghosts || !["machines", "machinesets"].contains(&kind.as_str()));
            kinds.into_iter().any(|kind| expected.0.get(kind) != report.counts.0.get(kind))
        };
        if let Some(expected) = reference.of(run).filter(|expected| differs(expected)) {
            let found = &report.counts;
            report.violations.push(format!("I11: made and unmade {found:?}, without faults {expected:?}"));
        }
    }
    report
}

/// Does the work in this many threads at once, by default one for each processor. Panics if one of them does.
pub fn in_parallel(jobs: Option<NonZero<usize>>, work: impl Fn() + Sync) {
    let jobs = jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, Into::into);
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(&work))));
}

/// Records each panic per thread, in addition to the default panic hook.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            usual(panic);
        }));
    });
}

/// Runs that kill the manager before or after a single step, for each step of the run.
pub fn crashes(run: &Run) -> Vec<Scenario> {
    let (before, after) = (("killed before", RequestResult::CrashBefore), ("killed after", RequestResult::CrashAfter));
    at_each_step(run, |step| {
        [before, after].map(|(name, request_result)| (name.to_owned(), Trouble::Step { step, request_result }))
    })
}

/// Runs in which a user changes something just before a single step, for each step of the run.
pub fn edits(run: &Run) -> Vec<Scenario> {
    let edits = [
        Edit::Scale(5),
        Edit::Scale(1),
        Edit::Roll("small".to_owned()),
        Edit::DeleteMachine(1),
        Edit::RecreateMachine(1),
        Edit::DeletePool,
    ];
    at_each_step(run, |step| edits.clone().map(|edit| (format!("{edit:?} before"), Trouble::Edit { step, edit })))
}

/// Runs of the drain of ten pods in which something happens to a single step, for each step: the manager is killed, and the next
/// one starts or another one takes over; caches are old; an answer is lost, late or a refusal, or there is none.
pub fn drains() -> Vec<Scenario> {
    let run = scenarios::ten_pods();
    let watches = |millis: u32| DRAIN_WATCHED.map(|kind| Act::LateWatches(kind.to_owned(), millis));
    let at = |millis, act| Trouble::At { millis, act };
    let old: Vec<Trouble> = watches(4_000).into_iter().map(|act| at(12_000, act)).collect();
    let request_results = [
        RequestResult::LoseAnswer,
        RequestResult::CommitLate(15),
        RequestResult::AnswerLate(40),
        RequestResult::ArriveLate(15),
        RequestResult::Refuse(429),
        RequestResult::Refuse(500),
        RequestResult::RefuseAfter(504),
        RequestResult::Hang,
        RequestResult::HangAfter,
    ];
    let crashes = [RequestResult::CrashBefore, RequestResult::CrashAfter];
    let standby = Run { elects: true, ..run.clone() };
    [
        struck_at_each_step(&run, &[&crashes[..], &request_results].concat(), &[]),
        struck_at_each_step(&standby, &crashes, &[at(50, Act::SecondManager(300))]),
        struck_at_each_step(&run, &crashes, &old),
    ]
    .concat()
}

/// Runs with each of these request_results at a single step, for each step of the run with these troubles.
fn struck_at_each_step(run: &Run, request_results: &[RequestResult], troubles: &[Trouble]) -> Vec<Scenario> {
    let with = |more: Option<Trouble>| {
        let troubles = run.schedule.0.iter().chain(troubles).cloned().chain(more).collect();
        Run { schedule: Schedule(troubles), ..run.clone() }
    };
    let steps = with(None).run(Detail::Brief).steps;
    let struck = |step| {
        let scenario = move |request_result: &RequestResult| {
            (
                format!("ten pods, {request_result:?} at step {step}"),
                Trouble::Step { step, request_result: *request_result },
            )
        };
        request_results.iter().map(scenario)
    };
    (0..steps).flat_map(struck).map(|(name, trouble)| Scenario { name, run: with(Some(trouble)) }).collect()
}

/// Runs with each of these troubles at a single step, for each step of the run.
fn at_each_step<const N: usize>(run: &Run, troubles: impl Fn(u64) -> [(String, Trouble); N]) -> Vec<Scenario> {
    let mut scenarios = vec![];
    for step in 0..run.run(Detail::Brief).steps {
        for (name, trouble) in troubles(step) {
            let run = Run { schedule: Schedule(vec![trouble]), ..run.clone() };
            scenarios.push(Scenario { name: format!("{name} step {step}"), run });
        }
    }
    scenarios
}
