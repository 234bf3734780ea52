//! One scale run, up or down, and what it costs.

use std::{
    collections::BTreeSet,
    fmt, io,
    iter::Sum,
    time::{Duration, Instant},
};

use kube::Api;
use nodewright_api::MachineDeployment;

use nodewright_e2e_lab::{
    control_plane::{ControlPlaneError, audit::Entry},
    devcluster::{DevclusterError, NAMESPACE},
    process::ProcessError,
};

use super::inventory::unfinished;
use crate::{
    costs::{Costs, RequestKind},
    error::BenchError,
    measure::{Measurable, Measured},
    usage::{Resident, children, mebibytes, peak_memory, processor_time, reset_peak_memory, resident},
};

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// The Machines that were created, according to the audit log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Created {
    /// The number of requests that created a Machine.
    pub(crate) requests: u64,
    /// Their names.
    pub(crate) names: BTreeSet<String>,
}

impl Created {
    fn add(&mut self, entry: &Entry) {
        // Any verb: server-side apply creates as well.
        if entry.resource == "machines" && entry.subresource.is_empty() && entry.code == 201 {
            self.requests += 1;
            // The server itself makes the name of a Machine that is created with generateName: the log has none.
            self.names.extend(Some(&entry.name).filter(|name| !name.is_empty()).cloned());
        }
    }
}

/// Processor time and peak memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Of all processes, until nothing is written.
    pub(crate) processor: Duration,
    /// The sum of the peaks, in bytes.
    pub(crate) peak_memory: u64,
    /// The sum of what is resident when nothing is written.
    pub(crate) resident: Resident,
}

/// Processes that are measured.
pub(crate) struct Processes {
    pids: Vec<u32>,
    /// Their processor time before.
    used: Duration,
}

impl Processes {
    /// Begins to measure.
    pub(crate) fn start(pids: Vec<u32>) -> Result<Self, BenchError> {
        for pid in &pids {
            reset_peak_memory(*pid).map_err(proc("reset the peak memory in", *pid))?;
        }
        Ok(Self { used: total(&pids, processor_time)?, pids })
    }

    /// What they took since [`Self::start`].
    pub(crate) fn usage(&self) -> Result<Usage, BenchError> {
        let processor = total(&self.pids, processor_time)?.saturating_sub(self.used);
        let (peak_memory, resident) = (total(&self.pids, peak_memory)?, total(&self.pids, resident)?);
        Ok(Usage { processor, peak_memory, resident })
    }
}

/// The costs of a scale run. Its `Display` is a report.
#[derive(Clone, Debug)]
pub(crate) struct ScaleRun {
    /// The time until the last machine runs, or until the last VM is gone.
    pub(crate) wall: Duration,
    /// Of the processes of the controllers.
    pub(crate) controllers: Usage,
    /// Of the processes that these have started: the driver.
    pub(crate) driver: Usage,
    pub(crate) costs: Costs,
    pub(crate) created: Created,
    pub(crate) vms_created: u64,
    pub(crate) most_vms: u64,
}

impl ScaleRun {
    /// Scales to `target` machines, and waits until nothing is written. Costs are divided by `machines`.
    pub(crate) async fn measure<C: Measurable>(
        measured: &mut Measured<C>,
        target: u32,
        machines: u32,
        timeout: Duration,
    ) -> Result<Self, BenchError> {
        let pids = pids(measured)?;
        let before = measured.cloud().reset_stats().await?;
        let drivers = pids.iter().map(|pid| children(*pid).map_err(proc("find the children of", *pid)));
        let driver = Processes::start(drivers.collect::<Result<Vec<_>, _>>()?.concat())?;
        let (started, controllers) = (Instant::now(), Processes::start(pids)?);
        measured.set_replicas(target as usize).await?;
        if let Err(error) = wait_until_scaled(measured, u64::from(target), timeout).await {
            return Err(measured.explain(error));
        }
        let wall = started.elapsed();
        eprintln!("{:>5.0} s: done; waiting until nothing is written", wall.as_secs_f64());
        let (mut costs, mut created) = (Costs::of(machines), Created::default());
        let count = |entry: Entry| {
            costs.add::<C>(&entry);
            created.add(&entry);
        };
        measured.settle(count).await?;
        let (controllers, driver) = (controllers.usage()?, driver.usage()?);
        let stats = measured.cloud().stats().await?;
        let vms_created = stats.created - before.created;
        Ok(Self { wall, controllers, driver, costs, created, vms_created, most_vms: stats.most_live_at_once })
    }

    /// Processor time of controllers and driver.
    pub(crate) fn processor(&self) -> Duration {
        self.controllers.processor + self.driver.processor
    }

    /// The sum of the peaks of memory of controllers and driver, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.controllers.peak_memory + self.driver.peak_memory
    }
}

/// The peak memory of the controllers since their start, in bytes.
pub(crate) fn memory<C: Measurable>(measured: &mut Measured<C>) -> Result<u64, BenchError> {
    total(&pids(measured)?, peak_memory)
}

/// What is resident of the controllers at present.
pub(crate) fn resident_now<C: Measurable>(measured: &mut Measured<C>) -> Result<Resident, BenchError> {
    total(&pids(measured)?, resident)
}

/// The processes of the controllers.
pub(crate) fn pids<C: Measurable>(measured: &mut Measured<C>) -> Result<Vec<u32>, BenchError> {
    measured.controllers().check()?;
    let missing = |name: &str| BenchError::Failed(format!("{name} does not run"));
    let processes = measured.controllers().processes().into_iter();
    processes.map(|(name, pid)| pid.ok_or_else(|| missing(name))).collect()
}

