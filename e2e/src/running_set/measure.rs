//! What `writes` and `steady` have in common: a set of their own, and the requests of Nodewright in its audit log.

use std::{
    io,
    time::{Duration, Instant},
};

use kube::{Client, ResourceExt};

use super::{
    SetError,
    machines::{machine_deployments, wait_for_running},
    set::{NAMESPACE, RunningSet, SetOptions},
};
use crate::audit::{AuditLog, Entry};

/// How the names of all of Nodewright's clients begin.
const USER_AGENT: &str = "nodewright";
/// So long without a write, and what was asked for is done.
const QUIET: Duration = Duration::from_secs(5);
/// How long it may take until nothing is written any more.
const QUIET_TIMEOUT: Duration = Duration::from_mins(2);
/// Between two looks at the audit log.
const LOOK: Duration = Duration::from_millis(500);

/// A request of Nodewright?
pub(super) fn is_ours(entry: &Entry) -> bool {
    entry.user_agent.starts_with(USER_AGENT)
}

/// A write of Nodewright, other than the renewal of its Leases?
pub(super) fn is_work(entry: &Entry) -> bool {
    is_ours(entry) && entry.is_write() && entry.resource != "leases"
}

/// A set that is measured.
pub(super) struct Measured {
    set: RunningSet,
    deployment: String,
    log: AuditLog,
}

impl Measured {
    /// A set in a temporary directory, with the sample's machines running.
    pub(super) async fn start(manager_flags: Vec<String>) -> Result<Self, SetError> {
        let options = SetOptions { manager_flags, ..SetOptions::default() };
        let set = RunningSet::start(&options, |line| eprintln!("{line}")).await?;
        set.apply_samples().await?;
        let deployments = machine_deployments(&set.client(), NAMESPACE).await?;
        let names: Vec<_> = deployments.iter().map(ResourceExt::name_any).collect();
        let [deployment] = &names[..] else {
            let problem =
                format!("config/samples has {} MachineDeployments; to be measured, it must have one", names.len());
            return Err(SetError::Refused(problem));
        };
        let log = AuditLog::from_start(set.plane().audit_log());
        Ok(Self { deployment: deployment.clone(), set, log })
    }

    pub(super) fn client(&self) -> Client {
        self.set.client()
    }

    /// Scales, and waits until the machines run or are gone, VMs included, and nothing is written any more. Returns the
    /// requests since the last time.
    pub(super) async fn scale(&mut self, machines: usize, timeout: Duration) -> Result<Vec<Entry>, SetError> {
        let replicas = format!("--replicas={machines}");
        let arguments = ["scale", "machinedeployment", &self.deployment, "--namespace", NAMESPACE, &replicas];
        self.set.plane().kubectl(arguments).await?;
        let arrived = async {
            wait_for_running(&self.client(), NAMESPACE, machines, timeout).await?;
            self.set.cloud().wait_for_count(machines, timeout).await?;
            Ok::<_, SetError>(())
        };
        if let Err(error) = arrived.await {
            return Err(self.explain(error));
        }
        self.settle().await
    }

    /// Waits until nothing has been written for a while. Returns the requests since the last time.
    async fn settle(&mut self) -> Result<Vec<Entry>, SetError> {
        let (since, mut last_write) = (Instant::now(), Instant::now());
        let mut entries = Vec::new();
        while last_write.elapsed() < QUIET {
            let new = self.read()?;
            if new.iter().any(is_work) {
                last_write = Instant::now();
            }
            entries.extend(new);
            if since.elapsed() > QUIET_TIMEOUT {
                let writes = entries.iter().filter(|entry| is_work(entry)).count();
                let problem = format!("the manager goes on writing: {writes} writes in {QUIET_TIMEOUT:?}");
                return Err(SetError::Exceeded(problem));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(entries)
    }

    /// The requests since the last time.
    pub(super) fn read(&mut self) -> Result<Vec<Entry>, SetError> {
        let path = self.log.path().to_owned();
        self.log.read().map_err(SetError::file("read", path))
    }

    /// Why it is so stands in the manager's log, which is gone afterwards.
    fn explain(&mut self, error: SetError) -> SetError {
        match error {
            SetError::Machines { what, waited, seen } => {
                let tail = self.set.manager().log_tail();
                SetError::Machines { what, waited, seen: format!("{seen}the last lines of the manager's log:\n{tail}") }
            }
            error => error,
        }
    }

    pub(super) async fn stop(self) -> Result<(), SetError> {
        self.set.stop().await
    }
}

/// Prints to standard output.
pub(super) fn print(text: &str) -> Result<(), SetError> {
    use io::Write;
    writeln!(io::stdout(), "{text}").map_err(SetError::file("write to", "standard output"))
}
