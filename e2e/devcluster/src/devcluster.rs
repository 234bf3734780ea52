//! A set: a control plane, a cloud and a manager.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::Client;

use crate::{
    DevclusterError,
    directory::{CLOUD_STATE, Reach},
    manager::{ManagerOptions, ManagerProcess},
};
use nodewright_e2e_cloud::{
    CloudClient,
    process::{BINARY as CLOUD_BINARY, BINARY_VARIABLE as CLOUD_BINARY_VARIABLE},
};
use nodewright_e2e_control_plane::{Component, ControlPlane, ControlPlaneError, ControlPlaneOptions};
use nodewright_e2e_process::{Process, ProcessError, executable, free_ports, repository};

/// How long the cloud may take until it answers; some milliseconds, on an idle machine.
const CLOUD_START_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a manager that was killed, or asked to end, may take for that before it counts as one that goes on.
const MANAGER_END_TIMEOUT: Duration = Duration::from_secs(3);
/// How often another port is tried for the cloud.
const ATTEMPTS: usize = 5;
/// Where the custom resources live.
pub const NAMESPACE: &str = "default";

/// How a set is started.
#[derive(Clone, Debug, Default)]
pub struct DevclusterOptions {
    /// Where it keeps its files; `None` for a temporary directory, of which nothing stays.
    pub directory: Option<PathBuf>,
    /// More flags for the manager.
    pub manager_flags: Vec<String>,
    /// More flags for the cloud.
    pub cloud_flags: Vec<String>,
    /// Without controller manager and scheduler: nothing but etcd and the API server stands beside the manager.
    pub bare: bool,
}

/// A running set. Dropping it kills all its processes, without asking; see [`Devcluster::stop`].
#[derive(Debug)]
pub struct Devcluster {
    // Dropped in this order.
    manager: ManagerProcess,
    cloud: Process,
    cloud_url: String,
    plane: ControlPlane,
}

