//! `nodewright-bench steady`: a fleet at rest causes no writes.

use std::time::{Duration, Instant};

use nodewright_e2e_lab::{control_plane::audit::Entry, devcluster::DevclusterOptions, process::command::Shutdown};

use crate::{
    error::BenchError,
    measure::{Measured, is_counted_write, print},
};

/// How long the machines may take until they run.
const START_TIMEOUT: Duration = Duration::from_mins(5);
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Check that a fleet at rest causes no write, except for the renewal of Leases.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SteadyArguments {
    /// Number of machines
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=500))]
    machines: u32,
    /// Minutes to watch. Kubelets post the status of their nodes every five minutes
    #[arg(long, default_value_t = 11)]
    minutes: u64,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if anything was written.
pub(crate) async fn run(arguments: SteadyArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(watch(arguments))).await.unwrap_or(Ok(()))
}

async fn watch(arguments: SteadyArguments) -> Result<(), BenchError> {
    let options = DevclusterOptions { manager_flags: arguments.manager_flags, ..DevclusterOptions::default() };
    let mut measured: Measured = Measured::start(&options).await?;
    measured.scale(arguments.machines as usize, START_TIMEOUT, |_| ()).await?;
    let (machines, minutes) = (arguments.machines, arguments.minutes);
    print(&format!("{machines} machines are Running; watching for {minutes} minutes"))?;
    let (since, mut writes, mut renewals) = (Instant::now(), 0_usize, 0_usize);
    for minute in 1..=minutes {
        while since.elapsed() < Duration::from_secs(60 * minute) {
            tokio::time::sleep(POLL_INTERVAL).await;
            let entries = measured.read()?;
            renewals += entries.iter().filter(|entry| entry.resource == "leases").count();
            for entry in entries.iter().filter(|entry| is_counted_write(entry)) {
                writes += 1;
                print(&line(entry))?;
            }
        }
        eprintln!("{minute} of {minutes} minutes: {writes} writes, and {renewals} renewals of Leases by all clients");
    }
    measured.stop().await?;
    if writes > 0 {
        return Err(BenchError::Failed(format!("{writes} writes at rest; there should be none")));
    }
    print(&format!("no write in {minutes} minutes, except for the renewal of Leases"))
}

fn line(entry: &Entry) -> String {
    let Entry { received, user_agent, verb, uri, code, .. } = entry;
    format!("{received}  {user_agent}  {verb} {uri}  {code}")
}
