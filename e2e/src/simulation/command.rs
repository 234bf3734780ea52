//! `nodewright-e2e simulate`.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;

use super::{
    campaign::{Reference, crashes, edits, examine, up_roll_down},
    generate,
    run::{Report, Run},
    scenarios,
    shrink::shrink,
    trace::Detail,
};

/// How many lines of a trace are shown.
const LINES: usize = 120;

/// Runs the managers in simulated clusters in which everything goes wrong, and looks whether an invariant breaks.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // flags
pub struct Arguments {
    /// How many runs are made of seeds, after those that have names and those that take a rise, a roll and a fall apart step
    /// by step: more than a thousand.
    #[arg(long, default_value_t = 4_000)]
    runs: u64,
    /// The seed of the first run; the others follow.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Goes on for so many minutes, however many runs that are.
    #[arg(long)]
    minutes: Option<u64>,
    /// Runs this seed alone, and shows all that happens.
    #[arg(long, conflicts_with_all = ["runs", "first", "minutes"])]
    seed: Option<u64>,
    /// Runs what stands in this file, as a failure prints it, and shows all that happens.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "first", "minutes", "seed"])]
    replay: Option<PathBuf>,
    /// Does without the runs in which the manager is killed, or a user changes something, at each single step of a rise, a
    /// roll and a fall. Scenarios that have names are run first in any case.
    #[arg(long)]
    no_crashes: bool,
    /// Shows all that happens in each run, one run after the other: the same in each process.
    #[arg(long)]
    traces: bool,
    /// Ends with the first violation.
    #[arg(long)]
    fail_fast: bool,
    /// Shows a violation as it was found: no shorter run like it is looked for.
    #[arg(long)]
    no_shrink: bool,
    /// How many runs are made at once; as many as there are processors when absent.
    #[arg(long)]
    jobs: Option<usize>,
}

/// Why it ended badly.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An invariant was broken.
    #[error("{0} runs broke an invariant")]
    Broken(usize),
    /// The file cannot be read.
    #[error("failed to read {path}: {error}")]
    Replay {
        /// Which file.
        path: String,
        /// Why not.
        error: String,
    },
}

/// Runs the command; the last line says how many runs there were, how many broke an invariant, and how long it took.
pub fn run(arguments: &Arguments) -> Result<(), SimulateError> {
    if let Some(path) = &arguments.replay {
        let broken = |error: String| SimulateError::Replay { path: path.display().to_string(), error };
        let text = std::fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
        return replay(&serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?);
    }
    match arguments.seed {
        Some(seed) => replay(&generate::run(seed)),
        None if arguments.traces => {
            (arguments.first..arguments.first + arguments.runs).try_for_each(|seed| replay(&generate::run(seed)))
        }
        None => many(arguments),
    }
}

fn replay(run: &Run) -> Result<(), SimulateError> {
    println!("{}", serde_json::to_string(run).unwrap_or_default());
    let report = examine(run, &mut Reference::default(), Detail::Whole);
    report.trace.iter().for_each(|line| println!("{line}"));
    report.violations.iter().for_each(|violation| println!("violation: {violation}"));
    println!(
        "{} steps in {:.0} simulated seconds, digest {:016x}",
        report.steps,
        report.simulated.as_secs_f64(),
        report.digest
    );
    if report.violations.is_empty() { Ok(()) } else { Err(SimulateError::Broken(1)) }
}

fn many(arguments: &Arguments) -> Result<(), SimulateError> {
    let begun = Instant::now();
    let mut given: Vec<Run> = scenarios::all().into_iter().map(|scenario| scenario.run).collect();
    if !arguments.no_crashes {
        let run = up_roll_down(arguments.first);
        given.extend(crashes(&run));
        given.extend(edits(&run));
    }
    let count = given.len() as u64;
    let until = arguments.minutes.map(|minutes| begun + Duration::from_secs(minutes * 60));
    let (next, made, failures) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(vec![]));
    let is_over = |number: u64| {
        let failed = !failures.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        (arguments.fail_fast && failed)
            || match until {
                Some(until) => Instant::now() >= until,
                None => number >= count + arguments.runs,
            }
    };
    let work = || {
        let mut reference = Reference::default();
        loop {
            let number = next.fetch_add(1, Relaxed);
            if is_over(number) {
                return;
            }
            let place = usize::try_from(number).unwrap_or(usize::MAX);
            let made_of = || generate::run(arguments.first + number - count);
            let run = given.get(place).cloned().unwrap_or_else(made_of);
            let report = examine(&run, &mut reference, Detail::Brief);
            if made.fetch_add(1, Relaxed) % 500 == 499 {
                eprintln!("{} runs in {:.0} s", number + 1, begun.elapsed().as_secs_f64());
            }
            if !report.violations.is_empty() {
                tell(&run, &report, &mut reference, arguments.no_shrink);
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(run.seed);
            }
        }
    };
    let jobs = arguments.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into));
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let (made, broken) = (made.into_inner(), failures.into_inner().unwrap_or_else(PoisonError::into_inner).len());
    println!("{made} runs, {broken} violations, {:.0} s", begun.elapsed().as_secs_f64());
    if broken == 0 { Ok(()) } else { Err(SimulateError::Broken(broken)) }
}

/// Tells of a run that broke an invariant, and of the shortest one like it.
fn tell(run: &Run, report: &Report, reference: &mut Reference, as_found: bool) {
    eprintln!("seed {}: {}", run.seed, report.violations.join("; "));
    let short = if as_found { run.clone() } else { shrink(run, reference) };
    let shown = examine(&short, reference, Detail::Explained);
    let skip = shown.trace.len().saturating_sub(LINES);
    let lines = shown.trace[skip..].join("\n");
    println!(
        "seed {}: {}\nshortest: {}\n{lines}\nviolation: {}\n",
        run.seed,
        report.violations.join("; "),
        serde_json::to_string(&short).unwrap_or_default(),
        shown.violations.join("; "),
    );
}
