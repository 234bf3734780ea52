//! A control plane, a fake cloud and controllers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::Client;

use crate::{
    DevclusterError,
    controllers::{Controllers, Surroundings},
    directory::{CLOUD_STATE, Endpoints},
    manager::ManagerProcess,
};
use nodewright_e2e_cloud::{
    CloudClient,
    process::{BINARY as CLOUD_BINARY, BINARY_VARIABLE as CLOUD_BINARY_VARIABLE},
};
use nodewright_e2e_control_plane::{Component, ControlPlane, ControlPlaneError, ControlPlaneOptions, parse_manifest};
use nodewright_e2e_process::{Process, ProcessError, executable, free_ports, repository, write_private};
use serde_json::json;

/// How long the cloud may take until it answers: milliseconds on an idle computer.
const CLOUD_START_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a manager that was asked to end may take, until a new one is refused.
pub(crate) const MANAGER_END_TIMEOUT: Duration = Duration::from_secs(3);
/// How many ports are tried for the cloud.
const ATTEMPTS: usize = 5;
/// The namespace of the custom resources.
pub const NAMESPACE: &str = "default";

/// How a devcluster is started.
#[derive(Clone, Debug, Default)]
pub struct DevclusterOptions {
    /// The directory of its files. `None`: a temporary directory, which is removed.
    pub directory: Option<PathBuf>,
    /// More flags for each process of the controllers.
    pub manager_flags: Vec<String>,
    /// More flags for the cloud.
    pub cloud_flags: Vec<String>,
    /// Start no controller manager and no scheduler.
    pub bare: bool,
    /// Whether VMs are real, with kubelets that run pods. Needs root and some packages.
    pub real_nodes: bool,
}

/// A running devcluster, by default with Nodewright's manager. Dropping it kills its processes; [`Devcluster::stop`] ends them
/// gracefully.
#[derive(Debug)]
pub struct Devcluster<C = ManagerProcess> {
    // Fields are dropped in this order.
    controllers: C,
    cloud: Process,
    cloud_url: String,
    control_plane: ControlPlane,
}

