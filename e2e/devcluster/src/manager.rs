//! The manager as a child process: started, killed at the worst moment, started again, asked for its metrics.
//!
//! # Guarantees
//!
//! * When [`ManagerProcess::start`] returns, `/readyz` has said that the manager is ready; and if its webhooks were
//!   asked for, the API server calls them.
//! * The process ends with the [`ManagerProcess`] and with the process that started it, however that ends; see
//!   [`supervisor`](nodewright_e2e_process::supervisor).
//! * [`ManagerProcess::start_again`] uses the same command line and the same ports.
//!
//! # Caveats
//!
//! * Ready is not leading: a manager that waits for another one's lease is ready.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use tempfile::TempDir;

use crate::{
    command_line::{self, flag_value},
    http_get::get,
    webhooks,
};
use nodewright_e2e_control_plane::{ControlPlane, ControlPlaneError};
use nodewright_e2e_process::{Process, ProcessError, Supervisor, executable, free_ports};

/// Names the executable, if it does not lie where cargo puts it.
pub const BINARY_VARIABLE: &str = "NODEWRIGHT_BIN";
/// How often other ports are tried.
const ATTEMPTS: usize = 5;
/// Between two looks of a wait.
const LOOK: Duration = Duration::from_millis(50);
/// How long a manager may take to end when it is asked to: its own limit is 5 s.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How a manager is started.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The command of `nodewright`: `manager`, `mcm` or `mc`.
    pub command: String,
    /// What the process is called in errors and, on a control plane, its log: `manager`.
    pub name: String,
    /// The cluster of the custom resources.
    pub control_kubeconfig: PathBuf,
    /// The cluster that nodes join; `None` for none at all.
    pub target_kubeconfig: Option<PathBuf>,
    /// Where the custom resources live.
    pub namespace: String,
    /// Where the fake cloud listens.
    pub cloud_url: String,
    /// Does it serve webhooks, registered by URL? Only the command `manager` does in these processes.
    pub webhooks: bool,
    /// More flags, each as `--name=value`. They win over ours.
    pub flags: Vec<String>,
    /// More environment variables.
    pub environment: Vec<(String, String)>,
    /// The executable; found by [`BINARY_VARIABLE`] or beside the present one if absent.
    pub program: Option<PathBuf>,
    /// Where its output goes, appended. `None`: with [`ManagerProcess::start_on`] beside the logs of the control
    /// plane, else to a temporary file.
    pub log: Option<PathBuf>,
    /// How long it may take to be ready.
    pub start_timeout: Duration,
}

impl ManagerOptions {
    /// A complete manager with webhooks, control and target cluster in one, in namespace `default`.
    pub fn new(kubeconfig: impl Into<PathBuf>, cloud_url: impl Into<String>) -> Self {
        let kubeconfig = kubeconfig.into();
        Self {
            command: "manager".to_owned(),
            name: "manager".to_owned(),
            control_kubeconfig: kubeconfig.clone(),
            target_kubeconfig: Some(kubeconfig),
            namespace: "default".to_owned(),
            cloud_url: cloud_url.into(),
            webhooks: true,
            flags: Vec::new(),
            environment: Vec::new(),
            program: None,
            log: None,
            // Two seconds suffice; a machine that also compiles may take many times that.
            start_timeout: Duration::from_mins(1),
        }
    }

    /// With more flags.
    #[must_use]
    pub fn with_flags(mut self, flags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// Without webhooks.
    #[must_use]
    pub fn without_webhooks(self) -> Self {
        Self { webhooks: false, ..self }
    }

    /// Whether there will be webhooks to wait for: a flag wins.
    fn serves_webhooks(&self) -> bool {
        self.webhooks && flag_value(&self.flags, "webhooks") != Some("false")
    }
}

/// Why a manager could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The process did not start, ended, or is not ready. The message has the last lines of its log.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The control plane, or a request to it.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// Its log needs a place.
    #[error("failed to create a directory for the manager's log")]
    Directory(#[source] std::io::Error),
    /// It does not answer.
    #[error("failed to get {url}: {reason}")]
    Endpoint {
        /// What was asked for.
        url: String,
        /// What happened instead.
        reason: String,
    },
    /// It goes on although it should end.
    #[error("{name} goes on after {waited:?}; the last lines of its log:\n{tail}")]
    NotEnded {
        /// The name of the process.
        name: String,
        /// How long was waited.
        waited: Duration,
        /// The end of its log.
        tail: String,
    },
}

impl ManagerError {
    /// Was a port that we had found free taken by somebody else before the manager could listen on it?
    fn is_port_clash(&self) -> bool {
        matches!(self, Self::Process(error) if error.is_port_clash())
    }
}

/// A running manager. Dropping it kills it. See the [module](self).
#[derive(Debug)]
pub struct ManagerProcess {
    process: Process,
    options: ManagerOptions,
    port: u16,
    webhook_port: Option<u16>,
    _directory: Option<TempDir>,
}

impl ManagerProcess {
    /// Starts a manager and waits until it is ready. If somebody takes one of its ports in between, others are tried.
    pub async fn start(options: ManagerOptions) -> Result<Self, ManagerError> {
        Self::until_ready(|| Self::spawn(options.clone())).await
    }

