//! machine-controller-manager as child processes: the real one, in our place or beside us.
//!
//! It has two processes, each of which replaces one of `nodewright mcm` and `nodewright mc`; see [`McmHalf`].
//!
//! # Guarantees
//!
//! * When [`McmProcess::start_on`] returns, `/healthz` answers.
//! * The processes end with the control plane.
//!
//! # Caveats
//!
//! * Healthy does not mean leading. Both processes take the name of the computer as their identity in the Lease, so that a
//!   process that is started again after a `kill -9` continues with the Lease of the killed one.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use http::StatusCode;

use crate::{
    control_plane::{ControlPlane, machine_controller_manager_binaries},
    devcluster::{
        http_get::{get, text},
        manager::{ManagerError, POLL_INTERVAL, check_start},
        manager_options::flag_value,
    },
    process::{Process, free_ports},
};

/// How many times another port is tried.
const ATTEMPTS: usize = 5;

/// One of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McmHalf {
    /// The controllers of MachineDeployments and MachineSets; ours are in `nodewright mcm`.
    ControllerManager,
    /// The controllers of Machines and MachineClasses, with the driver; ours are in `nodewright mc`.
    Controller,
}

impl McmHalf {
    /// Both, in the order of ownership.
    pub const BOTH: [Self; 2] = [Self::ControllerManager, Self::Controller];

    /// The name of the executable, of the process and of its Lease.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ControllerManager => "machine-controller-manager",
            Self::Controller => "machine-controller",
        }
    }
}

/// How machine-controller-manager is started.
#[derive(Clone, Debug)]
pub struct McmOptions {
    /// The kubeconfig of the control and target cluster.
    pub kubeconfig: PathBuf,
    /// The namespace of the custom resources.
    pub namespace: String,
    /// The URL of the fake cloud.
    pub cloud_url: String,
    /// Additional flags for both processes, each as `--name=value`.
    pub flags: Vec<String>,
    /// Additional flags for [`McmHalf::ControllerManager`].
    pub controller_manager_flags: Vec<String>,
    /// Additional flags for [`McmHalf::Controller`].
    pub controller_flags: Vec<String>,
    /// The directory of the logs. `None`: that of the control plane.
    pub logs: Option<PathBuf>,
    /// How long a process may take until it is healthy.
    pub start_timeout: Duration,
}

impl McmOptions {
    /// One cluster as control and target cluster, namespace `default`, machine-controller-manager's default flags.
    pub fn new(kubeconfig: impl Into<PathBuf>, cloud_url: impl Into<String>) -> Self {
        Self {
            kubeconfig: kubeconfig.into(),
            namespace: "default".to_owned(),
            cloud_url: cloud_url.into(),
            flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            controller_flags: Vec::new(),
            logs: None,
            start_timeout: Duration::from_mins(1),
        }
    }

    fn arguments(&self, half: McmHalf, port: u16) -> Vec<String> {
        let kubeconfig = self.kubeconfig.display();
        let mut arguments = vec![
            format!("--namespace={}", self.namespace),
            format!("--control-kubeconfig={kubeconfig}"),
            format!("--target-kubeconfig={kubeconfig}"),
            "--address=127.0.0.1".to_owned(),
            format!("--port={port}"),
        ];
        arguments.extend(self.flags.iter().cloned());
        match half {
            McmHalf::ControllerManager => arguments.extend(self.controller_manager_flags.iter().cloned()),
            McmHalf::Controller => {
                arguments.push(format!("--simulated-cloud-url={}", self.cloud_url));
                arguments.extend(self.controller_flags.iter().cloned());
            }
        }
        arguments
    }
}

/// One running process of machine-controller-manager. Dropping it kills it. See the [module](self).
#[derive(Debug)]
pub struct McmProcess {
    half: McmHalf,
    process: Process,
    port: u16,
    start_timeout: Duration,
}

impl McmProcess {
    /// Starts a process and waits until it is healthy. Builds the executable if it is missing. Tries another port if the port
    /// is in use.
    pub async fn start_on(plane: &ControlPlane, half: McmHalf, options: &McmOptions) -> Result<Self, ManagerError> {
        let program = machine_controller_manager_binaries().await?.join(half.name());
        let mut attempt = 1;
        loop {
            let [free]: [u16; 1] = free_ports()?;
            let port = flag_value(&options.flags, "port").and_then(|port| port.parse().ok()).unwrap_or(free);
            let mut process = plane.process(half.name(), &program, options.arguments(half, port));
            if let Some(logs) = &options.logs {
                process = process.with_log(logs.join(format!("{}.log", half.name())));
            }
            process.start()?;
            let mut started = Self { half, process, port, start_timeout: options.start_timeout };
            match started.wait_healthy().await {
                Err(ManagerError::Process(error)) if error.is_port_clash() && attempt < ATTEMPTS => attempt += 1,
                result => return result.map(|()| started),
            }
        }
    }