impl<C: Controllers> Devcluster<C> {
    /// Starts everything, installs the CRDs, and waits until all is ready. Calls `report` after each step.
    pub async fn start(options: &DevclusterOptions, report: impl Fn(String)) -> Result<Self, DevclusterError> {
        report("starting the control plane".to_owned());
        let plane_options = ControlPlaneOptions {
            directory: options.directory.clone(),
            controller_manager: !options.bare,
            scheduler: !options.bare,
            node_network: options.real_nodes,
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(plane_options).await?;
        report(format!("the control plane is ready at {}", plane.server()));
        let (cloud, cloud_url) = start_cloud(&plane, &options.cloud_flags).await?;
        report(format!("the cloud listens at {cloud_url}"));
        for folder in C::crds().await? {
            plane.apply_file(folder).await?;
        }
        let surroundings = Surroundings { control_plane: &plane, cloud_url: &cloud_url, flags: &options.manager_flags };
        let controllers = C::start(surroundings).await?;
        report(controllers.description());
        Ok(Self { controllers, cloud, cloud_url, control_plane: plane })
    }

    /// Applies `config/samples` with kubectl. For real nodes, the user data is that with which they join, and there is a
    /// Deployment besides, whose pods they run.
    pub async fn apply_samples(&self) -> Result<(), DevclusterError> {
        let rendered =
            self.control_plane.kubectl([Path::new("kustomize"), &repository().join("config/samples")]).await?;
        let user_data = self.control_plane.node_network().map(|_| self.control_plane.user_data(&[]));
        let file = self.control_plane.directory().join("samples.json");
        write_private(&file, &samples(&rendered, user_data.as_deref())?)?;
        let apply = ["apply", "--server-side", "--namespace", NAMESPACE, "--filename"].map(Path::new);
        Ok(self.control_plane.kubectl(apply.into_iter().chain([file.as_path()])).await.map(drop)?)
    }

    /// The control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// A client of the API server, as administrator.
    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// A client of the cloud.
    pub fn cloud(&self) -> CloudClient {
        CloudClient::new(&self.cloud_url)
    }

    /// The controllers.
    pub fn controllers(&mut self) -> &mut C {
        &mut self.controllers
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        Endpoints {
            kubeconfig: self.control_plane.kubeconfig_path(),
            namespace: NAMESPACE.to_owned(),
            cloud_url: self.cloud_url.clone(),
            audit_log: self.control_plane.audit_log(),
            binaries: self.control_plane.binaries().to_owned(),
        }
    }

    /// The process ids of running processes, by name.
    pub fn pids(&mut self) -> BTreeMap<String, u32> {
        let mut pids: BTreeMap<_, _> =
            self.control_plane.pids().into_iter().map(|(component, pid)| (component.name().to_owned(), pid)).collect();
        if self.cloud.ended().is_none() {
            pids.extend(self.cloud.pid().map(|pid| ("cloud".to_owned(), pid)));
        }
        let controllers = self.controllers.processes().into_iter();
        pids.extend(controllers.filter_map(|(name, pid)| Some((name.to_owned(), pid?))));
        pids
    }

    /// Starts controllers that ended again with these flags. Fails if all run. `program` overrides the executable of Nodewright.
    pub async fn start_controllers(
        &mut self,
        flags: &[String],
        program: Option<PathBuf>,
    ) -> Result<(), DevclusterError> {
        let surroundings = Surroundings { control_plane: &self.control_plane, cloud_url: &self.cloud_url, flags };
        self.controllers.start_ended(surroundings, program).await
    }

    /// Starts processes that ended by themselves again, except the controllers. Calls `report` for each.
    pub async fn restart_ended(&mut self, report: impl Fn(String)) -> Result<(), DevclusterError> {
        if let Some(status) = self.cloud.ended() {
            report(format!("the cloud ended with {status}; starting it again"));
            self.cloud.start()?;
        }
        if let Err(ControlPlaneError::Process(ProcessError::Exited { name, status, .. })) = self.control_plane.check() {
            report(format!("{name} ended with {status}; starting it again"));
            let components =
                [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler];
            if let Some(component) = components.into_iter().find(|component| component.name() == name) {
                self.control_plane.start_again(component).await?;
                report(format!("{name} is ready again"));
            }
        }
        Ok(())
    }

    /// Ends everything. Nodewright's manager finishes what it does and releases its leases.
    pub async fn stop(mut self) -> Result<(), DevclusterError> {
        let ended = self.controllers.terminate().await;
        self.cloud.kill();
        drop(self);
        ended.map_err(DevclusterError::from)
    }
}

/// The samples. With user data, nodes are real: they get that user data, and Pods.
///
/// Classes name the namespace of their Secret: machine-controller-manager does not look for it in their own.
fn samples(rendered: &str, user_data: Option<&str>) -> Result<String, DevclusterError> {
    let mut objects = parse_manifest(rendered, "config/samples")?;
    for object in &mut objects {
        match (object.types.as_ref().map(|types| types.kind.as_str()), user_data) {
            (Some("MachineClass"), _) => object.data["secretRef"]["namespace"] = NAMESPACE.into(),
            (Some("Secret"), Some(user_data)) => object.data["stringData"]["userData"] = user_data.into(),
            _ => {}
        }
    }
    if user_data.is_some() {
        objects.extend(parse_manifest(include_str!("workload.yaml"), "workload.yaml")?);
    }
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())
}

impl Devcluster {
    /// The manager.
    pub fn manager(&mut self) -> &mut ManagerProcess {
        &mut self.controllers
    }
}

/// Starts a cloud with its kubelets, and waits until it answers. Tries another port if the port is in use.
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
    let nodes = match plane.node_network() {
        Some(directory) => format!("--real-nodes={}", directory.display()),
        None => format!("--kubeconfig={}", plane.kubeconfig_path().display()),
    };
    let arguments =
        [format!("--listen={address}"), nodes, format!("--state={}", plane.directory().join(CLOUD_STATE).display())];
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

/// Waits until the process ends by itself.
async fn ended(process: &mut Process) -> ProcessError {
    loop {
        if let Err(error) = process.check() {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