    /// The same, as one more process of a control plane: it ends with that, and logs to
    /// [`ControlPlane::logs`]`/<name>.log` unless the options say otherwise.
    pub async fn start_on(plane: &ControlPlane, options: ManagerOptions) -> Result<Self, ManagerError> {
        Self::until_ready(|| Self::spawn_on(plane, options.clone())).await
    }

    /// Starts managers until the ports of one are its own, and it is ready.
    async fn until_ready(spawn: impl Fn() -> Result<Self, ManagerError>) -> Result<Self, ManagerError> {
        let mut attempt = 1;
        loop {
            let mut manager = spawn()?;
            match manager.wait_ready().await {
                Err(error) if error.is_port_clash() && attempt < ATTEMPTS => {
                    tracing::warn!(attempt, %error, "a port was taken; starting again with others");
                    attempt += 1;
                }
                result => return result.map(|()| manager),
            }
        }
    }

    /// Starts a manager and does not wait: for one that is meant to fail.
    pub fn spawn(mut options: ManagerOptions) -> Result<Self, ManagerError> {
        let mut directory = None;
        if options.log.is_none() {
            let made = tempfile::Builder::new().prefix("nodewright-manager-").tempdir();
            let made = made.map_err(ManagerError::Directory)?;
            options.log = Some(made.path().join(format!("{}.log", options.name)));
            directory = Some(made);
        }
        let supervisor = Arc::new(Supervisor::start(&[], None)?);
        Self::launch(options, directory, |program, arguments, options| {
            let log = options.log.clone().unwrap_or_default();
            Process::new(&supervisor, &options.name, program, arguments, log)
        })
    }

    /// [`ManagerProcess::start_on`] without the wait.
    pub fn spawn_on(plane: &ControlPlane, options: ManagerOptions) -> Result<Self, ManagerError> {
        Self::launch(options, None, |program, arguments, options| {
            let process = plane.process(&options.name, program, arguments);
            match &options.log {
                Some(log) => process.with_log(log),
                None => process,
            }
        })
    }

