//! Errors of VMs and their network.

use std::{io, path::PathBuf};

use crate::process::ProcessError;

/// Why a VM or a network could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Something that VMs need is not there.
    #[error("real nodes cannot run here: {0}")]
    Missing(String),
    /// A command failed.
    #[error("failed to run `{command}`: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed, or why it did not start.
        reason: String,
    },
    /// A file or a process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The user data cannot be used.
    #[error("failed to use the user data: {0}")]
    UserData(String),
    /// The path of a socket is limited to about a hundred bytes.
    #[error("failed to use {path}: the path of a socket may have {limit} bytes; choose a shorter directory")]
    LongPath {
        /// The path.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// Something did not happen in time.
    #[error("{0}")]
    Late(String),
}

impl NodeError {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let error = ProcessError::file(action, path);
        move |source| Self::Process(error(source))
    }

    /// A runtime could not be started.
    pub fn runtime(source: io::Error) -> Self {
        Self::file("start", "a runtime")(source)
    }
}
