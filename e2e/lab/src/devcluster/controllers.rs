//! What runs in a devcluster beside the control plane and the cloud: Nodewright, or machine-controller-manager in its place.

use std::path::PathBuf;

use crate::{
    control_plane::{ControlPlane, ControlPlaneError, machine_controller_manager_crds},
    devcluster::{
        DevclusterError, ManagerProcess, McmOptions, McmProcess, McmProcesses, cluster::NAMESPACE,
        manager::ManagerError, manager_options::ManagerOptions,
    },
    process::repository,
};

/// The user of a devcluster's manager.
const MANAGER: &str = "system:serviceaccount:nodewright-system:nodewright";

/// The environment of the controllers of a devcluster.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The control plane: control and target cluster.
    pub control_plane: &'a ControlPlane,
    /// The URL of the cloud.
    pub cloud_url: &'a str,
    /// Additional flags, for each process.
    pub flags: &'a [String],
}

/// The controllers of a devcluster: one process or several. Dropping them kills them.
pub trait Controllers: Sized + Send {
    /// The directory of the CRDs that they are used with.
    fn crds() -> impl Future<Output = Result<Vec<PathBuf>, DevclusterError>> + Send;

    /// Starts all processes, and waits until they are ready.
    fn start(surroundings: Surroundings<'_>) -> impl Future<Output = Result<Self, DevclusterError>> + Send;

    /// Starts the processes that ended again, with these flags. Fails if all run. `program` overrides the executable of
    /// Nodewright.
    fn start_ended(
        &mut self,
        surroundings: Surroundings<'_>,
        program: Option<PathBuf>,
    ) -> impl Future<Output = Result<(), DevclusterError>> + Send;

    /// What is ready, and where its endpoints are, for people.
    fn description(&self) -> String;

    /// The processes: name, and process id of those that run.
    fn processes(&mut self) -> Vec<(&str, Option<u32>)>;

    /// Fails, with the last lines of a log, if a process ended by itself.
    fn check(&mut self) -> Result<(), ManagerError>;

    /// The last lines of all logs, indented.
    fn log_tail(&self) -> String;

    /// Ends all processes.
    fn terminate(&mut self) -> impl Future<Output = Result<(), ManagerError>> + Send;
}

impl Controllers for ManagerProcess {
    async fn crds() -> Result<Vec<PathBuf>, DevclusterError> {
        Ok(["bases", "machine-config/bases"].map(|folder| repository().join("config/crd").join(folder)).to_vec())
    }

    async fn start(surroundings: Surroundings<'_>) -> Result<Self, DevclusterError> {
        Ok(Self::start_on(surroundings.control_plane, manager_options(surroundings)?).await?)
    }

    async fn start_ended(
        &mut self,
        surroundings: Surroundings<'_>,
        program: Option<PathBuf>,
    ) -> Result<(), DevclusterError> {
        // A manager that was just killed may not have ended yet.
        if let (Some(pid), Err(_)) = (self.pid(), self.wait_for_end(super::cluster::MANAGER_END_TIMEOUT).await) {
            return Err(DevclusterError::ManagerRuns { pid });
        }
        let options = ManagerOptions { program, ..manager_options(surroundings)? };
        *self = Self::start_on(surroundings.control_plane, options).await?;
        Ok(())
    }

    fn description(&self) -> String {
        format!("the manager is ready, its endpoints at {}", self.url("/"))
    }

    fn processes(&mut self) -> Vec<(&str, Option<u32>)> {
        let running = self.is_running().then(|| self.pid()).flatten();
        vec![(self.options().name.as_str(), running)]
    }

    fn check(&mut self) -> Result<(), ManagerError> {
        self.check()
    }

    fn log_tail(&self) -> String {
        self.log_tail()
    }

    async fn terminate(&mut self) -> Result<(), ManagerError> {
        self.terminate().await.map(drop)
    }
}

/// The manager has the name of a service account, as in a cluster: the API server does not ask the webhooks about Machines that
/// such a user creates. It may do everything nevertheless.
fn manager_options(surroundings: Surroundings<'_>) -> Result<ManagerOptions, ControlPlaneError> {
    let Surroundings { control_plane, cloud_url, flags } = surroundings;
    let kubeconfig = control_plane.kubeconfig_for(MANAGER, &["system:masters"])?;
    let options = ManagerOptions::new(kubeconfig, cloud_url);
    Ok(ManagerOptions { namespace: NAMESPACE.to_owned(), ..options }.with_flags(flags))
}

impl Controllers for McmProcesses {
    async fn crds() -> Result<Vec<PathBuf>, DevclusterError> {
        Ok(vec![machine_controller_manager_crds().await?])
    }

    async fn start(surroundings: Surroundings<'_>) -> Result<Self, DevclusterError> {
        Ok(Self::start_on(surroundings.control_plane, &mcm_options(surroundings)).await?)
    }

    async fn start_ended(&mut self, surroundings: Surroundings<'_>, _: Option<PathBuf>) -> Result<(), DevclusterError> {
        let is_running = self.halves().all(McmProcess::is_running);
        if let (true, Some(pid)) = (is_running, self.halves().find_map(|half| half.pid())) {
            return Err(DevclusterError::ManagerRuns { pid });
        }
        Ok(self.start_ended_on(surroundings.control_plane, &mcm_options(surroundings)).await?)
    }

    fn description(&self) -> String {
        "machine-controller-manager and machine-controller are ready".to_owned()
    }

    fn processes(&mut self) -> Vec<(&str, Option<u32>)> {
        self.halves().map(|half| (half.half().name(), half.is_running().then(|| half.pid()).flatten())).collect()
    }

    fn check(&mut self) -> Result<(), ManagerError> {
        self.halves().try_for_each(McmProcess::check)
    }

    fn log_tail(&self) -> String {
        self.log_tail()
    }

    async fn terminate(&mut self) -> Result<(), ManagerError> {
        // They do not handle SIGTERM.
        self.kill_9();
        Ok(())
    }
}

fn mcm_options(Surroundings { control_plane, cloud_url, flags }: Surroundings<'_>) -> McmOptions {
    let options = McmOptions::new(control_plane.kubeconfig_path(), cloud_url);
    McmOptions { namespace: NAMESPACE.to_owned(), flags: flags.to_vec(), ..options }
}
