//! Keeps the services of a VM running, as systemd would, and reaps all processes whose parent has ended.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{WaitOptions, wait};

use crate::node::NodeError;

/// Time between the end of a service and its next start.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A service: a command line, and what it waits for.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// It starts once this file exists.
    pub(super) after: Option<PathBuf>,
    /// It does not start while this file exists.
    pub(super) unless: Option<PathBuf>,
}

/// A service, and its process.
#[derive(Debug)]
pub(super) struct Supervised {
    service: Service,
    process: Option<u32>,
    not_before: Option<Instant>,
}

impl Supervised {
    pub(super) fn new(service: Service) -> Self {
        Self { service, process: None, not_before: None }
    }

    pub(super) fn start(service: Service) -> Result<Self, NodeError> {
        let mut supervised = Self::new(service);
        supervised.spawn()?;
        Ok(supervised)
    }

    /// Whether its process has not ended, as far as this process has noticed.
    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    fn is_due(&self) -> bool {
        let Service { after, unless, .. } = &self.service;
        self.process.is_none()
            && self.not_before.is_none_or(|time| time <= Instant::now())
            && after.as_ref().is_none_or(|file| file.exists())
            && !unless.as_ref().is_some_and(|file| file.exists())
    }

    fn spawn(&mut self) -> Result<(), NodeError> {
        let Service { name, program, arguments, .. } = &self.service;
        let log = PathBuf::from(format!("/var/log/{name}.log"));
        let log = File::options().create(true).append(true).open(&log).map_err(NodeError::file("open", log))?;
        let stderr = log.try_clone().map_err(NodeError::file("open the log of", program))?;
        let mut command = Command::new(program);
        // `reap` waits for its process, not this handle.
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(stderr).env("TMPDIR", "/run");
        self.process = Some(command.spawn().map_err(NodeError::file("start", program))?.id());
        Ok(())
    }
}

/// Reaps all children that have ended.
pub(super) fn reap(services: &mut [Supervised]) {
    while let Ok(Some((ended, status))) = wait(WaitOptions::NOHANG) {
        let ended = u32::try_from(ended.as_raw_nonzero().get()).ok();
        if let Some(service) = services.iter_mut().find(|service| service.process.is_some() && service.process == ended)
        {
            println!("{} ended: {status:?}", service.service.name);
            service.process = None;
            service.not_before = Some(Instant::now() + RESTART_PAUSE);
        }
    }
}

/// Runs the services for ever.
pub(super) fn run(mut services: Vec<Supervised>) -> ! {
    loop {
        reap(&mut services);
        for service in services.iter_mut().filter(|service| service.is_due()) {
            if let Err(error) = service.spawn() {
                println!("{error}");
                service.not_before = Some(Instant::now() + RESTART_PAUSE);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
