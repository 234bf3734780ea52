//! A devcluster that is measured, and the requests of its controllers in its audit log.

use std::{
    io,
    time::{Duration, Instant},
};

use kube::{Client, ResourceExt};
use parking_lot::Mutex;

use nodewright_e2e_cloud::CloudClient;
use nodewright_e2e_lab::{
    control_plane::{
        ControlPlane,
        audit::{AuditLog, Entry},
    },
    devcluster::{
        Controllers, Devcluster, DevclusterError, DevclusterOptions, ManagerProcess, McmProcesses, NAMESPACE,
        machines::{machine_deployments, wait_for_running},
    },
    process::ProcessError,
};

use crate::error::BenchError;

/// How long it may take until nothing is written.
const QUIET_TIMEOUT: Duration = Duration::from_mins(2);
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Controllers that can be measured.
pub(crate) trait Measurable: Controllers {
    /// The prefix of the `User-Agent` of all their clients.
    const USER_AGENT: &str;
    /// How long they write nothing until their work counts as done.
    const QUIET: Duration;
}

impl Measurable for ManagerProcess {
    const USER_AGENT: &str = "nodewright";
    const QUIET: Duration = Duration::from_secs(5);
}

impl Measurable for McmProcesses {
    const USER_AGENT: &str = "machine-controller";
    // They wait for five seconds between the steps of a machine.
    const QUIET: Duration = Duration::from_secs(12);
}

/// Whether controllers of this kind sent the request.
pub(crate) fn is_from<C: Measurable>(entry: &Entry) -> bool {
    entry.user_agent.starts_with(C::USER_AGENT)
}

/// Whether the request is a write of Nodewright, except for the renewal of Leases.
pub(crate) fn is_counted_write(entry: &Entry) -> bool {
    is_write_of::<ManagerProcess>(entry)
}

fn is_write_of<C: Measurable>(entry: &Entry) -> bool {
    is_from::<C>(entry) && entry.is_write() && entry.resource != "leases"
}

/// A devcluster that is measured.
pub(crate) struct Measured<C = ManagerProcess> {
    set: Devcluster<C>,
    deployment: String,
    log: AuditLog,
}

impl<C: Measurable> Measured<C> {
    /// Starts a devcluster, and applies `config/samples`.
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

    pub(crate) fn controllers(&mut self) -> &mut C {
        self.set.controllers()
    }

    pub(crate) fn control_plane(&self) -> &ControlPlane {
        self.set.control_plane()
    }

    /// Starts processes that ended by themselves again, except the controllers. Returns what it did.
    pub(crate) async fn restart_ended(&mut self) -> Result<Vec<String>, BenchError> {
        let report = Mutex::new(Vec::new());
        self.set.restart_ended(|line| report.lock().push(line)).await?;
        Ok(report.into_inner())
    }

    /// The name of the MachineDeployment.
    pub(crate) fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Sets `spec.replicas` of the MachineDeployment.
    pub(crate) async fn set_replicas(&self, machines: usize) -> Result<(), BenchError> {
        let replicas = format!("--replicas={machines}");
        let arguments = ["scale", "machinedeployment", &self.deployment, "--namespace", NAMESPACE, &replicas];
        self.set.control_plane().kubectl(arguments).await?;
        Ok(())
    }

    /// Scales. Waits until the machines and VMs exist or are gone, and until nothing is written. Calls `visit` with the
    /// requests since the last read.
    pub(crate) async fn scale(
        &mut self,
        machines: usize,
        timeout: Duration,
        visit: impl FnMut(Entry),
    ) -> Result<(), BenchError> {
        self.set_replicas(machines).await?;
        let scaled = async {
            wait_for_running(&self.client(), NAMESPACE, machines, timeout).await?;
            self.set.cloud().wait_for_count(machines, timeout).await?;
            Ok::<_, BenchError>(())
        };
        if let Err(error) = scaled.await {
            return Err(self.explain(error));
        }
        self.settle(visit).await
    }

    /// Waits until nothing has been written for a while. Calls `visit` with the requests since the last read.
    pub(crate) async fn settle(&mut self, mut visit: impl FnMut(Entry)) -> Result<(), BenchError> {
        let (since, mut last_write, mut writes) = (Instant::now(), Instant::now(), 0_u64);
        while last_write.elapsed() < C::QUIET {
            let before = writes;
            self.each(|entry| {
                writes += u64::from(is_write_of::<C>(&entry));
                visit(entry);
            })?;
            if writes > before {
                last_write = Instant::now();
            }
            if since.elapsed() > QUIET_TIMEOUT {
                let problem = format!("the controllers keep writing: {writes} writes in {QUIET_TIMEOUT:?}");
                return Err(BenchError::Failed(problem));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn each(&mut self, visit: impl FnMut(Entry)) -> Result<(), BenchError> {
        let path = self.log.path().to_owned();
        Ok(self.log.each(visit).map_err(ProcessError::file("read", path))?)
    }

    /// The requests since the last read.
    pub(crate) fn read(&mut self) -> Result<Vec<Entry>, BenchError> {
        let mut entries = Vec::new();
        self.each(|entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Adds the end of the controllers' logs, which is removed with the devcluster.
    pub(crate) fn explain(&mut self, error: BenchError) -> BenchError {
        let BenchError::Devcluster(error) = error else { return error };
        let DevclusterError::Machines { what, waited, seen } = *error else { return BenchError::Devcluster(error) };
        let tail = self.set.controllers().log_tail();
        let seen = format!("{seen}the last lines of the logs:\n{tail}");
        DevclusterError::Machines { what, waited, seen }.into()
    }

    pub(crate) async fn stop(self) -> Result<(), BenchError> {
        Ok(self.set.stop().await?)
    }
}

impl Measured {
    pub(crate) fn manager(&mut self) -> &mut ManagerProcess {
        self.set.manager()
    }
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    use io::Write;
    Ok(writeln!(io::stdout(), "{text}").map_err(ProcessError::file("write to", "standard output"))?)
}
