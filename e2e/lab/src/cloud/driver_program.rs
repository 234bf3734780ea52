//! A driver as a program for the manager's `--driver`, which a test can kill.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{ProcessError, executable};

/// The environment variable that overrides the path of the executable.
const BINARY_VARIABLE: &str = "NODEWRIGHT_DRIVER_SIMULATED_BIN";

/// A script that runs a driver with some flags, and notes its process id.
#[derive(Clone, Debug)]
pub struct DriverProgram {
    script: PathBuf,
    pid: PathBuf,
}

/// The script could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DriverProgramError {
    /// The driver's executable is missing.
    #[error(transparent)]
    Executable(#[from] ProcessError),
    /// A file could not be written.
    #[error("failed to write the script of a driver")]
    Script(#[from] io::Error),
}

/// The executable of the driver `simulated`.
pub fn simulated_driver() -> Result<PathBuf, ProcessError> {
    let program = executable("nodewright-driver-simulated", BINARY_VARIABLE)?;
    std::path::absolute(&program).map_err(ProcessError::file("find", program))
}

impl DriverProgram {
    /// Writes the script `name` into a folder, for the driver `simulated` of a cloud. The flags are the driver's own.
    pub fn new(folder: &Path, name: &str, cloud_url: &str, flags: &[&str]) -> Result<Self, DriverProgramError> {
        let program = simulated_driver()?;
        let cloud = format!("--simulated-cloud-url={cloud_url}");
        let flags: Vec<_> = [cloud].into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect();
        Self::of(&program, folder, name, &flags)
    }

    /// Writes the script `name` into a folder, for any driver.
    pub fn of(program: &Path, folder: &Path, name: &str, flags: &[String]) -> Result<Self, DriverProgramError> {
        let (script, pid) = (folder.join(name), folder.join(format!("{name}.pid")));
        let flags: Vec<_> = flags.iter().map(|flag| format!("'{flag}'")).collect();
        let line = format!("exec '{}' {} \"$@\"", program.display(), flags.join(" "));
        fs::write(&script, format!("#!/bin/sh\necho $$ > '{}'\n{line}\n", pid.display()))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
        Ok(Self { script, pid })
    }

    /// The value of `--driver`.
    pub fn path(&self) -> &Path {
        &self.script
    }

    /// The id of the process that was started last.
    pub fn pid(&self) -> Option<Pid> {
        fs::read_to_string(&self.pid).ok().and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw)
    }

    /// Kills the process that was started last (SIGKILL). Says whether there was one.
    pub fn kill_9(&self) -> bool {
        self.signal(Signal::KILL)
    }

    /// Stops the process that was started last, so that it answers nothing (SIGSTOP).
    pub fn freeze(&self) -> bool {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) -> bool {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> bool {
        self.pid().is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}
