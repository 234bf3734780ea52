//! `nodewright-bench instructions`: the instructions of a manager at work in a simulated cluster.
//!
//! The work is that of the budget of counts, `e2e/simulation/tests/budget`: 100 machines are created, rest, are replaced, drained
//! and deleted, in one thread on simulated time. It is built for release and runs under callgrind, which counts instructions.
//! Unlike time, they hardly depend on the load of the computer.
//!
//! The stand-ins (the simulated API server, cloud, kubelets and controllers of the workload) run in the same thread. They work in
//! one function of `nodewright_testing::stand_in`, at whose beginning and end callgrind stops and begins to count. A second
//! run counts them alone.
//!
//! # Caveats
//! * An instruction belongs to the crate in whose source it stands: code that is inlined counts for the crate that it comes from.
//!   So the rows of controllers hold their own code, not the decoding or the allocations that it causes.
//! * A plan has a number of its own only where the compiler left it a function; then it includes all that the function calls.
//! * The order of hash maps changes from run to run, and some instructions with it.
//! * Not counted: TLS, HTTP, logs and the process of a driver, as in the budget. Counted: the counting of allocations.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
};

use nodewright_e2e_lab::{
    devcluster::table::Table,
    process::{ProcessError, command::Shutdown, repository},
};
use serde_json::Value;

use crate::{callgrind::Profile, error::BenchError, measure::print};

/// The test that does the work.
const TEST: &str = "instructions_of_100_machines";
/// In which function stand-ins work, with a pattern for its type.
const STAND_INS: &str = "--toggle-collect=nodewright_testing::stand_in::outermost*";
/// Rows of crates that are shown.
const SHOWN: usize = 30;

/// Count the instructions of a manager in a simulated cluster, by crate and controller; needs valgrind.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InstructionsArguments {
    /// Where the files of callgrind stay, for `callgrind_annotate` [default: a temporary directory]
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// Runs the command.
pub(crate) async fn run(arguments: InstructionsArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: InstructionsArguments) -> Result<(), BenchError> {
    let temporary = tempfile::tempdir().map_err(ProcessError::file("create", "a temporary directory"))?;
    let directory = arguments.directory.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory).map_err(ProcessError::file("create", directory))?;
    eprintln!("building the test for release: some minutes at first");
    let program = build().await?;
    eprintln!("running {} under callgrind, twice at once", program.display());
    let (manager, stand_ins) = tokio::try_join!(
        count(&program, "yes", directory.join("callgrind.manager")),
        count(&program, "no", directory.join("callgrind.stand-ins"))
    )?;
    print(&report(&manager, &stand_ins))
}

/// Builds the test for release, and returns its executable.
async fn build() -> Result<PathBuf, BenchError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = tokio::process::Command::new(&cargo)
        .current_dir(repository())
        .args(["test", "--locked", "--release", "--no-run", "--message-format=json"])
        .args(["--package", "nodewright-e2e-simulation", "--test", "budget"])
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| ProcessError::Spawn { program: cargo.into(), source })?;
    let [built, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    executable(&built).ok_or_else(|| BenchError::Failed(format!("cargo built no test of that name:\n{errors}")))
}

/// The test's executable, from the messages of cargo.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_test = messages.filter(|message| message["target"]["name"] == "budget");
    of_test.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

/// Runs the test under callgrind. `at_start` says whether it counts outside of stand-ins, or within them.
async fn count(program: &Path, at_start: &str, out: PathBuf) -> Result<Profile, BenchError> {
    let output = tokio::process::Command::new("valgrind")
        // The pattern switches counting off at the start, so what says otherwise comes after it.
        .args(["--tool=callgrind", STAND_INS, &format!("--collect-atstart={at_start}")])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--ignored", "--exact", TEST, "--test-threads=1"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => BenchError::Failed("valgrind is missing: install valgrind".to_owned()),
            _ => ProcessError::Spawn { program: "valgrind".into(), source }.into(),
        })?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains("1 passed") {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(BenchError::Failed(format!("the test failed under valgrind:\n{said}\n{errors}")));
    }
    let file = std::fs::File::open(&out).map_err(ProcessError::file("open", &out))?;
    Ok(Profile::read(io::BufReader::new(file)).map_err(ProcessError::file("read", out))?)
}

#[allow(clippy::cast_precision_loss, reason = "shares and millions need no more digits")]
fn millions(instructions: u64) -> f64 {
    instructions as f64 / 1e6
}

fn report(manager: &Profile, stand_ins: &Profile) -> String {
    let [manager_total, stand_ins_total] = [manager, stand_ins].map(|profile| millions(profile.total()));
    let mut crates = Table::new(["SOURCE", "MANAGER, MILLIONS", "%", "STAND-INS, MILLIONS"]);
    let (of_manager, of_stand_ins) = (manager.by_crate(), stand_ins.by_crate());
    let mut rows: Vec<_> = of_manager.iter().collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (name, count) in rows.iter().take(SHOWN) {
        let (ours, theirs) = (millions(**count), millions(of_stand_ins.get(*name).copied().unwrap_or(0)));
        let cells = [ours, ours * 100.0 / manager_total, theirs].map(|number| format!("{number:.1}"));
        crates.add([name, &cells[0], &cells[1], &cells[2]]);
    }
    let mut rooms = Table::new(["CONTROLLER", "OWN CODE, MILLIONS", "PLANS WITH ALL THEY CALL, MILLIONS"]);
    for (name, count) in manager.by_room() {
        let plan = manager.plans().get(&name).map_or(String::new(), |count| format!("{:.2}", millions(*count)));
        rooms.add([&name, &format!("{:.2}", millions(count)), &plan]);
    }
    format!(
        "{crates}\n{rooms}\nmanager: {manager_total:.1} million instructions\n\
         stand-ins, not the manager's: {stand_ins_total:.1} million, {:.1} % of all\n",
        stand_ins_total * 100.0 / (manager_total + stand_ins_total)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_that_of_the_test() {
        let messages = "{\"target\":{\"name\":\"serde\"},\"executable\":null}\nno json\n\
            {\"target\":{\"name\":\"budget\"},\"executable\":\"/t/budget-1\"}\n{\"reason\":\"build-finished\"}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/budget-1")));
        assert_eq!(executable("{\"target\":{\"name\":\"budget\"},\"executable\":null}"), None);
    }

    #[test]
    fn the_share_of_stand_ins_is_that_of_both_runs() {
        let profile = |instructions: u64| {
            let text = format!("events: Ir\nfl=(1) controllers/src/machine/plan.rs\nfn=(1) plan\n1 {instructions}\n");
            Profile::read(text.as_bytes()).unwrap()
        };
        let text = report(&profile(30_000_000), &profile(10_000_000));
        assert!(text.contains("manager: 30.0 million") && text.contains("10.0 million, 25.0 % of all"), "{text}");
        let row = |words: &str| text.lines().any(|line| line.split_whitespace().eq(words.split(' ')));
        assert!(row("controllers 30.0 100.0 10.0") && row("machine 30.00"), "{text}");
    }
}
