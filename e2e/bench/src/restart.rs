//! `nodewright-bench restart`: how soon a manager that starts beside a large fleet decides, what it writes, and what it weighs.
//!
//! A fleet is created as in [`fleet`]. Then the manager is killed and started twice: once with nothing to do, and once after
//! another machine was asked for. It has to wait for the Lease of the killed one, and has listed all objects by then.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodewright_e2e_lab::{
    control_plane::audit::Entry,
    devcluster::{NAMESPACE, machines::wait_for_running},
    process::command::Shutdown,
};

use crate::{
    error::BenchError,
    fleet::{
        self,
        goals::Goal,
        scale_run::{Processes, ScaleRun, memory, pids},
    },
    measure::{Measured, is_counted_write, print},
    usage::mebibytes,
};

/// The Lease of the controllers that create Machines.
const LEASE: &str = "machine-controller-manager";
/// How long a manager may take to get it. The killed one holds it for 15 s.
const LEASE_TIMEOUT: Duration = Duration::from_mins(2);
/// How long a manager with nothing to do is watched.
const REST: Duration = Duration::from_mins(1);
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Kill the manager of many machines and start it again: time until it decides, writes, memory.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RestartArguments {
    /// Number of machines, of which the last is created at the second start
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    machines: u32,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a goal is missed.
pub(crate) async fn run(arguments: RestartArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: RestartArguments) -> Result<(), BenchError> {
    // A deployment has at most 10,000.
    let (machines, all) = (arguments.machines - 1, arguments.machines as usize);
    let mut measured: Measured = Measured::start(&fleet::options(arguments.manager_flags)).await?;
    let up = ScaleRun::measure(&mut measured, machines, machines, fleet::timeout(machines)).await?;
    print(&format!("0 -> {machines}\n\n{up}"))?;
    let at_rest = at_rest(&mut measured).await?;
    print(&format!("at rest: {:.1} MiB", mebibytes(at_rest)))?;

    let mut requests = vec![];
    let leads = restart(&mut measured, &mut requests, None).await?;
    tokio::time::sleep(REST).await;
    requests.extend(measured.read()?);
    let written: Vec<_> = requests.iter().filter(|entry| is_counted_write(entry)).collect();
    for Entry { verb, uri, code, .. } in &written {
        print(&format!("written: {verb} {uri} {code}"))?;
    }
    let writes = written.len() as u64;
    let peak = memory(&mut measured)?;
    print(&format!(
        "started with nothing to do: {writes} writes, {:.1} MiB at the peak; led since {leads}",
        mebibytes(peak)
    ))?;

    requests.clear();
    let leads = restart(&mut measured, &mut requests, Some(all)).await?;
    let decided = await_entry(&mut measured, &mut requests, "creates a Machine", is_creation).await?.received;
    let waited = decided.duration_since(leads.min(decided)).as_secs_f64();
    print(&format!("started with a machine to create: it did so {waited:.2} s after it led"))?;
    wait_for_running(&measured.client(), NAMESPACE, all, LEASE_TIMEOUT).await?;
    measured.stop().await?;
    fleet::check(&[
        Goal::at_most("seconds from the Lease to the first Machine", 5.0, waited),
        Goal::exactly("writes with nothing to do", 0_u64, writes),
        Goal::at_most("peak memory, relative to that at rest", 1.1, mebibytes(peak) / mebibytes(at_rest)),
    ])
}

/// The memory of the manager while nothing happens, in bytes.
async fn at_rest(measured: &mut Measured) -> Result<u64, BenchError> {
    let manager = Processes::start(pids(measured)?)?;
    tokio::time::sleep(REST).await;
    Ok(manager.usage()?.peak_memory)
}

/// Kills the manager, sets the number of machines, and starts the manager. Returns when it led; the requests since then are in
/// `requests`.
async fn restart(
    measured: &mut Measured,
    requests: &mut Vec<Entry>,
    machines: Option<usize>,
) -> Result<Timestamp, BenchError> {
    measured.manager().kill_9();
    if let Some(machines) = machines {
        measured.set_replicas(machines).await?;
    }
    // What the killed one has sent. It renews its Lease every two seconds.
    tokio::time::sleep(POLL_INTERVAL).await;
    measured.read()?;
    measured.manager().start_again().await?;
    let is_lead = |entry: &Entry| {
        let is_write = ["update", "patch"].contains(&entry.verb.as_str()) && entry.code == 200;
        entry.resource == "leases" && entry.name == LEASE && is_write
    };
    Ok(await_entry(measured, requests, "gets its Lease", is_lead).await?.answered)
}

fn is_creation(entry: &Entry) -> bool {
    entry.resource == "machines" && entry.subresource.is_empty() && entry.code == 201
}

/// The first request of this kind. It and those before it are taken out of `requests`.
async fn await_entry(
    measured: &mut Measured,
    requests: &mut Vec<Entry>,
    what: &str,
    is_it: impl Fn(&Entry) -> bool,
) -> Result<Entry, BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < LEASE_TIMEOUT {
        requests.extend(measured.read()?);
        let found = requests.iter().position(&is_it).and_then(|at| requests.drain(..=at).next_back());
        if let Some(entry) = found {
            return Ok(entry);
        }
        measured.manager().check()?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(BenchError::Failed(format!("no manager {what} within {LEASE_TIMEOUT:?}")))
}