    fn launch(
        options: ManagerOptions,
        directory: Option<TempDir>,
        describe: impl FnOnce(PathBuf, Vec<String>, &ManagerOptions) -> Process,
    ) -> Result<Self, ManagerError> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => executable("nodewright", BINARY_VARIABLE)?,
        };
        let ports: [u16; 2] = free_ports()?;
        let port = flag_value(&options.flags, "port").and_then(|port| port.parse().ok()).unwrap_or(ports[0]);
        let webhook_port = options
            .serves_webhooks()
            .then(|| flag_value(&options.flags, "webhook-port").and_then(|port| port.parse().ok()).unwrap_or(ports[1]));
        let arguments = command_line::manager(&options, port, webhook_port);
        let mut process = describe(program, arguments, &options);
        for (name, value) in &options.environment {
            process = process.with_environment(name, value);
        }
        process.start()?;
        Ok(Self { process, options, port, webhook_port, _directory: directory })
    }

    /// Waits until the manager is ready and, if it serves webhooks, until the API server calls them.
    pub async fn wait_ready(&mut self) -> Result<(), ManagerError> {
        let since = Instant::now();
        let url = self.probe_url("/readyz");
        loop {
            let last = match get(&url).await {
                Ok((StatusCode::OK, _)) => break,
                Ok((code, text)) => format!("{url} answers {code}: {}", text.trim_end()),
                Err(reason) => reason,
            };
            self.judge(since, &last)?;
            tokio::time::sleep(LOOK).await;
        }
        if self.webhook_port.is_none() {
            return Ok(());
        }
        let probe = webhooks::Probe::new(&self.options.control_kubeconfig, &self.options.namespace).await?;
        while let Err(last) = probe.ask().await {
            self.judge(since, &last)?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// An error if there is no point in waiting on: the process has ended, or the time is up.
    fn judge(&mut self, since: Instant, last: &str) -> Result<(), ManagerError> {
        self.process.check()?;
        let waited = since.elapsed();
        if waited <= self.options.start_timeout {
            return Ok(());
        }
        Err(ManagerError::Process(ProcessError::NotReady {
            name: self.process.name().to_owned(),
            waited,
            last: last.to_owned(),
            log: self.process.log().to_owned(),
            tail: self.process.log_tail(),
        }))
    }

    /// The process id, unless it was killed or has ended by our hand.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Has it been started, and does it still run?
    pub fn is_running(&mut self) -> bool {
        self.process.pid().is_some() && self.process.ended().is_none()
    }

    /// An error, with the last lines of its log, if it has ended by itself.
    pub fn check(&mut self) -> Result<(), ManagerError> {
        Ok(self.process.check()?)
    }

    /// How it ended, if it did so by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill_9(&mut self) {
        self.process.kill();
    }

    /// Asks it to end (SIGTERM), waits until it has, and says how.
    pub async fn terminate(&mut self) -> Result<Option<ExitStatus>, ManagerError> {
        if self.process.pid().is_none() {
            return Ok(None);
        }
        // One that has ended already needs no signal, and may not be there to get one.
        if self.process.ended().is_none() {
            self.process.signal("TERM")?;
        }
        self.wait_for_end(END_TIMEOUT).await.map(Some)
    }

    /// Waits until it ends by itself, and says how.
    pub async fn wait_for_end(&mut self, timeout: Duration) -> Result<ExitStatus, ManagerError> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.process.ended() {
                return Ok(status);
            }
            if since.elapsed() > timeout {
                let (name, tail) = (self.process.name().to_owned(), self.process.log_tail());
                return Err(ManagerError::NotEnded { name, waited: timeout, tail });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Starts it again after it has ended, with the same command line and log; waits until it is ready.
    pub async fn start_again(&mut self) -> Result<(), ManagerError> {
        self.spawn_again()?;
        self.wait_ready().await
    }

    /// Starts it again without waiting.
    pub fn spawn_again(&mut self) -> Result<(), ManagerError> {
        Ok(self.process.start()?)
    }

    /// Sends a signal, named without `SIG`: `STOP`, `CONT`.
    pub fn signal(&self, signal: &str) -> Result<(), ManagerError> {
        Ok(self.process.signal(signal)?)
    }

    /// All metrics, as text.
    pub async fn metrics(&self) -> Result<String, ManagerError> {
        let url = self.url("/metrics");
        match get(&url).await {
            Ok((StatusCode::OK, text)) => Ok(text),
            Ok((code, text)) => Err(ManagerError::Endpoint { url, reason: format!("{code}: {text}") }),
            Err(reason) => Err(ManagerError::Endpoint { url, reason }),
        }
    }

    /// The status and text that an endpoint such as `/readyz` answers with.
    pub async fn answer(&self, path: &str) -> Result<(u16, String), ManagerError> {
        let url = self.url(path);
        match get(&url).await {
            Ok((code, text)) => Ok((code.as_u16(), text)),
            Err(reason) => Err(ManagerError::Endpoint { url, reason }),
        }
    }

    /// The URL of a probe such as `/readyz`: at the port for probes, if it has one.
    fn probe_url(&self, path: &str) -> String {
        let port = flag_value(&self.options.flags, "health-probe-port").and_then(|port| port.parse().ok());
        format!("http://127.0.0.1:{}{path}", port.unwrap_or(self.port))
    }

    /// The port of metrics.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of an endpoint such as `/metrics`.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The port of its webhooks, if it serves any.
    pub fn webhook_port(&self) -> Option<u16> {
        self.webhook_port
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// The last lines of its log, indented.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// How it was started.
    pub fn options(&self) -> &ManagerOptions {
        &self.options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_that_a_flag_switches_off_are_not_waited_for() {
        let options = ManagerOptions::new("/k", "http://c");
        assert!(options.serves_webhooks() && options.clone().with_flags(["--webhooks=true"]).serves_webhooks());
        assert!(!options.clone().with_flags(["--webhooks=false"]).serves_webhooks());
        assert!(!options.with_flags(["--webhooks", "false"]).serves_webhooks());
    }

    fn is_shared_by_tasks<T: Send>(_: &T) {}

    /// Tests run these in tasks of their own. That they can is a property that the compiler checks only where it is used.
    #[allow(dead_code, reason = "compiled, never run")]
    fn futures_may_move_between_threads(plane: &ControlPlane, manager: &mut ManagerProcess) {
        is_shared_by_tasks(&ManagerProcess::start(ManagerOptions::new("", "")));
        is_shared_by_tasks(&ManagerProcess::start_on(plane, ManagerOptions::new("", "")));
        is_shared_by_tasks(&manager.start_again());
    }
}
