//! Errors of a devcluster.

use std::{path::PathBuf, time::Duration};

use nodewright_e2e_cloud::ClientError;

use crate::{
    control_plane::ControlPlaneError, devcluster::manager::ManagerError, node::NodeError, process::ProcessError,
};

/// Why a devcluster could not be started, used or ended.
#[derive(Debug, thiserror::Error)]
pub enum DevclusterError {
    /// moto's EC2 cannot be started.
    #[error(transparent)]
    Ec2(#[from] crate::ec2::Ec2Error),
    /// The control plane, or a request to it.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// The manager.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A request to the cloud.
    #[error(transparent)]
    Cloud(#[from] ClientError),
    /// Real nodes.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A process or a file.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A directory has one devcluster at a time.
    #[error("a devcluster runs in {directory} already: end it with `make down`")]
    Running {
        /// The directory of the devcluster.
        directory: PathBuf,
    },
    /// The command needs a running devcluster.
    #[error("no devcluster runs in {directory}: start one with `make up`")]
    NotRunning {
        /// The directory of the devcluster.
        directory: PathBuf,
    },
    /// A process of the devcluster does not run.
    #[error("a devcluster runs in {directory}, but without {missing}: `make manager` starts it, `make down` ends all")]
    Incomplete {
        /// The directory of the devcluster.
        directory: PathBuf,
        /// The missing processes.
        missing: String,
    },
    /// All controllers of the devcluster run.
    #[error("the manager runs already, with process id {pid}: end that one first")]
    ManagerRuns {
        /// Its process id.
        pid: u32,
    },
    /// An installation could not be made.
    #[error("{0}")]
    Installation(String),
    /// The daemon could not execute a request.
    #[error("{0}")]
    Failed(String),
    /// The daemon ended.
    #[error("the devcluster ended while it was asked to {action}; the last lines of {log}:\n{tail}")]
    Gone {
        /// The request.
        action: &'static str,
        /// The log of the daemon.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The daemon does not end.
    #[error("the devcluster in {directory} did not end within {waited:?}, not even after its daemon was killed")]
    NotEnded {
        /// The directory of the devcluster.
        directory: PathBuf,
        /// The length of the wait.
        waited: Duration,
    },
    /// Machines do not reach the expected state.
    #[error("{what} after {waited:?}:\n{seen}")]
    Machines {
        /// The numbers of running and of wanted machines.
        what: String,
        /// The length of the wait.
        waited: Duration,
        /// The machines, and further diagnostics.
        seen: String,
    },
}

impl DevclusterError {
    /// For `map_err` on file operations.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let error = ProcessError::file(action, path);
        move |source| Self::Process(error(source))
    }
}
