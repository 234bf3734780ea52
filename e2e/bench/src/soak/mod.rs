//! `nodewright-bench soak`: checks guarantees over a long time in which mostly nothing happens.
//!
//! Everything runs with default flags: a Node counts as unhealthy after 50 s, and its Machine fails 10 minutes later.
//! Before each fault nothing happens for minutes, as on most clusters most of the time. Tests with short timeouts on a busy
//! control plane do not cover this.
//!
//! # Guarantees that are checked
//! * The numbers of created and deleted machines, VMs and nodes match the number of VMs that died.
//! * A Machine fails at the deadline that it announces, or it announces a later one. All outages of the API server or
//!   of the leader together move a deadline to at most six minutes after the last outage.
//! * At rest only Leases are written, also while machines wait for their deadlines.
//!
//! # Faults
//!
//! | pool | faults |
//! |---|---|
//! | `demo-pool` | none: none of its machines may change |
//! | `first` | a VM is deleted, twice |
//! | `second` | a kubelet falls silent for good |
//! | `third` | a kubelet is silent for a while; a VM stops while the leader is killed |
//!
//! While deadlines run, the API server is restarted, and is away for a minute.

mod counts;
mod deadlines;
mod managers;
mod watcher;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodewright_api::Machine;

use self::{
    counts::Totals,
    managers::{Managers, Which, holder},
    watcher::Watcher,
};
use nodewright_e2e_cloud::{KubeletOrder, Vm};
use nodewright_e2e_lab::{
    devcluster::{DevclusterOptions, NAMESPACE, directory::RunDirectory, flag_value, machines::is_running},
    process::command::Shutdown,
};

use crate::{
    error::BenchError,
    measure::{Measured, print},
};

/// The pools in addition to the one of `config/samples`.
const POOLS: [&str; 3] = ["first", "second", "third"];
/// The number of machines in each pool.
const REPLICAS: usize = 3;
const MACHINES: usize = REPLICAS * (POOLS.len() + 1);
/// A rest takes a tenth of the whole time: there are five rests, and three waits of eleven minutes that overlap with rests.
const MINUTES_PER_REST: u32 = 10;
/// How long a Machine may take to become Unknown after its kubelet's last report: 50 s until Kubernetes marks the Node, which
/// start again after an outage, or six minutes after one in which Kubernetes has marked it, and some slack.
const UNKNOWN_WITHIN: Duration = Duration::from_mins(8);
/// How long a new leader may take: 15 s for the Lease, and a start on a busy computer.
const LEADER_WITHIN: Duration = Duration::from_mins(1);
/// An outage after which the leader loses its Leases.
const OUTAGE: Duration = Duration::from_mins(1);
/// The default of `--machine-health-timeout`.
const HEALTH_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Check over a long time, with default flags, that counts are exact, announced deadlines are kept, and nothing is written at
/// rest.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArguments {
    /// Minutes in total; each of the rests before faults takes a tenth. Replacements take three times 11 minutes in any case
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    minutes: u32,
    /// Directory for logs and the audit log [default: none is kept]
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a guarantee was broken.
pub(crate) async fn run(arguments: SoakArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    let soak = Box::pin(soak(arguments));
    let interrupted = || Err(BenchError::Failed("interrupted before the end".to_owned()));
    stop.run_until_cancelled(soak).await.unwrap_or_else(interrupted)
}

async fn soak(arguments: SoakArguments) -> Result<(), BenchError> {
    let directory = arguments.directory.as_deref().map(RunDirectory::open).transpose()?;
    if let Some(directory) = &directory {
        directory.clean()?;
    }
    let health_timeout = health_timeout(&arguments.manager_flags)?;
    let options = DevclusterOptions {
        directory: directory.map(|directory| directory.root().to_owned()),
        manager_flags: arguments.manager_flags,
        ..DevclusterOptions::default()
    };
    let mut measured: Measured = Measured::start(&options).await?;
    let managers = Managers::start(&mut measured).await?;
    measured.control_plane().apply_yaml(&POOLS.map(manifest).join("---\n")).await?;
    let watcher = Watcher::new(measured, managers, health_timeout);
    let rest = Duration::from_mins(u64::from(arguments.minutes)) / MINUTES_PER_REST;
    let mut soak = Soak { watcher, rest, victims: BTreeSet::new() };
    soak.go().await?;
    soak.conclude().await
}

