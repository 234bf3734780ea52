//! Errors of a local control plane.

use std::{path::PathBuf, time::Duration};

use crate::{node::NodeError, process::ProcessError};

/// Why a local control plane could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The executables are missing and could not be built.
    #[error("failed to get the binaries of the control plane: {reason}")]
    Binaries {
        /// The reason, and a remedy.
        reason: String,
    },
    /// The sources of a program are out of reach.
    #[error("{script} has no sources to build; see its output above")]
    NoSource {
        /// The script that builds it.
        script: PathBuf,
    },
    /// A process or a file.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The network of real nodes.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Another control plane uses the directory.
    #[error("failed to lock {path}: another control plane is running there; stop it or choose another directory")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A key or certificate could not be created.
    #[error("failed to make a certificate for {subject}")]
    Certificate {
        /// The user or server of the certificate.
        subject: String,
        /// Why the creation failed.
        source: rcgen::Error,
    },
    /// A client certificate can name one group only.
    #[error(
        "failed to make a certificate for {user}: it can name one group only; bind roles to the user in place of further groups"
    )]
    Groups {
        /// The user.
        user: String,
    },
    /// This control plane does not run the component.
    #[error("failed to {action} {name}: this control plane runs without it")]
    NoSuchComponent {
        /// The operation.
        action: &'static str,
        /// The name of the process.
        name: &'static str,
    },
    /// The kubeconfig could not be read.
    #[error("failed to use the kubeconfig of the control plane")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A request to the API server failed.
    #[error("failed to {action}")]
    Request {
        /// The operation.
        action: String,
        /// The error of the client or the server.
        source: Box<kube::Error>,
    },
    /// A manifest cannot be read.
    #[error("failed to read the manifest {origin}: {reason}")]
    Manifest {
        /// The source of the manifest.
        origin: String,
        /// The parse error.
        reason: String,
    },
    /// kubectl failed.
    #[error("kubectl {arguments} ended with {status}: {stderr}")]
    Kubectl {
        /// Its arguments.
        arguments: String,
        /// Its exit status.
        status: String,
        /// Its standard error.
        stderr: String,
    },
    /// A wait timed out.
    #[error("{what} did not happen within {waited:?}")]
    Timeout {
        /// The expected event.
        what: String,
        /// The length of the wait.
        waited: Duration,
    },
}

impl ControlPlaneError {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let error = ProcessError::file(action, path);
        move |source| Self::Process(error(source))
    }

    /// For `map_err` on requests.
    pub fn request(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Request { action, source: Box::new(source) }
    }

    /// See [`ProcessError::is_port_clash`].
    pub fn is_port_clash(&self) -> bool {
        matches!(self, Self::Process(error) if error.is_port_clash())
    }
}
