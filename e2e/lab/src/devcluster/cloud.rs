//! What makes the VMs of a devcluster: the fake cloud, or moto's EC2 behind its proxy.

use std::{path::PathBuf, time::Duration};

use nodewright_e2e_cloud::CloudClient;

use crate::{
    cloud::{BINARY as CLOUD_BINARY, BINARY_VARIABLE as CLOUD_BINARY_VARIABLE},
    control_plane::ControlPlane,
    devcluster::{DevclusterError, directory::CLOUD_STATE},
    ec2::{Account, Ec2Options, Ec2Processes},
    process::{Process, ProcessError, executable, free_ports},
};

/// How long the cloud may take until it answers: milliseconds on an idle computer.
const CLOUD_START_TIMEOUT: Duration = Duration::from_mins(1);
/// How many ports are tried for the cloud.
const ATTEMPTS: usize = 5;

/// Whose VMs a devcluster has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Provider {
    /// The fake cloud
    #[default]
    Simulated,
    /// moto's EC2, with the driver for AWS; needs `NODEWRIGHT_MOTO_SERVER`
    Aws,
}

/// A cloud that runs. Dropping it kills its processes.
#[derive(Debug)]
pub(crate) enum Cloud {
    /// The fake cloud.
    Simulated { process: Process, url: String },
    /// EC2, and the script that runs the driver.
    Aws { ec2: Box<Ec2Processes>, driver: PathBuf },
}

impl Cloud {
    /// Starts a cloud whose VMs join the control plane. `flags` are those of its process.
    pub(crate) async fn start(
        provider: Provider,
        plane: &ControlPlane,
        flags: &[String],
    ) -> Result<Self, DevclusterError> {
        match provider {
            Provider::Simulated => start_simulated(plane, flags).await,
            Provider::Aws => {
                let options = Ec2Options { kubeconfig: Some(plane.kubeconfig_path()), flags: flags.to_vec() };
                let describe = |name: &str, program, arguments| plane.process(name, program, arguments);
                let ec2 = Box::new(Ec2Processes::start(describe, &options).await?);
                let driver = ec2.driver(plane.directory(), &[])?.path().to_owned();
                Ok(Self::Aws { ec2, driver })
            }
        }
    }

    pub(crate) fn url(&self) -> &str {
        match self {
            Self::Simulated { url, .. } => url,
            Self::Aws { ec2, .. } => ec2.url(),
        }
    }

    /// What is ready, for people.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Simulated { url, .. } => format!("the cloud listens at {url}"),
            Self::Aws { ec2, .. } => format!("moto's EC2 listens at {}", ec2.url()),
        }
    }

    pub(crate) fn processes(&mut self) -> Vec<&mut Process> {
        match self {
            Self::Simulated { process, .. } => vec![process],
            Self::Aws { ec2, .. } => ec2.processes().into(),
        }
    }

    /// The flags by which a manager uses it. Without any, the manager has the driver of the fake cloud.
    pub(crate) fn manager_flags(&self) -> Vec<String> {
        match self {
            Self::Simulated { .. } => vec![],
            Self::Aws { driver, .. } => vec![format!("--driver={}", driver.display())],
        }
    }

    /// What classes name at EC2.
    pub(crate) fn account(&self) -> Option<&Account> {
        match self {
            Self::Simulated { .. } => None,
            Self::Aws { ec2, .. } => Some(ec2.account()),
        }
    }
}

/// Starts a fake cloud with its kubelets, and waits until it answers. Tries another port if the port is in use.
async fn start_simulated(plane: &ControlPlane, flags: &[String]) -> Result<Cloud, DevclusterError> {
    let mut attempt = 1;
    loop {
        match start_simulated_once(plane, flags).await {
            Err(DevclusterError::Process(error)) if error.is_port_clash() && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

async fn start_simulated_once(plane: &ControlPlane, flags: &[String]) -> Result<Cloud, DevclusterError> {
    let program = executable(CLOUD_BINARY, CLOUD_BINARY_VARIABLE)?;
    let [port]: [u16; 1] = free_ports()?;
    let address = format!("127.0.0.1:{port}");
    let nodes = match plane.node_network() {
        Some(directory) => format!("--real-nodes={}", directory.display()),
        None => format!("--kubeconfig={}", plane.kubeconfig_path().display()),
    };
    let arguments =
        [format!("--listen={address}"), nodes, format!("--state={}", plane.directory().join(CLOUD_STATE).display())];
    let mut process = plane.process("cloud", program, arguments.into_iter().chain(flags.iter().cloned()));
    process.start()?;
    let url = format!("http://{address}");
    let answers = CloudClient::new(&url);
    let is_up = answers.wait_until_up(CLOUD_START_TIMEOUT);
    tokio::select! {
        result = is_up => result?,
        error = ended(&mut process) => return Err(error.into()),
    }
    Ok(Cloud::Simulated { process, url })
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
