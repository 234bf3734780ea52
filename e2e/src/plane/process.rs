//! One process of the control plane, with its log.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
};

use super::{PlaneError, supervisor::Supervisor};

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 15;
/// How much of the end of a log is searched for those lines, in bytes.
const TAIL_BYTES: u64 = 16 * 1024;

/// A process that is started, stopped and started again with the same command line. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log: PathBuf,
    child: Option<Child>,
    // Last, so that the child is reaped before the supervisor, if this was its last owner, waits for the group.
    supervisor: Arc<Supervisor>,
}

impl Process {
    /// Describes a process, without starting it. Its output goes to `log`, appended.
    pub fn new(
        supervisor: &Arc<Supervisor>,
        name: impl Into<String>,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        log: impl Into<PathBuf>,
    ) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            log: log.into(),
            child: None,
            supervisor: Arc::clone(supervisor),
        }
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn with_environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sends the output to another file, appended.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<PathBuf>) -> Self {
        self.log = log.into();
        self
    }

    /// What the process is called in errors and file names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts the process, if it does not run yet.
    pub fn start(&mut self) -> Result<(), PlaneError> {
        if self.child.is_some() && self.ended().is_none() {
            return Ok(());
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(PlaneError::file("open the log", &self.log))?;
        let stderr = log.try_clone().map_err(PlaneError::file("open the log", &self.log))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(stderr);
        let child = self
            .supervisor
            .spawn(&mut command)
            .map_err(|source| PlaneError::Spawn { program: self.program.clone(), source })?;
        self.child = Some(child);
        Ok(())
    }

    /// The process id, while the process has been started and not stopped by us.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// How the process ended, if it did so by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// An error if the process was started and has ended by itself.
    pub fn check(&mut self) -> Result<(), PlaneError> {
        match self.ended() {
            None => Ok(()),
            Some(status) => Err(PlaneError::Exited {
                name: self.name.clone(),
                status: status.to_string(),
                log: self.log.clone(),
                tail: self.log_tail(),
            }),
        }
    }

    /// Kills the process (SIGKILL, which reaches a stopped process, too) and waits until it is gone.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A kill fails only for want of permission, and then there is nothing better to do than to wait as well.
        if let Err(error) = child.kill().and(child.wait()) {
            tracing::warn!(%error, process = self.name, "failed to kill");
        }
    }

    /// Sends a signal, named without `SIG`: `TERM`, `STOP`, `CONT`. Nothing happens if the process does not run.
    pub fn signal(&self, signal: &str) -> Result<(), PlaneError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // The shell's own kill: there may be no such program, and a system call would need unsafe code.
        let mut command = Command::new("sh");
        command.args(["-c", r#"kill -s "$1" "$2""#, "sh", signal, &pid.to_string()]);
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|source| PlaneError::Spawn { program: PathBuf::from("sh"), source })?;
        if output.status.success() {
            return Ok(());
        }
        let reason = std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        Err(PlaneError::File { action: "send a signal to", path: self.program.clone(), source: reason })
    }

    /// The last lines of the log, indented; empty if there is none.
    pub fn log_tail(&self) -> String {
        let text = read_end(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        tail.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_end(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