impl Devcluster {
    /// Starts everything, CRDs included, and waits until it is ready. `report` is told of each step.
    pub async fn start(options: &DevclusterOptions, report: impl Fn(String)) -> Result<Self, DevclusterError> {
        report("starting the control plane".to_owned());
        let plane_options = ControlPlaneOptions {
            directory: options.directory.clone(),
            controller_manager: !options.bare,
            scheduler: !options.bare,
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(plane_options).await?;
        report(format!("the control plane is ready at {}", plane.server()));
        let (cloud, cloud_url) = start_cloud(&plane, &options.cloud_flags).await?;
        report(format!("the cloud listens at {cloud_url}"));
        plane.apply_file(repository().join("config/crd/bases")).await?;
        let manager = manager_options(&plane, &cloud_url, &options.manager_flags);
        let manager = ManagerProcess::start_on(&plane, manager).await?;
        report(format!("the manager is ready, its endpoints at {}", manager.url("/")));
        Ok(Self { manager, cloud, cloud_url, plane })
    }

    /// Applies `config/samples`, as a user would.
    pub async fn apply_samples(&self) -> Result<(), DevclusterError> {
        let samples = repository().join("config/samples");
        let arguments = ["apply", "--server-side", "--namespace", NAMESPACE, "--kustomize"].map(Path::new);
        self.plane.kubectl(arguments.into_iter().chain([samples.as_path()])).await?;
        Ok(())
    }

    /// The control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// A client of the administrator.
    pub fn client(&self) -> Client {
        self.plane.client()
    }

    /// A client of the cloud.
    pub fn cloud(&self) -> CloudClient {
        CloudClient::new(&self.cloud_url)
    }

    /// The manager.
    pub fn manager(&mut self) -> &mut ManagerProcess {
        &mut self.manager
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach {
            kubeconfig: self.plane.kubeconfig_path(),
            namespace: NAMESPACE.to_owned(),
            cloud_url: self.cloud_url.clone(),
            audit_log: self.plane.audit_log(),
            binaries: self.plane.binaries().to_owned(),
        }
    }

    /// The processes that run, by name.
    pub fn pids(&mut self) -> BTreeMap<String, u32> {
        let mut pids: BTreeMap<_, _> =
            self.plane.pids().into_iter().map(|(component, pid)| (component.name().to_owned(), pid)).collect();
        if self.cloud.ended().is_none() {
            pids.extend(self.cloud.pid().map(|pid| ("cloud".to_owned(), pid)));
        }
        if self.manager.is_running() {
            pids.extend(self.manager.pid().map(|pid| ("manager".to_owned(), pid)));
        }
        pids
    }

    /// Starts the manager again, with these flags; an error if it runs. `program` is the executable, if not the one
    /// that was found at first.
    pub async fn start_manager(&mut self, flags: &[String], program: Option<PathBuf>) -> Result<(), DevclusterError> {
        // Who has just killed it is not asked to wait until the kernel is done with it.
        if let (Some(pid), Err(_)) = (self.manager.pid(), self.manager.wait_for_end(MANAGER_END_TIMEOUT).await) {
            return Err(DevclusterError::ManagerRuns { pid });
        }
        let options = ManagerOptions { program, ..manager_options(&self.plane, &self.cloud_url, flags) };
        self.manager = ManagerProcess::start_on(&self.plane, options).await?;
        Ok(())
    }

    /// Starts again what has ended by itself, the manager excepted: as the kubelet of a control plane node would do.
    /// `report` is told.
    pub async fn mend(&mut self, report: impl Fn(String)) -> Result<(), DevclusterError> {
        if let Some(status) = self.cloud.ended() {
            report(format!("the cloud ended with {status}; starting it again"));
            self.cloud.start()?;
        }
        if let Err(ControlPlaneError::Process(ProcessError::Exited { name, status, .. })) = self.plane.check() {
            report(format!("{name} ended with {status}; starting it again"));
            let components =
                [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler];
            if let Some(component) = components.into_iter().find(|component| component.name() == name) {
                self.plane.start_again(component).await?;
                report(format!("{name} is ready again"));
            }
        }
        Ok(())
    }

    /// Ends everything in order: the manager may finish what it does, and hands its leases back.
    pub async fn stop(mut self) -> Result<(), DevclusterError> {
        let ended = self.manager.terminate().await;
        self.cloud.kill();
        // Killing the control plane takes some milliseconds, in which this thread would do nothing else.
        drop(self);
        ended.map(drop).map_err(DevclusterError::from)
    }
}

fn manager_options(plane: &ControlPlane, cloud_url: &str, flags: &[String]) -> ManagerOptions {
    let options = ManagerOptions::new(plane.kubeconfig_path(), cloud_url);
    ManagerOptions { namespace: NAMESPACE.to_owned(), ..options }.with_flags(flags)
}

/// Starts a cloud with its kubelets, and waits until it answers. If somebody takes its port in between, another one is
/// tried.
async fn start_cloud(plane: &ControlPlane, flags: &[String]) -> Result<(Process, String), DevclusterError> {
    let mut attempt = 1;
    loop {
        match start_cloud_once(plane, flags).await {
            Err(DevclusterError::Process(error)) if error.is_port_clash() && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

async fn start_cloud_once(plane: &ControlPlane, flags: &[String]) -> Result<(Process, String), DevclusterError> {
    let program = executable(CLOUD_BINARY, CLOUD_BINARY_VARIABLE)?;
    let [port]: [u16; 1] = free_ports()?;
    let address = format!("127.0.0.1:{port}");
    let arguments = [
        format!("--listen={address}"),
        format!("--kubeconfig={}", plane.kubeconfig_path().display()),
        format!("--state={}", plane.directory().join(CLOUD_STATE).display()),
    ];
    let mut cloud = plane.process("cloud", program, arguments.into_iter().chain(flags.iter().cloned()));
    cloud.start()?;
    let url = format!("http://{address}");
    let answers = CloudClient::new(&url);
    let is_up = answers.wait_until_up(CLOUD_START_TIMEOUT);
    tokio::select! {
        result = is_up => result?,
        error = ended(&mut cloud) => return Err(error.into()),
    }
    Ok((cloud, url))
}

/// Returns when the process has ended by itself.
async fn ended(process: &mut Process) -> ProcessError {
    loop {
        if let Err(error) = process.check() {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
