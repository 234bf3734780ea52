//! The cloud as a child process, for tests.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use tempfile::TempDir;

use nodewright_e2e_cloud::CloudClient;

use super::command::READY_LINE;
use crate::process::executable;

/// The environment variable that overrides the path of the executable.
pub const BINARY_VARIABLE: &str = "NODEWRIGHT_CLOUD_BIN";
/// The name of the executable.
pub const BINARY: &str = "nodewright-cloud";
/// How long the process may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How the process is started.
#[derive(Clone, Debug, Default)]
pub struct CloudProcessOptions {
    /// The kubeconfig of the cluster that VMs join. `None`: no cluster.
    pub kubeconfig: Option<PathBuf>,
    /// The directory of a network in which VMs are real. Replaces `kubeconfig`.
    pub real_nodes: Option<PathBuf>,
    /// The state file. `None`: one in a temporary directory.
    pub state: Option<PathBuf>,
    /// The log file. `None`: no log.
    pub log: Option<PathBuf>,
    /// Additional flags, see [`Arguments`](super::command::Arguments).
    pub flags: Vec<String>,
}

/// Why the process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum CloudProcessError {
    /// The executable was not found.
    #[error(transparent)]
    Executable(#[from] crate::process::ProcessError),
    /// The start failed.
    #[error("failed to start the cloud: {0}")]
    Io(#[from] io::Error),
    /// The process ended, or did not print its address.
    #[error("failed to start the cloud: it did not say where it listens, but {said:?}; see its log")]
    NotReady {
        /// What it printed.
        said: String,
    },
}

/// A cloud in a child process. Dropping this kills it. It also ends when this process ends.
#[derive(Debug)]
pub struct CloudProcess {
    child: Child,
    url: String,
    options: CloudProcessOptions,
    state: PathBuf,
    _directory: Option<TempDir>,
}

impl CloudProcess {
    /// Starts a cloud on a free port, and waits until it listens. Blocks for some milliseconds.
    pub fn start(options: CloudProcessOptions) -> Result<Self, CloudProcessError> {
        let (directory, state) = if let Some(state) = &options.state {
            (None, state.clone())
        } else {
            let directory = tempfile::Builder::new().prefix("nodewright-cloud-").tempdir()?;
            let state = directory.path().join("state");
            (Some(directory), state)
        };
        let (child, url) = launch(&options, &state, "127.0.0.1:0")?;
        Ok(Self { child, url, options, state, _directory: directory })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client for it.
    pub fn client(&self) -> CloudClient {
        CloudClient::new(&self.url)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The state file.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Kills the process (SIGKILL) and starts another one with the same address and state file.
    pub fn crash_and_restart(&mut self) -> Result<(), CloudProcessError> {
        self.end();
        let address = self.url.trim_start_matches("http://").to_owned();
        (self.child, self.url) = launch(&self.options, &self.state, &address)?;
        Ok(())
    }

    fn end(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for CloudProcess {
    fn drop(&mut self) {
        self.end();
    }
}

fn launch(options: &CloudProcessOptions, state: &Path, listen: &str) -> Result<(Child, String), CloudProcessError> {
    let mut command = Command::new(executable(BINARY, BINARY_VARIABLE)?);
    command.args(["--until-stdin-closes", "--listen", listen, "--state"]).arg(state);
    if let Some(directory) = &options.real_nodes {
        command.arg("--real-nodes").arg(directory);
    } else if let Some(kubeconfig) = &options.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    let log = match &options.log {
        Some(path) => Stdio::from(File::options().create(true).append(true).open(path)?),
        None => Stdio::null(),
    };
    command.args(&options.flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn()?;
    match first_line(&mut child) {
        Ok(line) if line.starts_with(READY_LINE) => {
            let url = line.trim_start_matches(READY_LINE).trim().to_owned();
            Ok((child, url))
        }
        outcome => {
            drop(child.kill());
            drop(child.wait());
            let said = outcome.unwrap_or_else(|error| error.to_string());
            Err(CloudProcessError::NotReady { said })
        }
    }
}

/// The first line that the process prints, within the start timeout.
fn first_line(child: &mut Child) -> io::Result<String> {
    let Some(stdout) = child.stdout.take() else { return Err(io::Error::other("it has no standard output")) };
    let (to, from) = mpsc::channel();
    // A thread, because a read from a pipe has no timeout. It ends with the line or with the process.
    std::thread::spawn(move || {
        let mut line = String::new();
        let result = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        drop(to.send(result));
    });
    from.recv_timeout(START_TIMEOUT).map_err(|_| io::Error::other(format!("nothing within {START_TIMEOUT:?}")))?
}
