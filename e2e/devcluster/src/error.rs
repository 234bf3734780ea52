//! What can go wrong with a running set.

use std::{path::PathBuf, time::Duration};

use crate::manager::ManagerError;
use nodewright_e2e_cloud::ClientError;
use nodewright_e2e_control_plane::ControlPlaneError;
use nodewright_e2e_process::ProcessError;

/// Why a set could not be started, used or ended.
#[derive(Debug, thiserror::Error)]
pub enum DevclusterError {
    /// The control plane, or a request to it.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// The manager.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// The cloud does not answer.
    #[error(transparent)]
    Cloud(#[from] ClientError),
    /// A process or a file.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There is one set for each directory.
    #[error("a set runs in {directory} already: end it with `make down`")]
    Running {
        /// The directory of the set.
        directory: PathBuf,
    },
    /// Something needs a running set.
    #[error("no set runs in {directory}: start one with `make up`")]
    NotRunning {
        /// The directory of the set.
        directory: PathBuf,
    },
    /// A set runs, but not all of it.
    #[error(
        "a set runs in {directory}, but without {missing}: `make manager` starts the manager, `make down` ends all"
    )]
    Incomplete {
        /// The directory of the set.
        directory: PathBuf,
        /// Which processes are not there.
        missing: String,
    },
    /// There is one manager in each set.
    #[error("the manager runs already, with process id {pid}: end that one first")]
    ManagerRuns {
        /// Its process id.
        pid: u32,
    },
    /// The process in the background says why it cannot do something.
    #[error("{0}")]
    Refused(String),
    /// The process in the background is gone.
    #[error("the set ended while it was asked to {action}; the last lines of {log}:\n{tail}")]
    Gone {
        /// What it was asked for.
        action: &'static str,
        /// The log of the process in the background.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The process in the background does not end.
    #[error("the set in {directory} did not end within {waited:?}, not even when it was killed")]
    NotEnded {
        /// The directory of the set.
        directory: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Machines do not get where they should.
    #[error("{what} after {waited:?}:\n{seen}")]
    Machines {
        /// What was waited for, as "... are not there".
        what: String,
        /// How long was waited.
        waited: Duration,
        /// The machines, and what else may help.
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
