//! `nodewright-bench fleet`: what many machines cost, and whether they come out exact.
//!
//! One MachineDeployment is scaled from 0 to N and back; where N is large, to a thousand and back before, to compare with.
//! The surroundings are those that other managers were measured in, see [`goals`]: etcd and the API server alone, a cloud
//! that takes 100 ms to create a VM whose node registers two seconds later, no pods, and kubelets that are silent once they
//! are Ready.
//!
//! Nothing of this disturbs what is measured: while machines come and go, one MachineDeployment and a number of the
//! cloud are looked at now and then; the audit log is read, and the machines are listed, when all is quiet again.

mod goals;
mod inventory;
mod scale_run;

use std::time::Duration;

use self::{
    goals::{Goal, REFERENCE, goals, others, verdicts},
    inventory::Inventory,
    scale_run::ScaleRun,
};
use nodewright_e2e_devcluster::DevclusterOptions;
use nodewright_e2e_process::command::Shutdown;

use crate::{
    error::BenchError,
    measure::{Measured, print},
};

/// How the cloud and its kubelets behave.
const CLOUD_FLAGS: [&str; 5] =
    ["--create-latency-ms=100", "--boot-seconds=2", "--boot-jitter=0", "--ready-seconds=0", "--no-heartbeats"];
/// How long each way may take, unless the caller says it: so long, and so much more for each machine.
const PATIENCE: (Duration, Duration) = (Duration::from_mins(2), Duration::from_millis(300));

/// Creates and deletes machines on a control plane of its own: time, requests, processor time, memory, exactness.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArguments {
    /// How many machines are created, and then deleted
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    machines: u32,
    /// Seconds that each of both may take; by default two minutes, and 0.3 for each machine
    #[arg(long)]
    timeout: Option<u64>,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

impl FleetArguments {
    fn timeout(&self) -> Duration {
        self.timeout.map_or(PATIENCE.0 + PATIENCE.1 * self.machines, Duration::from_secs)
    }

    fn options(&self) -> DevclusterOptions {
        DevclusterOptions {
            manager_flags: self.manager_flags.clone(),
            cloud_flags: CLOUD_FLAGS.map(str::to_owned).to_vec(),
            bare: true,
            ..DevclusterOptions::default()
        }
    }
}

/// Runs the command. An error if a goal is missed.
pub(crate) async fn run(arguments: FleetArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: FleetArguments) -> Result<(), BenchError> {
    let (machines, timeout) = (arguments.machines, arguments.timeout());
    let mut measured = Measured::start(&arguments.options()).await?;
    // The first machines may cost more, and what the set as a whole costs is not theirs.
    measured.scale(0, timeout, |_| ()).await?;
    let reference = reference(&mut measured, machines, timeout).await?;
    let up = ScaleRun::go(&mut measured, machines, machines, timeout).await?;
    print(&format!("\n0 -> {machines}\n\n{up}"))?;
    let there = Inventory::take(&measured).await?;
    let down = ScaleRun::go(&mut measured, 0, machines, timeout).await?;
    print(&format!("{machines} -> 0\n\n{down}"))?;
    let left = Inventory::take(&measured).await?;
    measured.stop().await?;
    let problems = [there.problems(machines as usize), left.problems(0)].concat();
    for problem in &problems {
        print(problem)?;
    }
    judge(&goals(machines, &up, &down, problems.len(), reference))
}

/// The processor time for the reference fleet, that a larger one is compared with: by the same manager on the same computer.
async fn reference(measured: &mut Measured, machines: u32, timeout: Duration) -> Result<Option<Duration>, BenchError> {
    if machines <= REFERENCE {
        return Ok(None);
    }
    let up = ScaleRun::go(measured, REFERENCE, REFERENCE, timeout).await?;
    print(&format!("\n0 -> {REFERENCE}, to compare with\n\n{up}"))?;
    ScaleRun::go(measured, 0, REFERENCE, timeout).await?;
    Ok(Some(up.processor))
}

fn judge(goals: &[Goal]) -> Result<(), BenchError> {
    print(&format!("{}\n{}", verdicts(goals), others()))?;
    let missed: Vec<_> = goals.iter().filter(|goal| !goal.is_met()).map(Goal::name).collect();
    if missed.is_empty() {
        return print("all goals are met");
    }
    Err(BenchError::Failed(format!("goals were missed: {}", missed.join("; "))))
}
