//! `nodewright-bench soak`: does it keep what it promises when most of the time nothing happens?
//!
//! Everything runs with default flags: a Node is missed after 50 s, its Machine given up 10 minutes later. Before each
//! fault nothing happens for minutes, as on most clusters most of the time; tests with short timeouts on a busy
//! control plane do not show what only time shows.
//!
//! # What has to hold
//! * Exactly so many machines, VMs and nodes are made and unmade as VMs died, and no others.
//! * Each deadline that a Machine announces is kept, or its move is said; all outages of the API server or of the leader
//!   together move it to six minutes after the last of them at most.
//! * At rest nothing is written but leases, also while machines wait for their deadlines.
//!
//! # What is done
//!
//! | pool | faults |
//! |---|---|
//! | `demo-pool` | none: no machine of it may change |
//! | `first` | a VM is deleted by hand, twice |
//! | `second` | a kubelet falls silent for good |
//! | `third` | a kubelet is silent for a while; a VM stops at the moment at which the leader is killed |
//!
//! and, while deadlines run: a restart of the API server, and a minute without it.

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
use nodewright_e2e_devcluster::{
    DevclusterOptions, NAMESPACE, directory::RunDirectory, flag_value, machines::is_running,
};
use nodewright_e2e_process::command::Shutdown;

use crate::{
    error::BenchError,
    measure::{Measured, print},
};

