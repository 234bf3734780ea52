//! What `writes`, `steady`, `soak` and `fleet` have in common: a set of their own, and the requests of Nodewright in its audit log.

use std::{
    io,
    time::{Duration, Instant},
};

use kube::{Client, ResourceExt};
use parking_lot::Mutex;

use nodewright_e2e_cloud::CloudClient;
use nodewright_e2e_control_plane::{
    ControlPlane,
    audit::{AuditLog, Entry},
};
use nodewright_e2e_devcluster::{
    Devcluster, DevclusterError, DevclusterOptions, ManagerProcess, NAMESPACE,
    machines::{machine_deployments, wait_for_running},
};
use nodewright_e2e_process::ProcessError;

use crate::error::BenchError;

/// How the names of all of Nodewright's clients begin.
const USER_AGENT: &str = "nodewright";
/// So long without a write, and what was asked for is done.
const QUIET: Duration = Duration::from_secs(5);
/// How long it may take until nothing is written any more.
const QUIET_TIMEOUT: Duration = Duration::from_mins(2);
/// Between two looks at the audit log.
const LOOK: Duration = Duration::from_millis(500);

/// A request of Nodewright?
pub(crate) fn is_ours(entry: &Entry) -> bool {
    entry.user_agent.starts_with(USER_AGENT)
}

/// A write of Nodewright, other than the renewal of its Leases?
pub(crate) fn is_work(entry: &Entry) -> bool {
    is_ours(entry) && entry.is_write() && entry.resource != "leases"
}

/// A set that is measured.
pub(crate) struct Measured {
    set: Devcluster,
    deployment: String,
    log: AuditLog,
}

impl Measured {
    /// A set in a temporary directory, with the sample's machines running.
    pub(crate) async fn start(options: &DevclusterOptions) -> Result<Self, BenchError> {
        let set = Devcluster::start(options, |line| eprintln!("{line}")).await?;
        set.apply_samples().await?;
        let deployments = machine_deployments(&set.client(), NAMESPACE).await?;
        let names: Vec<_> = deployments.iter().map(ResourceExt::name_any).collect();
        let [deployment] = &names[..] else {
            let problem =
                format!("config/samples has {} MachineDeployments; to be measured, it must have one", names.len());
            return Err(BenchError::Failed(problem));
        };
        let log = AuditLog::from_start(set.control_plane().audit_log());
        Ok(Self { deployment: deployment.clone(), set, log })
    }

    pub(crate) fn client(&self) -> Client {
        self.set.client()
    }

    pub(crate) fn cloud(&self) -> CloudClient {
        self.set.cloud()
    }

    pub(crate) fn manager(&mut self) -> &mut ManagerProcess {
        self.set.manager()
    }

    pub(crate) fn control_plane(&self) -> &ControlPlane {
        self.set.control_plane()
    }

    /// Starts again what has ended by itself, the manager excepted; says what.
    pub(crate) async fn mend(&mut self) -> Result<Vec<String>, BenchError> {
        let said = Mutex::new(Vec::new());
        self.set.restart_ended(|line| said.lock().push(line)).await?;
        Ok(said.into_inner())
    }

    /// The name of the one MachineDeployment.
    pub(crate) fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Asks for so many machines.
    pub(crate) async fn order(&self, machines: usize) -> Result<(), BenchError> {
        let replicas = format!("--replicas={machines}");
        let arguments = ["scale", "machinedeployment", &self.deployment, "--namespace", NAMESPACE, &replicas];
        self.set.control_plane().kubectl(arguments).await?;
        Ok(())
    }

    /// Scales, and waits until the machines run or are gone, VMs included, and nothing is written any more. Shows `see`
    /// the requests since the last time.
    pub(crate) async fn scale(
        &mut self,
        machines: usize,
        timeout: Duration,
        see: impl FnMut(Entry),
    ) -> Result<(), BenchError> {
        self.order(machines).await?;
        let arrived = async {
            wait_for_running(&self.client(), NAMESPACE, machines, timeout).await?;
            self.set.cloud().wait_for_count(machines, timeout).await?;
            Ok::<_, BenchError>(())
        };
        if let Err(error) = arrived.await {
            return Err(self.explain(error));
        }
        self.settle(see).await
    }

    /// Waits until nothing has been written for a while. Shows `see` the requests since the last time.
    pub(crate) async fn settle(&mut self, mut see: impl FnMut(Entry)) -> Result<(), BenchError> {
        let (since, mut last_write, mut writes) = (Instant::now(), Instant::now(), 0_u64);
        while last_write.elapsed() < QUIET {
            let before = writes;
            self.each(|entry| {
                writes += u64::from(is_work(&entry));
                see(entry);
            })?;
            if writes > before {
                last_write = Instant::now();
            }
            if since.elapsed() > QUIET_TIMEOUT {
                let problem = format!("the manager goes on writing: {writes} writes in {QUIET_TIMEOUT:?}");
                return Err(BenchError::Failed(problem));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn each(&mut self, see: impl FnMut(Entry)) -> Result<(), BenchError> {
        let path = self.log.path().to_owned();
        Ok(self.log.each(see).map_err(ProcessError::file("read", path))?)
    }

    /// The requests since the last time.
    pub(crate) fn read(&mut self) -> Result<Vec<Entry>, BenchError> {
        let mut entries = Vec::new();
        self.each(|entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Why it is so stands in the manager's log, which is gone afterwards.
    pub(crate) fn explain(&mut self, error: BenchError) -> BenchError {
        let BenchError::Devcluster(DevclusterError::Machines { what, waited, seen }) = error else { return error };
        let tail = self.set.manager().log_tail();
        let seen = format!("{seen}the last lines of the manager's log:\n{tail}");
        DevclusterError::Machines { what, waited, seen }.into()
    }

    pub(crate) async fn stop(self) -> Result<(), BenchError> {
        Ok(self.set.stop().await?)
    }
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    use io::Write;
    Ok(writeln!(io::stdout(), "{text}").map_err(ProcessError::file("write to", "standard output"))?)
}