    async fn wait_healthy(&mut self) -> Result<(), ManagerError> {
        let (since, url) = (Instant::now(), format!("http://127.0.0.1:{}/healthz", self.port));
        loop {
            let last = match get(&url).await {
                Ok((StatusCode::OK, _)) => return Ok(()),
                Ok((code, text)) => format!("{url} answers {code}: {}", text.trim_end()),
                Err(reason) => reason,
            };
            check_start(&mut self.process, since, self.start_timeout, &last)?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Which process it is.
    pub fn half(&self) -> McmHalf {
        self.half
    }

    /// The process id, until the process is killed by [`kill_9`](Self::kill_9).
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.pid().is_some() && self.process.ended().is_none()
    }

    /// The metrics as text.
    pub async fn metrics(&self) -> Result<String, ManagerError> {
        text(format!("http://127.0.0.1:{}/metrics", self.port)).await
    }

    /// Fails, with the last lines of its log, if the process ended by itself.
    pub fn check(&mut self) -> Result<(), ManagerError> {
        Ok(self.process.check()?)
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill_9(&mut self) {
        self.process.kill();
    }

    /// Starts the process again with the same command line and log, and waits until it is healthy.
    pub async fn start_again(&mut self) -> Result<(), ManagerError> {
        self.process.start()?;
        self.wait_healthy().await
    }

    /// The last lines of its log, indented.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// Both processes of machine-controller-manager. Dropping them kills them.
#[derive(Debug)]
pub struct McmProcesses {
    controller_manager: McmProcess,
    controller: McmProcess,
}

impl McmProcesses {
    /// Starts both processes, and waits until they are healthy.
    pub async fn start_on(plane: &ControlPlane, options: &McmOptions) -> Result<Self, ManagerError> {
        Ok(Self {
            controller_manager: McmProcess::start_on(plane, McmHalf::ControllerManager, options).await?,
            controller: McmProcess::start_on(plane, McmHalf::Controller, options).await?,
        })
    }

    /// Starts processes that ended again, with other options.
    pub(crate) async fn start_ended_on(
        &mut self,
        plane: &ControlPlane,
        options: &McmOptions,
    ) -> Result<(), ManagerError> {
        for half in self.halves().filter_map(|half| (!half.is_running()).then_some(half)) {
            *half = McmProcess::start_on(plane, half.half, options).await?;
        }
        Ok(())
    }

    /// Both processes.
    pub fn halves(&mut self) -> impl Iterator<Item = &mut McmProcess> {
        [&mut self.controller_manager, &mut self.controller].into_iter()
    }

    /// Kills both processes (SIGKILL) and waits for their end.
    pub fn kill_9(&mut self) {
        self.halves().for_each(McmProcess::kill_9);
    }

    /// Starts both processes again with the same command lines and logs, and waits until they are healthy.
    pub async fn start_again(&mut self) -> Result<(), ManagerError> {
        self.controller_manager.start_again().await?;
        self.controller.start_again().await
    }

    /// The last lines of both logs, indented.
    pub fn log_tail(&self) -> String {
        let part = |half: &McmProcess| format!("  {}:\n{}", half.half.name(), half.log_tail());
        [part(&self.controller_manager), part(&self.controller)].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_has_its_own_flags() {
        let options = McmOptions {
            flags: vec!["--kube-api-qps=7".to_owned()],
            controller_manager_flags: vec!["--safety-up=9".to_owned()],
            controller_flags: vec!["--machine-health-timeout=30s".to_owned()],
            ..McmOptions::new("/k", "http://c")
        };
        let [manager, controller] = McmHalf::BOTH.map(|half| options.arguments(half, 1).join(" "));
        assert!(manager.ends_with("--port=1 --kube-api-qps=7 --safety-up=9"), "{manager}");
        let ours = "--kube-api-qps=7 --simulated-cloud-url=http://c --machine-health-timeout=30s";
        assert!(controller.ends_with(ours), "{controller}");
    }
}