/// The sum over processes of a number that the kernel reports.
fn total<T: Sum>(pids: &[u32], read: impl Fn(u32) -> io::Result<T>) -> Result<T, BenchError> {
    let each = pids.iter().map(|pid| read(*pid).map_err(proc("read", *pid)));
    Ok(each.sum::<Result<T, ProcessError>>()?)
}

fn proc(action: &'static str, pid: u32) -> impl FnOnce(io::Error) -> ProcessError {
    ProcessError::file(action, format!("/proc/{pid}"))
}

/// Waits until the status reports `target` machines, all Running, and the cloud has as many VMs.
async fn wait_until_scaled<C: Measurable>(
    measured: &mut Measured<C>,
    target: u64,
    timeout: Duration,
) -> Result<(), BenchError> {
    let deployments: Api<MachineDeployment> = Api::namespaced(measured.client(), NAMESPACE);
    let (cloud, since, mut reported) = (measured.cloud(), Instant::now(), Instant::now());
    loop {
        measured.controllers().check()?;
        let deployment = deployments.get(measured.deployment()).await;
        let deployment = deployment.map_err(ControlPlaneError::request("read the machine deployment"))?;
        let (machines, running) = counts(&deployment);
        let vms = cloud.stats().await?.live;
        if is_observed(&deployment) && [machines, running, vms] == [target; 3] {
            return Ok(());
        }
        if reported.elapsed() >= PROGRESS {
            reported = Instant::now();
            let seconds = since.elapsed().as_secs();
            eprintln!("{seconds:>5} s: {machines} machines, {running} Running, {vms} VMs; wanted: {target}");
        }
        if since.elapsed() > timeout {
            let what = format!("{machines} machines, {running} Running, {vms} VMs instead of {target}");
            let seen = unfinished(&measured.client()).await?;
            return Err(DevclusterError::Machines { what, waited: timeout, seen }.into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the status is about the latest generation.
fn is_observed(deployment: &MachineDeployment) -> bool {
    let observed = deployment.status.as_ref().map(|status| status.observed_generation);
    observed == deployment.metadata.generation
}

/// The number of machines, including those in deletion, and of running ones.
fn counts(deployment: &MachineDeployment) -> (u64, u64) {
    let status = deployment.status.as_ref();
    let [machines, running] = [status.map(|status| status.replicas), status.map(|status| status.ready_replicas)]
        .map(|count| u64::try_from(count.unwrap_or(0)).unwrap_or(0));
    (machines, running)
}

impl fmt::Display for ScaleRun {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wall, controllers, driver, costs, created, vms_created, most_vms } = self;
        writeln!(formatter, "{costs}")?;
        let [writes, tokens, events, reads] =
            [RequestKind::Write, RequestKind::Token, RequestKind::Event, RequestKind::Read]
                .map(|apart| costs.each(apart));
        writeln!(
            formatter,
            "per machine: {writes:.2} writes, {tokens:.2} for bootstrap tokens, {events:.2} events, {reads:.2} reads"
        )?;
        writeln!(formatter, "wall time: {:.1} s", wall.as_secs_f64())?;
        for (name, Usage { processor, peak_memory, .. }) in [("controllers", controllers), ("driver", driver)] {
            let (seconds, memory) = (processor.as_secs_f64(), mebibytes(*peak_memory));
            let each = seconds * 1_000.0 / f64::from(costs.machines());
            writeln!(formatter, "{name}: {seconds:.2} CPU s, {each:.2} ms per machine, {memory:.1} MiB at the peak")?;
        }
        writeln!(formatter, "memory of the controllers at the end: {}", controllers.resident)?;
        let names = created.names.len();
        let names = if names > 0 { format!(", with {names} names") } else { String::new() };
        writeln!(formatter, "Machines created: {}{names}", created.requests)?;
        writeln!(formatter, "VMs created: {vms_created}; at most {most_vms} at once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(resource: &str, subresource: &str, name: &str, code: u16) -> Entry {
        Entry {
            user_agent: "nodewright/1".to_owned(),
            user: String::new(),
            verb: "patch".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
            code,
            uri: String::new(),
            received: jiff::Timestamp::UNIX_EPOCH,
            answered: jiff::Timestamp::UNIX_EPOCH,
            lines: None,
            body: serde_json::Value::Null,
        }
    }

    #[test]
    fn only_successful_creations_count() {
        let mut created = Created::default();
        for entry in [
            entry("machines", "", "a", 201),
            entry("machines", "", "a", 200),
            entry("machines", "", "b", 409),
            entry("machines", "status", "b", 201),
            entry("machinesets", "", "c", 201),
            entry("machines", "", "a", 201),
        ] {
            created.add(&entry);
        }
        assert_eq!((created.requests, created.names.len()), (2, 1));
    }

    #[test]
    fn a_status_of_an_earlier_generation_does_not_count() {
        let deployment = |generation: i64, status: serde_json::Value| -> MachineDeployment {
            serde_json::from_value(json!({
                "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
                "metadata": {"name": "a", "generation": generation},
                "spec": {"replicas": 3, "template": {"spec": {"class": {"kind": "MachineClass", "name": "c"}}}},
                "status": status,
            }))
            .unwrap()
        };
        let before = deployment(2, json!({"observedGeneration": 1}));
        assert!(!is_observed(&before));
        assert_eq!(counts(&before), (0, 0));
        let after = deployment(2, json!({"observedGeneration": 2, "replicas": 3, "readyReplicas": 1}));
        assert!(is_observed(&after));
        assert_eq!(counts(&after), (3, 1));
    }
}
