//! `nodewright-bench drain`: all nodes of a pool are drained at once, within disruption budgets, with volumes.
//!
//! ```text
//! pool of the samples: N nodes, 10 N pods ──── scaled to zero ────► a spare pool of N nodes
//!       pods, attachments ──► record ──► chain: what budgets and volumes force
//!       audit log ──► evictions: granted, refused, at once
//! ```
//!
//! The time is compared with the longest chain that disruption budgets and volumes force, which is computed from the same
//! run: the ratio is about Nodewright, and not about the speed of the computer.

mod chain;
mod record;
mod workload;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nodewright_e2e_cloud::{EventKind, disks::Disks};
use nodewright_e2e_lab::{
    control_plane::{
        audit::{Entry, most_at_once},
        testing::TestResult,
    },
    devcluster::{
        DevclusterOptions, ManagerProcess, NAMESPACE, directory::RunDirectory, flag_value, machines::wait_for_running,
    },
    process::command::Shutdown,
};

use self::{
    chain::{Chain, seconds},
    record::Record,
    workload::{App, apps, spare_pool},
};
use crate::{
    error::BenchError,
    measure::{Measured, is_from, print},
};

/// The time may be this multiple of the longest chain.
const GOAL: f64 = 1.5;
/// The manager's default limit of evictions.
const EVICTIONS: usize = 8;
const EVICTIONS_FLAG: &str = "eviction-concurrency";
/// The behavior of the cloud and its kubelets.
const CLOUD_FLAGS: [&str; 5] =
    ["--boot-seconds=1", "--ready-seconds=0", "--delete-seconds=1", "--pod-end-seconds=3", "--never-register-again"];
/// How long the driver of the disks takes to detach a volume.
const DETACHING: Duration = Duration::from_secs(1);
const SPARE_POOL: &str = "spare";
/// The class of the samples.
const CLASS: &str = "demo-small";
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Drain all nodes of a pool at once: time against the longest chain that disruption budgets and volumes force.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DrainArguments {
    /// Number of nodes, with ten pods each, two of which have volumes
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=100))]
    nodes: u32,
    /// Seconds that each part may take
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Directory for logs and the audit log, which are kept; a temporary one by default
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a disruption budget was broken, there were too many evictions, or it took too long.
pub(crate) async fn run(arguments: DrainArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: DrainArguments) -> Result<(), BenchError> {
    let manager_flags = arguments.manager_flags;
    let limit = flag_value(&manager_flags, EVICTIONS_FLAG).and_then(|value| value.parse().ok()).unwrap_or(EVICTIONS);
    let directory = arguments.directory.as_deref().map(RunDirectory::open).transpose()?;
    if let Some(directory) = &directory {
        directory.clean()?;
    }
    let options = DevclusterOptions {
        directory: directory.map(|directory| directory.root().to_owned()),
        manager_flags,
        cloud_flags: CLOUD_FLAGS.map(str::to_owned).to_vec(),
        ..DevclusterOptions::default()
    };
    let (nodes, timeout) = (arguments.nodes as usize, Duration::from_secs(arguments.timeout));
    let drain = Drain { measured: Measured::start(&options).await?, nodes, apps: apps(nodes), timeout };
    let report = Box::pin(drain.run()).await?;
    print(&report.text(limit))?;
    let problems = report.problems(limit);
    if problems.is_empty() { Ok(()) } else { Err(BenchError::Failed(problems.join("\n"))) }
}

struct Drain {
    measured: Measured,
    nodes: usize,
    apps: Vec<App>,
    timeout: Duration,
}

/// What was seen.
struct Report {
    nodes: usize,
    pods: usize,
    /// From the request until the deletion of the last VM was requested.
    drained: f64,
    /// From the request until the last VM was gone.
    gone: f64,
    chain: Chain,
    granted: usize,
    /// How many evictions were refused, by status code.
    refused: BTreeMap<u16, usize>,
    at_once: usize,
    /// Disruption budgets that were broken: the application, and how many pods were unavailable.
    broken: Vec<String>,
}

impl Drain {
    async fn run(mut self) -> Result<Report, BenchError> {
        self.measured.scale(self.nodes, self.timeout, |_| ()).await?;
        let disks = Disks::start(self.measured.client(), NAMESPACE, DETACHING);
        let record = tested(Record::start(&self.measured.client()).await)?;
        self.fill(&disks, &record).await?;
        let (mark, pool) = (record.mark(), self.measured.deployment().to_owned());
        drop(self.measured.read()?);

        eprintln!("draining {} nodes", self.nodes);
        let begun = Timestamp::now();
        self.measured.set_replicas(0).await?;
        self.wait_for_end().await?;
        let entries = self.measured.read()?;
        self.wait_for("all pods to run elsewhere", || is_complete(&self.apps, &record)).await?;

        let (last_deleted, last_gone) = self.last_vm(begun).await?;
        let leaving = tested(record.leaving(&disks, begun, &pool))?;
        let (mut budgets, mut broken) = (BTreeMap::new(), vec![]);
        for app in &self.apps {
            let (budget, most) = tested(record.budget(app, mark))?;
            if most > app.unavailable {
                broken.push(format!("{most} pods of {} were unavailable, {} may be", app.name, app.unavailable));
            }
            budgets.insert(app.name.clone(), budget);
        }
        let evictions = || entries.iter().filter(|entry| is_eviction(entry));
        let incomplete = || BenchError::Failed("the audit log lacks the arrivals of evictions".to_owned());
        let report = Report {
            nodes: self.nodes,
            pods: leaving.len(),
            drained: seconds(begun, last_deleted),
            gone: seconds(begun, last_gone),
            chain: chain::longest(leaving, &budgets),
            granted: evictions().filter(|entry| entry.code == 201).count(),
            refused: evictions().filter(|entry| entry.code != 201).fold(BTreeMap::new(), |mut refused, entry| {
                *refused.entry(entry.code).or_default() += 1;
                refused
            }),
            at_once: most_at_once(evictions()).ok_or_else(incomplete)?,
            broken,
        };
        self.measured.stop().await?;
        Ok(report)
    }

