//! The command `nodewright-simulation`.

use std::{
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use clap::{Parser, value_parser};

use super::{
    campaign::{Reference, crashes, drains, edits, examine, in_parallel},
    check::check,
    generate,
    pools::has_pool,
    purity::transcribed,
    run::{Report, Run, Scenario},
    scenarios,
    shrink::shrink,
    trace::Detail,
};

/// How many events of a pool there are in a run whose plans are printed: configurations come, and Nodes come, follow and go.
const EVENTS_OF_POOL: usize = 24;
/// The number of lines of a trace to print.
const LINES: usize = 120;

/// Runs the managers in simulated clusters with faults, and checks the invariants.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[allow(clippy::struct_excessive_bools)] // flags
pub struct Arguments {
    /// The number of runs made from seeds. They follow the named runs and those with a fault at each single step of a scale-up,
    /// a rollout and a scale-down: more than a thousand.
    #[arg(long, default_value_t = 3_550, value_parser = value_parser!(u64).range(..=1_000_000_000))]
    runs: u64,
    /// The seed of the first run; the others follow.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(..=1 << 53))]
    first: u64,
    /// Continues for this many minutes, at most a week, however many runs that takes.
    #[arg(long, value_parser = value_parser!(u64).range(1..=7 * 24 * 60))]
    minutes: Option<u64>,
    /// Runs only this seed, and prints the whole trace.
    #[arg(long, conflicts_with_all = ["runs", "first", "minutes"])]
    seed: Option<u64>,
    /// Runs the run in this file, in the format that a failure prints (a line that begins with a brace), and prints the whole
    /// trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "first", "minutes", "seed"])]
    replay: Option<PathBuf>,
    /// Skips the runs that kill the manager, or let a user change something, at each single step of a scale-up, a rollout and a
    /// scale-down. The named scenarios run first in any case.
    #[arg(long)]
    no_crashes: bool,
    /// A named run that is made before the others.
    #[arg(long, value_name = "NAME", value_parser = named)]
    begin_with: Option<String>,
    /// Prints the whole trace of each run of a seed, one after the other, until a run breaks an invariant. The output is the
    /// same in each process.
    #[arg(long, conflicts_with_all = ["minutes", "seed", "replay", "fail_fast", "no_shrink", "jobs"])]
    traces: bool,
    /// Prints each plan of the runs, which are made twice and compared. The output is the same in each process.
    #[arg(long, conflicts_with_all = ["minutes", "seed", "replay", "fail_fast", "no_shrink", "jobs", "traces"])]
    plans: bool,
    /// Stops at the first violation.
    #[arg(long)]
    fail_fast: bool,
    /// Prints a violation as it was found, without a search for a shorter run.
    #[arg(long)]
    no_shrink: bool,
    /// The number of parallel runs; by default the number of processors.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
}

fn named(name: &str) -> Result<String, String> {
    let is_known = scenarios::all().iter().any(|scenario| scenario.name == name);
    is_known
        .then(|| name.to_owned())
        .ok_or_else(|| "no named run has this name: see e2e/simulation/src/scenarios".to_owned())
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A number of runs broke an invariant.
    #[error("{0} runs broke an invariant")]
    Broken(u64),
    /// The file cannot be read.
    #[error("failed to read {path}: {error}")]
    Read {
        /// The path of the file.
        path: String,
        /// The error of the read.
        error: io::Error,
    },
    /// The file does not contain a run.
    #[error("{path} does not hold a run, as JSON on one line, as a failure prints it: {error}")]
    NoRun {
        /// The path of the file.
        path: String,
        /// The parse error.
        error: serde_json::Error,
    },
    /// The run in the file is out of bounds.
    #[error("{path}: {what}")]
    Beyond {
        /// The path of the file.
        path: String,
        /// The field, and its allowed values.
        what: String,
    },
}

/// Runs the command. The last line gives the number of runs, the number that broke an invariant, and the duration.
pub fn run(arguments: &Arguments) -> Result<(), SimulateError> {
    if let Some(path) = &arguments.replay {
        return replay(&read(path)?);
    }
    match arguments.seed {
        Some(seed) => replay(&generate::run(seed)),
        None if arguments.traces => {
            (arguments.first..arguments.first + arguments.runs).try_for_each(|seed| replay(&generate::run(seed)))
        }
        None if arguments.plans => {
            let named = || scenarios::all().into_iter().map(|named| named.run);
            let mut of_pool = named().find(|run| has_pool(&run.schedule));
            if let Some(run) = &mut of_pool {
                run.schedule.0.truncate(EVENTS_OF_POOL);
            }
            let of_cloud_nodes = named().find(|run| run.cloud_nodes && !run.schedule.0.is_empty());
            let seeds = (arguments.first..arguments.first + arguments.runs).map(generate::run);
            of_pool.into_iter().chain(of_cloud_nodes).chain(seeds).try_for_each(|run| transcribe(&run))
        }
        None => many(arguments),
    }
}

/// Prints the plans of a run.
fn transcribe(run: &Run) -> Result<(), SimulateError> {
    let (_, transcript) = transcribed(|| run.run(Detail::Brief));
    transcript.plans.iter().for_each(|plan| println!("{plan}"));
    transcript
        .differences
        .iter()
        .for_each(|difference| println!("violation: a plan depends on more than its arguments: {difference}"));
    if transcript.differences.is_empty() { Ok(()) } else { Err(SimulateError::Broken(1)) }
}

/// Reads a run from the first line that begins with a brace.
fn read(path: &Path) -> Result<Run, SimulateError> {
    let file = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| SimulateError::Read { path: file(), error })?;
    let line = text.lines().find(|line| line.starts_with('{')).unwrap_or(&text);
    let run = serde_json::from_str(line).map_err(|error| SimulateError::NoRun { path: file(), error })?;
    check(&run).map_err(|what| SimulateError::Beyond { path: file(), what })?;
    Ok(run)
}