/// The value of the flag, or its default.
fn health_timeout(flags: &[String]) -> Result<SignedDuration, BenchError> {
    let Some(text) = flag_value(flags, "machine-health-timeout") else { return Ok(HEALTH_TIMEOUT) };
    text.parse().map_err(|error| BenchError::Failed(format!("--machine-health-timeout={text}: {error}")))
}

fn manifest(pool: &str) -> String {
    format!(
        "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineDeployment\n\
         metadata: {{name: {pool}, namespace: {NAMESPACE}}}\n\
         spec:\n  replicas: {REPLICAS}\n  selector: {{matchLabels: {{name: {pool}}}}}\n  template:\n    \
         metadata: {{labels: {{name: {pool}}}}}\n    \
         spec: {{class: {{kind: MachineClass, name: demo-small}}}}\n"
    )
}

struct Soak {
    watcher: Watcher,
    rest: Duration,
    /// The machines that have to be replaced.
    victims: BTreeSet<String>,
}

impl Soak {
    /// Runs the faults one after the other; deadlines run meanwhile.
    async fn go(&mut self) -> Result<(), BenchError> {
        self.watcher.settle(MACHINES).await?;
        self.watcher.print_line(format!("{MACHINES} machines run in {} pools", POOLS.len() + 1))?;
        self.rest().await?;
        self.delete_vm().await?;
        self.rest().await?;
        self.silence_kubelets().await?;
        self.restart_api_server().await?;
        self.rest().await?;
        self.kill_leader().await?;
        self.rest().await?;
        self.lose_api_server().await?;
        self.delete_vm().await?;
        self.rest().await?;
        self.replaced(Timestamp::MAX).await
    }

    /// Waits for deadlines that would expire within the rest, and for the replacements. Then rests.
    async fn rest(&mut self) -> Result<(), BenchError> {
        let horizon = SignedDuration::try_from(self.rest).unwrap_or_default();
        loop {
            self.replaced(Timestamp::now() + horizon).await?;
            if self.watcher.rest(self.rest).await? {
                return Ok(());
            }
        }
    }

    /// Waits until the machines whose deadlines expire by then are replaced.
    async fn replaced(&mut self, by: Timestamp) -> Result<(), BenchError> {
        while self.watcher.deadlines.any_until(by) {
            self.watcher.poll_for(Duration::from_secs(1)).await?;
        }
        self.watcher.settle(MACHINES).await
    }

    /// A running machine of a pool, and its VM.
    async fn pick(&self, pool: &str) -> Result<(Machine, Vm), BenchError> {
        let of_pool = |machine: &&Machine| machine.labels().get("name").is_some_and(|name| name == pool);
        let mut machines = self.watcher.machines().iter().filter(of_pool).filter(|machine| is_running(machine));
        let machine = machines.next().cloned();
        let vms = self.watcher.measured.cloud().vms().await?;
        let vm = machine
            .as_ref()
            .and_then(|machine| vms.into_iter().find(|vm| machine.provider_id() == Some(vm.provider_id.as_str())));
        machine.zip(vm).ok_or_else(|| BenchError::Failed(format!("no machine of pool {pool} runs and has a VM")))
    }

    async fn wait_until_unknown(&mut self, names: &[String]) -> Result<(), BenchError> {
        let what = format!("{} to be Unknown", names.join(" and "));
        let are_unknown = |watcher: &Watcher| names.iter().all(|name| watcher.deadlines.is_waiting(name));
        self.watcher.until(&what, UNKNOWN_WITHIN, are_unknown).await
    }

    async fn delete_vm(&mut self) -> Result<(), BenchError> {
        let (machine, vm) = self.pick("first").await?;
        self.watcher.print_line(format!("VM {} of machine {} is deleted", vm.id, machine.name_any()))?;
        self.watcher.measured.cloud().delete(&vm.id).await?;
        self.watcher.deadlines.vm_deleted(machine.name_any());
        self.victims.insert(machine.name_any());
        self.wait_until_unknown(&[machine.name_any()]).await
    }

