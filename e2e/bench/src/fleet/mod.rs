//! `nodewright-bench fleet`: time, CPU, memory and requests of many machines, and whether their number is exact.
//!
//! Scales one MachineDeployment from 0 to N and back. If N is large, first to a thousand and back, for comparison. The
//! environment is the one in which other managers were measured, see [`goals`]: only etcd and the API server, a cloud that
//! takes 100 ms to create a VM, nodes that register two seconds later, no pods, and kubelets that report nothing once they
//! are Ready.
//!
//! With a peer, the other manager does the same before, on a control plane and a cloud of its own with the same settings, see
//! [`peer`].
//!
//! The driver is a process of its own. Goals are for the manager; what the driver takes is printed beside it, and counts in the
//! comparison with a peer, whose driver is part of it.
//!
//! The measurement disturbs little: while machines come and go, it polls one MachineDeployment and the statistics of the
//! cloud. It reads the audit log and lists machines when nothing is written any more.

pub(crate) mod goals;
mod inventory;
mod peer;
pub(crate) mod scale_run;

use std::time::Duration;

use self::{
    goals::{Goal, REFERENCE, goals, others, processor_goal, results},
    inventory::Inventory,
    peer::Peer,
    scale_run::{ScaleRun, memory, resident_now},
};
use nodewright_e2e_lab::{
    devcluster::{DevclusterOptions, ManagerProcess, McmProcesses},
    process::command::Shutdown,
};

use crate::{
    error::BenchError,
    measure::{Measurable, Measured, print},
    usage::mebibytes,
};

/// The behavior of the cloud and its kubelets.
const CLOUD_FLAGS: [&str; 5] =
    ["--create-latency-ms=100", "--boot-seconds=2", "--boot-jitter=0", "--ready-seconds=0", "--no-heartbeats"];
/// From the order to create a VM until its kubelet registers the Node, by these flags.
pub(crate) const BOOT: Duration = Duration::from_millis(2_100);
/// The default timeout of one scale run: a fixed part, and a part per machine.
const TIMEOUT: (Duration, Duration) = (Duration::from_mins(2), Duration::from_millis(300));

/// How much more time the peer has.
const PEER_PATIENCE: u32 = 4;

/// Measure the creation and deletion of many machines: time, requests, CPU, memory, exact numbers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArguments {
    /// Number of machines to create and delete
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    machines: u32,
    /// Seconds that the creation and the deletion may take, each [default: 120, and 0.3 per machine]
    #[arg(long)]
    timeout: Option<u64>,
    /// Another manager that does the same first, for comparison
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Requests per second that each process of the peer may send; machine-controller-manager's default is 20
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    peer_qps: u32,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

impl FleetArguments {
    fn timeout(&self) -> Duration {
        self.timeout.map_or_else(|| timeout(self.machines), Duration::from_secs)
    }
}

/// The default timeout of a scale run.
pub(crate) fn timeout(machines: u32) -> Duration {
    TIMEOUT.0 + TIMEOUT.1 * machines
}

/// The devcluster that is measured.
pub(crate) fn options(manager_flags: Vec<String>) -> DevclusterOptions {
    DevclusterOptions {
        manager_flags,
        cloud_flags: CLOUD_FLAGS.map(str::to_owned).to_vec(),
        bare: true,
        ..DevclusterOptions::default()
    }
}

/// Runs the command. Fails if a goal is missed.
pub(crate) async fn run(arguments: FleetArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: FleetArguments) -> Result<(), BenchError> {
    let machines = arguments.machines;
    let theirs = match arguments.peer {
        Some(Peer::Mcm) => {
            let options = self::options(peer::flags(arguments.peer_qps));
            print("machine-controller-manager\n")?;
            let timeout = arguments.timeout() * PEER_PATIENCE;
            Some(Box::pin(Fleet::measure::<McmProcesses>(&options, machines, timeout)).await?)
        }
        None => None,
    };
    print("Nodewright\n")?;
    let options = self::options(arguments.manager_flags.clone());
    let ours = Box::pin(Fleet::measure::<ManagerProcess>(&options, machines, arguments.timeout())).await?;
    let mut goals = goals(machines, &ours.up, &ours.down, ours.problems);
    match &theirs {
        Some(theirs) => {
            print(&peer::comparison(machines, arguments.peer_qps, &ours, theirs))?;
            goals.extend(peer::goals(machines, &ours, theirs));
        }
        None => goals.extend(ours.reference.map(|reference| processor_goal(machines, &ours.up, reference))),
    }
    evaluate(&goals, theirs.is_none())
}

/// What one manager needed for a fleet.
struct Fleet {
    up: ScaleRun,
    down: ScaleRun,
    /// How many machines, VMs and nodes were wrong.
    problems: usize,
    /// See [`reference`].
    reference: Option<Duration>,
}

impl Fleet {
    /// Starts a devcluster, scales from 0 to `machines` and back, and prints what that took.
    async fn measure<C: Measurable>(
        options: &DevclusterOptions,
        machines: u32,
        timeout: Duration,
    ) -> Result<Self, BenchError> {
        let mut measured: Measured<C> = Measured::start(options).await?;
        // Leave out the first machines, and the requests that do not depend on the number of machines.
        measured.scale(0, timeout, |_| ()).await?;
        let (memory, resident) = (memory(&mut measured)?, resident_now(&mut measured)?);
        print(&format!("started, idle: {:.1} MiB at the peak, {resident}", mebibytes(memory)))?;
        let reference = reference(&mut measured, machines, timeout).await?;
        let up = ScaleRun::measure(&mut measured, machines, machines, timeout).await?;
        print(&format!("\n0 -> {machines}\n\n{up}"))?;
        let full = Inventory::take(&measured).await?;
        let down = ScaleRun::measure(&mut measured, 0, machines, timeout).await?;
        print(&format!("{machines} -> 0\n\n{down}"))?;
        let empty = Inventory::take(&measured).await?;
        measured.stop().await?;
        let problems = [full.problems(machines as usize), empty.problems(0)].concat();
        for problem in &problems {
            print(problem)?;
        }
        Ok(Self { up, down, problems: problems.len(), reference })
    }
}

/// The processor time for the reference fleet, by the same manager on the same computer. `None` for fleets of that size or
/// smaller.
async fn reference<C: Measurable>(
    measured: &mut Measured<C>,
    machines: u32,
    timeout: Duration,
) -> Result<Option<Duration>, BenchError> {
    if machines <= REFERENCE {
        return Ok(None);
    }
    let up = ScaleRun::measure(measured, REFERENCE, REFERENCE, timeout).await?;
    print(&format!("\n0 -> {REFERENCE}, for comparison\n\n{up}"))?;
    ScaleRun::measure(measured, 0, REFERENCE, timeout).await?;
    Ok(Some(up.controllers.processor))
}

/// Prints other managers as they were measured before, unless one was measured in this run, and the results.
fn evaluate(goals: &[Goal], with_others: bool) -> Result<(), BenchError> {
    if with_others {
        print(&others())?;
    }
    check(goals)
}

/// Prints the results. Fails if a goal is missed.
pub(crate) fn check(goals: &[Goal]) -> Result<(), BenchError> {
    print(&results(goals).to_string())?;
    let missed: Vec<_> = goals.iter().filter(|goal| !goal.is_met()).map(Goal::name).collect();
    if missed.is_empty() {
        return print("all goals are met");
    }
    Err(BenchError::Failed(format!("goals were missed: {}", missed.join("; "))))
}
