//! What can go wrong with a local control plane.

use std::{path::PathBuf, time::Duration};

/// Why a local control plane could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The binaries are neither there nor could they be built.
    #[error("failed to get the binaries of the control plane: {reason}")]
    Binaries {
        /// What happened, and what to do about it.
        reason: String,
    },
    /// The file system refused something.
    #[error("failed to {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it was refused.
        source: std::io::Error,
    },
    /// Another control plane uses the directory.
    #[error("failed to lock {path}: another control plane is running there; stop it or choose another directory")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A key or certificate could not be made.
    #[error("failed to make a certificate for {subject}")]
    Certificate {
        /// For whom it was meant.
        subject: String,
        /// Why not.
        source: rcgen::Error,
    },
    /// A user of client certificates was asked for who is in more than one group.
    #[error(
        "failed to make a certificate for {user}: it can name one group only; bind roles to the user in place of further groups"
    )]
    Groups {
        /// The user.
        user: String,
    },
    /// A process could not be started at all.
    #[error("failed to start {program}")]
    Spawn {
        /// The executable.
        program: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A process ended although nobody asked it to.
    #[error("{name} ended with {status}; the last lines of {log}:\n{tail}")]
    Exited {
        /// The name of the process.
        name: String,
        /// How it ended.
        status: String,
        /// Its whole log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// A process runs but does not say that it is ready.
    #[error("{name} was not ready after {waited:?}: {last}; the last lines of {log}:\n{tail}")]
    NotReady {
        /// The name of the process.
        name: String,
        /// How long was waited.
        waited: Duration,
        /// The last answer to the question whether it is ready.
        last: String,
        /// Its whole log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// A process was named that this control plane does not run.
    #[error("failed to {action} {name}: this control plane runs without it")]
    NoSuchComponent {
        /// What was tried.
        action: &'static str,
        /// The name of the process.
        name: &'static str,
    },
    /// No free ports were found.
    #[error("failed to find a free port on 127.0.0.1 in {first}-{last}")]
    NoPort {
        /// The lowest port that was considered.
        first: u16,
        /// The highest port that was considered.
        last: u16,
    },
    /// A kubeconfig written by us could not be read back.
    #[error("failed to use the kubeconfig of the control plane")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A request to the API server failed.
    #[error("failed to {action}")]
    Request {
        /// What was tried.
        action: String,
        /// What the client or the server said.
        source: Box<kube::Error>,
    },
    /// A manifest that should be applied is none.
    #[error("failed to read the manifest {origin}: {reason}")]
    Manifest {
        /// Where it comes from.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// kubectl answered with an error.
    #[error("kubectl {arguments} ended with {status}: {stderr}")]
    Kubectl {
        /// The arguments it was given.
        arguments: String,
        /// How it ended.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// Something that was waited for did not happen.
    #[error("{what} did not happen within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
}

impl PlaneError {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// For `map_err` on requests.
    pub(crate) fn request(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Request { action, source: Box::new(source) }
    }

    /// Was a port that we had found free taken by somebody else before the process could listen on it?
    pub(crate) fn is_port_clash(&self) -> bool {
        matches!(self, Self::Exited { tail, .. } if tail.to_ascii_lowercase().contains("address already in use"))
    }
}
