//! `nodewright-bench writes`: the requests that a machine costs.

use std::time::Duration;

use nodewright_e2e_devcluster::DevclusterOptions;
use nodewright_e2e_process::command::Shutdown;

use crate::{
    costs::Costs,
    error::BenchError,
    measure::{Measured, print},
};

/// How many writes a creation may cost; see [`Apart`](super::costs::Apart) for what does not count.
const CREATION_BOUND: f64 = 7.0;
/// How many writes a deletion may cost, the evictions of the machine's pods apart.
const DELETION_BOUND: f64 = 9.0;

/// Counts the requests for each machine that is created and deleted, on a control plane of its own.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WritesArguments {
    /// How many machines are created, and then deleted
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    machines: u32,
    /// Seconds that each of both may take
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. An error if the bounds are exceeded.
pub(crate) async fn run(arguments: WritesArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: WritesArguments) -> Result<(), BenchError> {
    let (machines, timeout) = (arguments.machines as usize, Duration::from_secs(arguments.timeout));
    let options = DevclusterOptions { manager_flags: arguments.manager_flags, ..DevclusterOptions::default() };
    let mut measured = Measured::start(&options).await?;
    // The first machines may cost more, and what the set as a whole costs is not theirs.
    measured.scale(0, timeout, |_| ()).await?;
    let (mut creation, mut deletion) = (Costs::of(arguments.machines), Costs::of(arguments.machines));
    eprintln!("creating {machines} machines");
    measured.scale(machines, timeout, |entry| creation.add(&entry)).await?;
    eprintln!("deleting {machines} machines");
    measured.scale(0, timeout, |entry| deletion.add(&entry)).await?;
    measured.stop().await?;
    print(&format!("\nCreation of {machines} machines\n\n{creation}"))?;
    print(&format!("Deletion of {machines} machines\n\n{deletion}"))?;
    let (created, deleted) = (creation.writes(), deletion.writes());
    print(&format!("writes per creation: {created:.2} (bound {CREATION_BOUND})"))?;
    print(&format!("writes per deletion: {deleted:.2} (bound {DELETION_BOUND} + pods)"))?;
    if created > CREATION_BOUND || deleted > DELETION_BOUND {
        return Err(BenchError::Failed("machines cost more writes than they may".to_owned()));
    }
    Ok(())
}
