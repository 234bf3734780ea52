//! The command `nodewright-simulation`.

use std::{
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, value_parser};

use super::{
    campaign::{Reference, crashes, edits, examine},
    check::check,
    generate,
    run::{Report, Run, Scenario},
    scenarios,
    shrink::shrink,
    trace::Detail,
};

/// How many lines of a trace are shown.
const LINES: usize = 120;

/// Runs the managers in simulated clusters in which everything goes wrong, and looks whether an invariant breaks.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[allow(clippy::struct_excessive_bools)] // flags
pub struct Arguments {
    /// How many runs are made of seeds, after those that have names and those that take a rise, a roll and a fall apart step
    /// by step: more than a thousand.
    #[arg(long, default_value_t = 3_550, value_parser = value_parser!(u64).range(..=1_000_000_000))]
    runs: u64,
    /// The seed of the first run; the others follow.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(..=1 << 53))]
    first: u64,
    /// Goes on for so many minutes, at most a week, however many runs that are.
    #[arg(long, value_parser = value_parser!(u64).range(1..=7 * 24 * 60))]
    minutes: Option<u64>,
    /// Runs this seed alone, and shows all that happens.
    #[arg(long, conflicts_with_all = ["runs", "first", "minutes"])]
    seed: Option<u64>,
    /// Runs what stands in this file, as a failure prints it (a line that begins with a brace), and shows all that happens.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "first", "minutes", "seed"])]
    replay: Option<PathBuf>,
    /// Does without the runs in which the manager is killed, or a user changes something, at each single step of a rise, a
    /// roll and a fall. Scenarios that have names are run first in any case.
    #[arg(long)]
    no_crashes: bool,
    /// Shows all that happens in each run of a seed, one after the other until one breaks an invariant: the same in each
    /// process.
    #[arg(long, conflicts_with_all = ["minutes", "seed", "replay", "fail_fast", "no_shrink", "jobs"])]
    traces: bool,
    /// Ends with the first violation.
    #[arg(long)]
    fail_fast: bool,
    /// Shows a violation as it was found: no shorter run like it is looked for.
    #[arg(long)]
    no_shrink: bool,
    /// How many runs are made at once; as many as there are processors when absent.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
}

/// Why it ended badly.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An invariant was broken.
    #[error("{0} runs broke an invariant")]
    Broken(u64),
    /// The file cannot be read.
    #[error("failed to read {path}: {error}")]
    Read {
        /// Which file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// The file holds no run.
    #[error("{path} does not hold a run, as JSON on one line, as a failure prints it: {error}")]
    NoRun {
        /// Which file.
        path: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// The file holds a run that is not allowed.
    #[error("{path}: {what}")]
    Beyond {
        /// Which file.
        path: String,
        /// The field, and what is allowed.
        what: String,
    },
}

/// Runs the command; the last line says how many runs there were, how many broke an invariant, and how long it took.
pub fn run(arguments: &Arguments) -> Result<(), SimulateError> {
    if let Some(path) = &arguments.replay {
        return replay(&read(path)?);
    }
    match arguments.seed {
        Some(seed) => replay(&generate::run(seed)),
        None if arguments.traces => {
            (arguments.first..arguments.first + arguments.runs).try_for_each(|seed| replay(&generate::run(seed)))
        }
        None => many(arguments),
    }
}

/// Reads a run: what stands on the first line that begins with a brace.
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

/// Where runs come from: those that are given, then those of seeds, as long as there is to be one more.
struct Source<'a> {
    arguments: &'a Arguments,
    given: Vec<Scenario>,
    /// How many of those somebody has thought of.
    named: u64,
    until: Option<Instant>,
    next: AtomicU64,
    /// How many runs were made, and how many of them broke an invariant.
    made: AtomicU64,
    broken: AtomicU64,
}

impl<'a> Source<'a> {
    fn new(arguments: &'a Arguments, begun: Instant) -> Self {
        let mut given = scenarios::all();
        let named = given.len() as u64;
        if !arguments.no_crashes {
            let run = Run::up_roll_down(arguments.first);
            given.extend(crashes(&run));
            given.extend(edits(&run));
        }
        let until = arguments.minutes.map(|minutes| begun + Duration::from_secs(minutes * 60));
        let [next, made, broken] = [(); 3].map(|()| AtomicU64::new(0));
        Self { arguments, given, named, until, next, made, broken }
    }

    /// The next run, and how much of it is to be told: scenarios that somebody has thought of are made with all that
    /// managers log, in which no secret may stand.
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
    let jobs = arguments.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, Into::into);
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let (made, broken) = (source.made.into_inner(), source.broken.into_inner());
    println!("{made} runs, {broken} violations, {:.0} s", begun.elapsed().as_secs_f64());
    if broken == 0 { Ok(()) } else { Err(SimulateError::Broken(broken)) }
}

/// Tells of a run that broke an invariant, and of the shortest one like it.
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