/// The pools beside that of the sample.
const POOLS: [&str; 3] = ["first", "second", "third"];
/// The machines of each pool, that of the sample included.
const REPLICAS: usize = 3;
const MACHINES: usize = REPLICAS * (POOLS.len() + 1);
/// Of how many minutes one is a rest's: five rests, and three times eleven minutes of waiting, half of it in rests.
const MINUTES_PER_REST: u32 = 10;
/// After a Node's last report: 50 s until Kubernetes misses it, which after an outage counts from its own first look, and
/// some until that shows.
const MISSED_WITHIN: Duration = Duration::from_mins(3);
/// How long a new leader may take to lead: the lease's 15 s, and a start on a busy computer.
const LED_WITHIN: Duration = Duration::from_mins(1);
/// Longer than a leader may be without its lease.
const OUTAGE: Duration = Duration::from_mins(1);
/// The manager's default.
const HEALTH_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Runs the set for long under default flags, with long rests between faults: are counts exact, announced deadlines kept, and nothing written at rest?
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArguments {
    /// How long it takes; a tenth of it is the rest before each fault. Dead machines take their time (three times 11
    /// minutes) however short this is
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    minutes: u32,
    /// Where logs and the audit log stay; none of them stays by default
    #[arg(long)]
    directory: Option<PathBuf>,
    /// More flags for the manager; without any it is the shipped one that is looked at
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. An error if anything broke.
pub(crate) async fn run(arguments: SoakArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    let soaking = Box::pin(soak(arguments));
    let interrupted = || Err(BenchError::Failed("interrupted; what was to be shown has not been shown".to_owned()));
    stop.run_until_cancelled(soaking).await.unwrap_or_else(interrupted)
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
    let mut measured = Measured::start(&options).await?;
    let managers = Managers::start(&mut measured).await?;
    measured.control_plane().apply_yaml(&POOLS.map(manifest).join("---\n")).await?;
    let watcher = Watcher::new(measured, managers, health_timeout);
    let rest = Duration::from_mins(u64::from(arguments.minutes)) / MINUTES_PER_REST;
    let mut soak = Soak { watcher, rest, victims: BTreeSet::new() };
    soak.go().await?;
    soak.conclude().await
}

/// Default, unless the flags say otherwise.
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
    /// One after the other; deadlines run meanwhile.
    async fn go(&mut self) -> Result<(), BenchError> {
        self.watcher.settle(MACHINES).await?;
        self.watcher.say(format!("{MACHINES} machines run in {} pools", POOLS.len() + 1))?;
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

    /// Waits for deadlines that would end within the rest, and for what they cause; then nothing happens.
    async fn rest(&mut self) -> Result<(), BenchError> {
        let horizon = SignedDuration::try_from(self.rest).unwrap_or_default();
        loop {
            self.replaced(Timestamp::now() + horizon).await?;
            if self.watcher.rest(self.rest).await? {
                return Ok(());
            }
        }
    }

    /// Waits until what is given up by then has been replaced.
    async fn replaced(&mut self, by: Timestamp) -> Result<(), BenchError> {
        while self.watcher.deadlines.any_until(by) {
            self.watcher.look_for(Duration::from_secs(1)).await?;
        }
        self.watcher.settle(MACHINES).await
    }

    /// A machine of a pool that runs, and its VM.
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

    async fn missed(&mut self, names: &[String]) -> Result<(), BenchError> {
        let what = format!("{} to be Unknown", names.join(" and "));
        let are_missed = |watcher: &Watcher| names.iter().all(|name| watcher.deadlines.is_waiting(name));
        self.watcher.until(&what, MISSED_WITHIN, are_missed).await
    }

    async fn delete_vm(&mut self) -> Result<(), BenchError> {
        let (machine, vm) = self.pick("first").await?;
        self.watcher.say(format!("VM {} of machine {} is deleted by hand", vm.id, machine.name_any()))?;
        self.watcher.measured.cloud().delete(&vm.id).await?;
        self.victims.insert(machine.name_any());
        self.missed(&[machine.name_any()]).await
    }

    async fn silence_kubelets(&mut self) -> Result<(), BenchError> {
        let ((dead, dead_vm), (other, other_vm)) = (self.pick("second").await?, self.pick("third").await?);
        let (dead, other) = (dead.name_any(), other.name_any());
        let cloud = self.watcher.measured.cloud();
        for vm in [&dead_vm, &other_vm] {
            cloud.kubelet(&vm.id, &KubeletOrder::Silence).await?;
        }
        self.watcher.say(format!("the kubelets of {dead} and {other} are silent"))?;
        self.victims.insert(dead.clone());
        self.missed(&[dead, other.clone()]).await?;
        cloud.kubelet(&other_vm.id, &KubeletOrder::Revive).await?;
        self.watcher.say(format!("the kubelet of {other} reports again"))?;
        let is_well = |watcher: &Watcher| !watcher.deadlines.is_waiting(&other);
        self.watcher.until(&format!("{other} to be Running"), MISSED_WITHIN, is_well).await
    }

    async fn restart_api_server(&mut self) -> Result<(), BenchError> {
        let away = self.watcher.api_server_away(Duration::ZERO).await?;
        self.watcher.say(format!("the API server was restarted, and away for {away:.1?}"))
    }

    /// The API server is away for so long that the leader loses its leases and ends.
    async fn lose_api_server(&mut self) -> Result<(), BenchError> {
        let away = self.watcher.api_server_away(OUTAGE).await?;
        self.watcher.say(format!("the API server was away for {away:.1?}"))?;
        self.led(None).await?;
        self.watcher.settle(MACHINES).await
    }

    async fn kill_leader(&mut self) -> Result<(), BenchError> {
        let (machine, vm) = self.pick("third").await?;
        let leader = holder(self.watcher.measured.client(), Timestamp::MIN).await;
        self.watcher.measured.cloud().kill(&vm.id).await?;
        let Watcher { measured, managers, .. } = &mut self.watcher;
        managers.get(Which::First, measured).kill_9();
        self.watcher.deadlines.outage_ended(Timestamp::now());
        self.watcher.say(format!("the VM of {} stopped, and the leader was killed", machine.name_any()))?;
        self.victims.insert(machine.name_any());
        self.led(leader).await?;
        let Watcher { measured, managers, .. } = &mut self.watcher;
        managers.get(Which::First, measured).start_again().await?;
        self.watcher.say("the one that was killed stands by")?;
        self.missed(&[machine.name_any()]).await
    }

    /// Waits until a manager leads, another one than this.
    async fn led(&mut self, before: Option<String>) -> Result<(), BenchError> {
        let (since, at) = (Instant::now(), Timestamp::now());
        loop {
            let now = holder(self.watcher.measured.client(), at).await;
            if let Some(now) = now.filter(|now| Some(now) != before.as_ref()) {
                self.watcher.deadlines.outage_ended(Timestamp::now());
                return self.watcher.say(format!("{now} leads, after {:.1?}", since.elapsed()));
            }
            if since.elapsed() > LED_WITHIN {
                return self.watcher.broken(format!("nothing leads after {LED_WITHIN:?}"));
            }
            self.watcher.look_for(Duration::from_secs(1)).await?;
        }
    }

    /// Compares what came and went with what was to.
    async fn conclude(mut self) -> Result<(), BenchError> {
        let stats = self.watcher.measured.cloud().stats().await?;
        let expected = (MACHINES + self.victims.len(), self.victims.len());
        let Totals { machines, nodes } = self.watcher.counts.totals();
        let vms = (usize::try_from(stats.created).unwrap_or(0), usize::try_from(stats.deleted).unwrap_or(0));
        for (what, seen) in [("machines", machines), ("VMs", vms), ("nodes", nodes)] {
            let text = format!("{} {what} were made and {} unmade", seen.0, seen.1);
            if seen == expected {
                self.watcher.say(text)?;
            } else {
                self.watcher.broken(format!("{text}; it should be {} and {}", expected.0, expected.1))?;
            }
        }
        let others: Vec<_> = self.watcher.counts.machines_unmade().difference(&self.victims).cloned().collect();
        if !others.is_empty() {
            self.watcher.broken(format!("machines of which no VM had died were replaced: {}", others.join(", ")))?;
        }
        let problems = self.watcher.problems.len();
        let Watcher { measured, managers, .. } = self.watcher;
        managers.stop().await?;
        measured.stop().await?;
        if problems > 0 {
            return Err(BenchError::Failed(format!("{problems} promises were broken, see the lines with BROKEN")));
        }
        print("all counts are exact, all deadlines were kept, and nothing was written at rest")
    }
}