fn replay(run: &Run) -> Result<(), SimulateError> {
    println!("{}", serde_json::to_string(run).unwrap_or_default());
    let report = examine(run, &mut Reference::default(), Detail::Whole);
    report.trace.iter().for_each(|line| println!("{line}"));
    report.violations.iter().for_each(|violation| println!("violation: {violation}"));
    if report.missed > 0 {
        println!("{} of the requests that something was to become of were not made", report.missed);
    }
    println!(
        "{} steps in {:.0} simulated seconds, digest {:016x}",
        report.steps,
        report.simulated.as_secs_f64(),
        report.digest
    );
    if report.violations.is_empty() { Ok(()) } else { Err(SimulateError::Broken(1)) }
}

/// The source of runs: the given ones, then those made from seeds, until the limit.
struct Source<'a> {
    arguments: &'a Arguments,
    given: Vec<Scenario>,
    /// The number of given runs that were written by hand.
    named: u64,
    until: Option<Instant>,
    next: AtomicU64,
    /// The number of runs, and the number that broke an invariant.
    made: AtomicU64,
    broken: AtomicU64,
}

impl<'a> Source<'a> {
    fn new(arguments: &'a Arguments, begun: Instant) -> Self {
        let mut given = scenarios::all();
        given.sort_by_key(|scenario| arguments.begin_with.as_ref() != Some(&scenario.name));
        let named = given.len() as u64;
        if !arguments.no_crashes {
            let run = Run::up_roll_down(arguments.first);
            given.extend(crashes(&run));
            given.extend(edits(&run));
            given.extend(drains());
        }
        let until = arguments.minutes.map(|minutes| begun + Duration::from_secs(minutes * 60));
        let [next, made, broken] = [(); 3].map(|()| AtomicU64::new(0));
        Self { arguments, given, named, until, next, made, broken }
    }

    /// The next run, and its level of detail: scenarios written by hand run with the managers' whole log, in which no secret
    /// may appear.
    fn next(&self) -> Option<(Scenario, Detail)> {
        let (number, count) = (self.next.fetch_add(1, Relaxed), self.given.len() as u64);
        let is_over = match self.until {
            Some(until) => Instant::now() >= until,
            None => number >= count + self.arguments.runs,
        };
        if is_over || (self.arguments.fail_fast && self.broken.load(Relaxed) > 0) {
            return None;
        }
        let detail = if number < self.named { Detail::Explained } else { Detail::Brief };
        let given = usize::try_from(number).ok().and_then(|place| self.given.get(place)).cloned();
        let of_seed = || {
            let seed = self.arguments.first + number - count;
            Scenario { name: format!("seed {seed}"), run: generate::run(seed) }
        };
        Some((given.unwrap_or_else(of_seed), detail))
    }
}

fn many(arguments: &Arguments) -> Result<(), SimulateError> {
    let begun = Instant::now();
    let source = Source::new(arguments, begun);
    let work = || {
        let mut reference = Reference::default();
        while let Some((scenario, detail)) = source.next() {
            let report = examine(&scenario.run, &mut reference, detail);
            let made = source.made.fetch_add(1, Relaxed) + 1;
            if made.is_multiple_of(500) {
                eprintln!("{made} runs in {:.0} s", begun.elapsed().as_secs_f64());
            }
            if !report.violations.is_empty() {
                source.broken.fetch_add(1, Relaxed);
                tell(&scenario, &report, &mut reference, arguments.no_shrink);
            }
        }
    };
    in_parallel(arguments.jobs, work);
    let (made, broken) = (source.made.into_inner(), source.broken.into_inner());
    println!("{made} runs, {broken} violations, {:.0} s", begun.elapsed().as_secs_f64());
    if broken == 0 { Ok(()) } else { Err(SimulateError::Broken(broken)) }
}

/// Prints a run that broke an invariant, and the shortest one like it.
fn tell(Scenario { name, run }: &Scenario, report: &Report, reference: &mut Reference, as_found: bool) {
    let violations = report.violations.join("; ");
    eprintln!("{name}: {violations}");
    let (short, what) =
        if as_found { (run.clone(), "the run") } else { (shrink(run, reference), "the shortest like it") };
    let shown = examine(&short, reference, Detail::Explained);
    let skip = shown.trace.len().saturating_sub(LINES);
    println!(
        "{name}: {violations}\n{what}, for --replay:\n{}\n{}\nviolation: {}\n",
        serde_json::to_string(&short).unwrap_or_default(),
        shown.trace[skip..].join("\n"),
        shown.violations.join("; "),
    );
}
