//! A child process with its log.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
};

use crate::process::{ProcessError, Supervisor};

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 15;
/// How many bytes at the end of a log are searched for those lines.
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
    // Last: the child is reaped before the supervisor waits for the group, if this process is its last owner.
    supervisor: Arc<Supervisor>,
}

impl Process {
    /// Describes a process. Does not start it. Its output is appended to `log`.
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

    /// Appends the output to another file.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<PathBuf>) -> Self {
        self.log = log.into();
        self
    }

    /// The name in errors and file names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that the output is appended to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts the process, unless it runs already.
    pub fn start(&mut self) -> Result<(), ProcessError> {
        if self.child.is_some() && self.ended().is_none() {
            return Ok(());
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(ProcessError::file("open the log", &self.log))?;
        let stderr = log.try_clone().map_err(ProcessError::file("open the log", &self.log))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(stderr);
        let child = self
            .supervisor
            .spawn(&mut command)
            .map_err(|source| ProcessError::Spawn { program: self.program.clone(), source })?;
        self.child = Some(child);
        Ok(())
    }

    /// The process id, from [`start`](Self::start) to [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The exit status, if the process ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// An error, with the end of the log, if the process ended by itself.
    pub fn check(&mut self) -> Result<(), ProcessError> {
        match self.ended() {
            None => Ok(()),
            Some(status) => Err(ProcessError::Exited {
                name: self.name.clone(),
                status: status.to_string(),
                log: self.log.clone(),
                tail: self.log_tail(),
            }),
        }
    }

    /// Kills the process (SIGKILL, which also ends a stopped process) and waits for its end.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A kill fails only without permission. Wait for the end in this case, too.
        if let Err(error) = child.kill().and(child.wait()) {
            tracing::warn!(%error, process = self.name, "failed to kill");
        }
    }

    /// Sends a signal, named without `SIG`: `TERM`, `STOP`, `CONT`. Does nothing if the process does not run.
    pub fn signal(&self, signal: &str) -> Result<(), ProcessError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // The shell has a built-in kill. The program may be missing, and a system call needs unsafe code.
        let mut command = Command::new("sh");
        command.args(["-c", r#"kill -s "$1" "$2""#, "sh", signal, &pid.to_string()]);
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ProcessError::Spawn { program: PathBuf::from("sh"), source })?;
        if output.status.success() {
            return Ok(());
        }
        let reason = std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        Err(ProcessError::File { action: "send a signal to", path: self.program.clone(), source: reason })
    }

    /// The last lines of the log, indented. Empty without a log.
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