    async fn silence_kubelets(&mut self) -> Result<(), BenchError> {
        let ((dead, dead_vm), (other, other_vm)) = (self.pick("second").await?, self.pick("third").await?);
        let (dead, other) = (dead.name_any(), other.name_any());
        let cloud = self.watcher.measured.cloud();
        for vm in [&dead_vm, &other_vm] {
            cloud.kubelet(&vm.id, &KubeletOrder::Silence).await?;
        }
        self.watcher.print_line(format!("the kubelets of {dead} and {other} are silent"))?;
        self.victims.insert(dead.clone());
        self.wait_until_unknown(&[dead, other.clone()]).await?;
        cloud.kubelet(&other_vm.id, &KubeletOrder::Revive).await?;
        self.watcher.print_line(format!("the kubelet of {other} reports again"))?;
        let is_well = |watcher: &Watcher| !watcher.deadlines.is_waiting(&other);
        self.watcher.until(&format!("{other} to be Running"), UNKNOWN_WITHIN, is_well).await
    }

    async fn restart_api_server(&mut self) -> Result<(), BenchError> {
        let away = self.watcher.stop_api_server(Duration::ZERO).await?;
        self.watcher.print_line(format!("the API server was restarted, and away for {away:.1?}"))
    }

    /// Stops the API server until the leader loses its Leases and ends.
    async fn lose_api_server(&mut self) -> Result<(), BenchError> {
        let away = self.watcher.stop_api_server(OUTAGE).await?;
        self.watcher.print_line(format!("the API server was away for {away:.1?}"))?;
        self.wait_for_leader(None).await?;
        self.watcher.settle(MACHINES).await
    }

    async fn kill_leader(&mut self) -> Result<(), BenchError> {
        let (machine, vm) = self.pick("third").await?;
        let leader = holder(self.watcher.measured.client(), Timestamp::MIN).await;
        self.watcher.measured.cloud().kill(&vm.id).await?;
        let Watcher { measured, managers, .. } = &mut self.watcher;
        managers.get(Which::First, measured).kill_9();
        self.watcher.deadlines.outage_ended(Timestamp::now());
        self.watcher.print_line(format!("the VM of {} stopped, and the leader was killed", machine.name_any()))?;
        self.victims.insert(machine.name_any());
        self.wait_for_leader(leader).await?;
        let Watcher { measured, managers, .. } = &mut self.watcher;
        managers.get(Which::First, measured).start_again().await?;
        self.watcher.print_line("the killed manager is back, and stands by")?;
        self.wait_until_unknown(&[machine.name_any()]).await
    }

    /// Waits until a manager other than `before` leads.
    async fn wait_for_leader(&mut self, before: Option<String>) -> Result<(), BenchError> {
        let (since, at) = (Instant::now(), Timestamp::now());
        loop {
            let now = holder(self.watcher.measured.client(), at).await;
            if let Some(now) = now.filter(|now| Some(now) != before.as_ref()) {
                self.watcher.deadlines.outage_ended(Timestamp::now());
                return self.watcher.print_line(format!("{now} leads, after {:.1?}", since.elapsed()));
            }
            if since.elapsed() > LEADER_WITHIN {
                return self.watcher.broken(format!("no manager leads after {LEADER_WITHIN:?}"));
            }
            self.watcher.poll_for(Duration::from_secs(1)).await?;
        }
    }

    /// Compares the final counts with the expected ones.
    async fn conclude(mut self) -> Result<(), BenchError> {
        let stats = self.watcher.measured.cloud().stats().await?;
        let expected = (MACHINES + self.victims.len(), self.victims.len());
        let Totals { machines, nodes } = self.watcher.counts.totals();
        let vms = (usize::try_from(stats.created).unwrap_or(0), usize::try_from(stats.deleted).unwrap_or(0));
        for (what, seen) in [("machines", machines), ("VMs", vms), ("nodes", nodes)] {
            let text = format!("{} {what} were created and {} deleted", seen.0, seen.1);
            if seen == expected {
                self.watcher.print_line(text)?;
            } else {
                self.watcher.broken(format!("{text}; expected are {} and {}", expected.0, expected.1))?;
            }
        }
        let others: Vec<_> = self.watcher.counts.machines_deleted().difference(&self.victims).cloned().collect();
        if !others.is_empty() {
            self.watcher.broken(format!("machines whose VMs had not died were replaced: {}", others.join(", ")))?;
        }
        let problems = self.watcher.problems.len();
        let Watcher { measured, managers, .. } = self.watcher;
        managers.stop().await?;
        measured.stop().await?;
        if problems > 0 {
            return Err(BenchError::Failed(format!("{problems} guarantees were broken, see the lines with BROKEN")));
        }
        print("all counts are exact, all deadlines were kept, and nothing was written at rest")
    }
}