    /// Starts the pods, and then the nodes that they can go to.
    async fn fill(&self, disks: &Disks, record: &Record) -> Result<(), BenchError> {
        let pods: usize = self.apps.iter().map(|app| app.replicas).sum();
        eprintln!("starting {pods} pods on {} nodes", self.nodes);
        let objects = self.apps.iter().flat_map(|app| app.objects(disks));
        let pool = spare_pool(SPARE_POOL, CLASS, self.nodes);
        let volumes: usize = self.apps.iter().filter(|app| app.has_volumes).map(|app| app.replicas).sum();
        let manifests: Vec<_> = objects.map(|object| object.to_string()).collect();
        self.measured.control_plane().apply_yaml(&manifests.join("\n---\n")).await?;
        let is_up = || is_complete(&self.apps, record) && record.attached() == volumes;
        self.wait_for("all pods to run and all volumes to be attached", is_up).await?;
        self.measured.control_plane().apply_yaml(&pool.to_string()).await?;
        wait_for_running(&self.measured.client(), NAMESPACE, 2 * self.nodes, self.timeout).await?;
        Ok(())
    }

    async fn wait_for_end(&mut self) -> Result<(), BenchError> {
        let cloud = self.measured.cloud();
        let ended = async {
            cloud.wait_for_count(self.nodes, self.timeout).await?;
            wait_for_running(&self.measured.client(), NAMESPACE, self.nodes, self.timeout).await?;
            Ok::<_, BenchError>(())
        };
        match ended.await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.measured.explain(error)),
        }
    }

    async fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), BenchError> {
        let since = Instant::now();
        while !is_so() {
            if since.elapsed() > self.timeout {
                return Err(BenchError::Failed(format!("failed to see {what} within {:?}", self.timeout)));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// When the deletion of the last VM was asked for, and when that VM was gone.
    async fn last_vm(&self, begun: Timestamp) -> Result<(Timestamp, Timestamp), BenchError> {
        let events = self.measured.cloud().events(0).await?;
        let last = |kind| events.iter().filter(|event| event.kind == kind && event.at >= begun).map(|it| it.at).max();
        let found = last(EventKind::DeleteAccepted).zip(last(EventKind::VmGone));
        found.ok_or_else(|| BenchError::Failed("no VM was deleted".to_owned()))
    }
}

fn is_complete(apps: &[App], record: &Record) -> bool {
    apps.iter().all(|app| record.available(app) == app.replicas)
}

fn is_eviction(entry: &Entry) -> bool {
    is_from::<ManagerProcess>(entry) && entry.resource == "pods" && entry.subresource == "eviction"
}

fn tested<T>(result: TestResult<T>) -> Result<T, BenchError> {
    result.map_err(|failure| BenchError::Failed(failure.to_string()))
}

impl Report {
    fn ratio(&self) -> f64 {
        self.drained / self.chain.seconds
    }

    fn text(&self, limit: usize) -> String {
        let Self { nodes, pods, drained, gone, chain, granted, refused, at_once, .. } = self;
        let lines = [
            ("until the last VM was deleted", format!("{drained:.1} s")),
            ("until it was gone", format!("{gone:.1} s")),
            ("the longest chain", chain.to_string()),
            ("time against the longest chain", format!("{:.2} (goal: at most {GOAL})", self.ratio())),
            ("evictions", format!("{granted} granted, {} refused {refused:?}", refused.values().sum::<usize>())),
            ("evictions at once", format!("{at_once} (limit {limit})")),
        ];
        let lines = lines.map(|(name, value)| format!("{name:<40}{value}"));
        format!("\n{nodes} nodes with {pods} pods that leave\n\n{}\n", lines.join("\n"))
    }

    fn problems(&self, limit: usize) -> Vec<String> {
        let mut problems = self.broken.clone();
        if self.ratio() > GOAL {
            problems.push(format!("it took {:.2} times as long as the longest chain", self.ratio()));
        }
        if self.at_once > limit {
            problems.push(format!("{} evictions were in progress at once, {limit} may be", self.at_once));
        }
        if self.granted != self.pods {
            problems.push(format!("{} pods left, and {} evictions were granted", self.pods, self.granted));
        }
        problems
    }
}
