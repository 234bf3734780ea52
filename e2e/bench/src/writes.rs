//! `nodewright-bench writes`: the requests per machine.

use std::time::Duration;

use nodewright_e2e_lab::{
    devcluster::{DevclusterOptions, ManagerProcess},
    process::command::Shutdown,
};

use crate::{
    costs::{Costs, RequestKind},
    error::BenchError,
    measure::{Measured, print},
    preserve_and_update::{preserve, update},
};

/// Writes per created machine, at most: five, and a quarter for races, such as a kubelet that reports twice before the first report
/// is copied. See [`RequestKind`] for requests that do not count.
const CREATION_BOUND: f64 = 5.25;
/// Writes per deleted machine, at most, without the evictions of its pods: seven, and the same for races.
const DELETION_BOUND: f64 = 7.25;
/// Reads per deleted machine, at most: one, of its node's pods, and the same for races.
const READS_BOUND: f64 = 1.25;

/// Writes to preserve a machine, to end that, and to update a machine in place. One that waits while others are updated costs one more:
/// the mark of its Node.
const PRESERVATION_BOUND: f64 = 4.0;
const END_BOUND: f64 = 3.0;
const UPDATE_BOUND: f64 = 8.0;

/// How many machines are created and deleted to compare the writes of statuses: they must grow slower than the machines.
const FLEETS: [u32; 3] = [10, 100, 400];

/// A part of the lives of machines, with the most requests of the manager per machine that it may cost.
struct Phase {
    what: &'static str,
    costs: Costs,
    writes: f64,
    reads: Option<f64>,
}

impl Phase {
    /// Prints the requests per machine. Returns what there are too many of.
    fn compare(&self) -> Result<Option<String>, BenchError> {
        let mut over = None;
        let bounds = [(RequestKind::Write, "writes", Some(self.writes)), (RequestKind::Read, "reads", self.reads)];
        for (kind, name, bound) in bounds.into_iter().filter_map(|(kind, name, bound)| Some((kind, name, bound?))) {
            let each = self.costs.each(kind);
            print(&format!("{name} per {}: {each:.2} (bound {bound}, without the evictions of pods)", self.what))?;
            if each > bound {
                over = Some(format!("{name} of {}", self.what));
            }
        }
        Ok(over)
    }
}

/// Count the requests per machine that is created and deleted.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WritesArguments {
    /// Number of machines to create and delete
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    machines: u32,
    /// Seconds that the creation and the deletion may take, each
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Also compare the writes of statuses for 10, 100 and 400 machines
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    statuses: bool,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a bound is exceeded.
pub(crate) async fn run(arguments: WritesArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: WritesArguments) -> Result<(), BenchError> {
    let (machines, timeout) = (arguments.machines as usize, Duration::from_secs(arguments.timeout));
    let options = DevclusterOptions { manager_flags: arguments.manager_flags, ..DevclusterOptions::default() };
    let mut measured: Measured = Measured::start(&options).await?;
    // Leave out the first machines, and the requests that do not depend on the number of machines.
    measured.scale(0, timeout, |_| ()).await?;
    let (mut creation, mut deletion) = (Costs::of(arguments.machines), Costs::of(arguments.machines));
    eprintln!("creating {machines} machines");
    measured.scale(machines, timeout, |entry| creation.add::<ManagerProcess>(&entry)).await?;
    eprintln!("preserving {machines} machines, and updating them in place");
    let [preserved, ended] = preserve(&mut measured, arguments.machines).await?;
    let updated = update(&mut measured, arguments.machines, timeout).await?;
    eprintln!("deleting {machines} machines");
    measured.scale(0, timeout, |entry| deletion.add::<ManagerProcess>(&entry)).await?;
    let statuses = if arguments.statuses { statuses(&mut measured, timeout).await? } else { vec![] };
    measured.stop().await?;
    let phases = [
        Phase { what: "creation", costs: creation, writes: CREATION_BOUND, reads: None },
        Phase { what: "preservation", costs: preserved, writes: PRESERVATION_BOUND, reads: None },
        Phase { what: "end of the preservation", costs: ended, writes: END_BOUND, reads: None },
        Phase { what: "update in place", costs: updated, writes: UPDATE_BOUND, reads: None },
        Phase { what: "deletion", costs: deletion, writes: DELETION_BOUND, reads: Some(READS_BOUND) },
    ];
    for phase in &phases {
        print(&format!("\n{} of {machines} machines\n\n{}", phase.what, phase.costs))?;
    }
    let mut over = Vec::new();
    for phase in &phases {
        over.extend(phase.compare()?);
    }
    if !over.is_empty() {
        let over = over.join(", ");
        return Err(BenchError::Failed(format!("these cost more requests than their bounds allow: {over}")));
    }
    evaluate(&statuses)
}

/// The writes of statuses of MachineDeployments and MachineSets while fleets of several sizes come and go.
async fn statuses(measured: &mut Measured, timeout: Duration) -> Result<Vec<Costs>, BenchError> {
    let mut all = Vec::new();
    for machines in FLEETS {
        eprintln!("creating and deleting {machines} machines");
        let mut costs = Costs::of(machines);
        for replicas in [machines as usize, 0] {
            measured.scale(replicas, timeout, |entry| costs.add::<ManagerProcess>(&entry)).await?;
        }
        all.push(costs);
    }
    Ok(all)
}

/// Prints the writes of statuses for each size, and fails if a larger fleet has more of them per machine.
fn evaluate(fleets: &[Costs]) -> Result<(), BenchError> {
    let per_machine = |costs: &Costs| f64::from(costs.statuses_of_owners()) / f64::from(costs.machines());
    for costs in fleets {
        let (machines, writes) = (costs.machines(), costs.statuses_of_owners());
        let each = per_machine(costs);
        print(&format!(
            "status writes of sets and deployments for {machines} machines: {writes}, {each:.2} per machine"
        ))?;
    }
    if fleets.windows(2).any(|pair| per_machine(&pair[0]) <= per_machine(&pair[1])) {
        return Err(BenchError::Failed("the writes of statuses grow as fast as the machines".to_owned()));
    }
    Ok(())
}
