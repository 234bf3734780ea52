//! The manager as a child process.
//!
//! # Guarantees
//!
//! * When [`ManagerProcess::start`] returns, `/readyz` reports that the manager is ready, and the API server calls its
//!   webhooks, if it serves any.
//! * The process ends with the [`ManagerProcess`] and with the process that started it; see
//!   [`supervisor`](crate::process::supervisor).
//! * [`ManagerProcess::start_again`] uses the same command line and the same ports.
//!
//! # Caveats
//!
//! * Ready does not mean leading: a manager that waits for the lease is ready.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use tempfile::TempDir;

use crate::{
    cloud::simulated_driver,
    control_plane::{ControlPlane, ControlPlaneError},
    devcluster::{
        http_get::{get, text},
        manager_options::{ManagerOptions, flag_value},
        webhook_probe::WebhookProbe,
    },
    process::{Process, ProcessError, Supervisor, executable, free_ports},
};

/// The environment variable that overrides the path of the executable.
pub const BINARY_VARIABLE: &str = "NODEWRIGHT_BIN";
/// How many times other ports are tried.
const ATTEMPTS: usize = 5;
/// Time between two checks of a wait.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a manager may take to end after SIGTERM. Its own limit is 5 s.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a manager could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The process did not start, ended, or is not ready. The message has the last lines of its log.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The control plane, or a request to it.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// The directory of its log could not be created.
    #[error("failed to create a directory for the manager's log")]
    Directory(#[source] std::io::Error),
    /// A request to an endpoint failed.
    #[error("failed to get {url}: {reason}")]
    Endpoint {
        /// The URL.
        url: String,
        /// Why the request failed.
        reason: String,
    },
    /// The process does not end.
    #[error("{name} did not end within {waited:?}; the last lines of its log:\n{tail}")]
    NotEnded {
        /// The name of the process.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// The end of its log.
        tail: String,
    },
}

impl ManagerError {
    /// See [`ProcessError::is_port_clash`].
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
    /// Starts a manager and waits until it is ready. Tries other ports if one of its ports is in use.
    pub async fn start(options: ManagerOptions) -> Result<Self, ManagerError> {
        Self::until_ready(|| Self::spawn(options.clone())).await
    }

    /// Starts a manager that ends with a control plane, and waits until it is ready. It logs to
    /// [`ControlPlane::logs`]`/<name>.log` unless the options name another file.
    pub async fn start_on(plane: &ControlPlane, options: ManagerOptions) -> Result<Self, ManagerError> {
        Self::until_ready(|| Self::spawn_on(plane, options.clone())).await
    }

    /// Spawns managers until one becomes ready on free ports.
    async fn until_ready(spawn: impl Fn() -> Result<Self, ManagerError>) -> Result<Self, ManagerError> {
        let mut attempt = 1;
        loop {
            let mut manager = spawn()?;
            match manager.wait_ready().await {
                Err(error) if error.is_port_clash() && attempt < ATTEMPTS => {
                    tracing::warn!(attempt, %error, "a port is in use; trying other ports");
                    attempt += 1;
                }
                result => return result.map(|()| manager),
            }
        }
    }

    /// Starts a manager without waiting until it is ready.
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

    /// [`ManagerProcess::start_on`] without waiting until the manager is ready.
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
        let driver = options.needs_driver().then(simulated_driver).transpose()?;
        let arguments = options.command_line(port, webhook_port, driver.as_deref());
        let mut process = describe(program, arguments, &options);
        // As in the image.
        process = process.with_environment("MALLOC_ARENA_MAX", "1");
        // For the driver, which inherits it.
        process = process.with_environment("NODEWRIGHT_CLOUD_URL", &options.cloud_url);
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
            check_start(&mut self.process, since, self.options.start_timeout, &last)?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        if self.webhook_port.is_none() {
            return Ok(());
        }
        let probe = WebhookProbe::new(&self.options.control_kubeconfig, &self.options.namespace).await?;
        while let Err(last) = probe.check().await {
            check_start(&mut self.process, since, self.options.start_timeout, &last)?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The process id, until the process is killed or terminated by these methods.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.pid().is_some() && self.process.ended().is_none()
    }

    /// Fails, with the last lines of its log, if the process ended by itself.
    pub fn check(&mut self) -> Result<(), ManagerError> {
        Ok(self.process.check()?)
    }

    /// The exit status, if the process ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill_9(&mut self) {
        self.process.kill();
    }

    /// Terminates the process (SIGTERM) and waits for its end. Returns the exit status.
    pub async fn terminate(&mut self) -> Result<Option<ExitStatus>, ManagerError> {
        if self.process.pid().is_none() {
            return Ok(None);
        }
        // A process that has ended cannot receive a signal.
        if self.process.ended().is_none() {
            self.process.signal("TERM")?;
        }
        self.wait_for_end(END_TIMEOUT).await.map(Some)
    }

    /// Waits until the process ends by itself. Returns the exit status.
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
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Starts the process again with the same command line and log, and waits until it is ready.
    pub async fn start_again(&mut self) -> Result<(), ManagerError> {
        self.spawn_again()?;
        self.wait_ready().await
    }

    /// Starts the process again without waiting until it is ready.
    pub fn spawn_again(&mut self) -> Result<(), ManagerError> {
        Ok(self.process.start()?)
    }

    /// Sends a signal, named without `SIG`: `STOP`, `CONT`.
    pub fn signal(&self, signal: &str) -> Result<(), ManagerError> {
        Ok(self.process.signal(signal)?)
    }

    /// The metrics as text.
    pub async fn metrics(&self) -> Result<String, ManagerError> {
        text(self.url("/metrics")).await
    }

    /// Status code and body of an endpoint such as `/readyz`.
    pub async fn answer(&self, path: &str) -> Result<(u16, String), ManagerError> {
        let url = self.url(path);
        match get(&url).await {
            Ok((code, text)) => Ok((code.as_u16(), text)),
            Err(reason) => Err(ManagerError::Endpoint { url, reason }),
        }
    }

    /// The URL of a probe such as `/readyz`, at the port for probes if there is one.
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

    /// The port of its webhooks. `None` if it serves none.
    pub fn webhook_port(&self) -> Option<u16> {
        self.webhook_port
    }

    /// The path of its log.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// The last lines of its log, indented.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The options that it was started with.
    pub fn options(&self) -> &ManagerOptions {
        &self.options
    }
}

/// Fails if a process that is not ready yet has ended, or if its time is up. `last` is the last answer of its readiness check.
pub(crate) fn check_start(
    process: &mut Process,
    since: Instant,
    timeout: Duration,
    last: &str,
) -> Result<(), ManagerError> {
    process.check()?;
    let waited = since.elapsed();
    if waited <= timeout {
        return Ok(());
    }
    Err(ManagerError::Process(ProcessError::NotReady {
        name: process.name().to_owned(),
        waited,
        last: last.to_owned(),
        log: process.log().to_owned(),
        tail: process.log_tail(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_send<T: Send>(_: &T) {}

    /// Tests spawn these futures. The compiler checks that they are `Send` only where they are spawned.
    #[allow(dead_code, reason = "compiled, never run")]
    fn futures_are_send(plane: &ControlPlane, manager: &mut ManagerProcess) {
        assert_send(&ManagerProcess::start(ManagerOptions::new("", "")));
        assert_send(&ManagerProcess::start_on(plane, ManagerOptions::new("", "")));
        assert_send(&manager.start_again());
    }
}
