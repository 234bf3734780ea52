//! Errors of measurements and attacks.

use nodewright_e2e_cloud::ClientError;
use nodewright_e2e_lab::{
    control_plane::ControlPlaneError,
    devcluster::{DevclusterError, ManagerError},
    process::ProcessError,
};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The devcluster.
    #[error(transparent)]
    Devcluster(Box<DevclusterError>),
    /// The control plane, or a request to it.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// The manager.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A request to the cloud.
    #[error(transparent)]
    Cloud(#[from] ClientError),
    /// A process or a file.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A goal was missed, or the measurement is not possible.
    #[error("{0}")]
    Failed(String),
}

impl From<DevclusterError> for BenchError {
    fn from(error: DevclusterError) -> Self {
        Self::Devcluster(Box::new(error))
    }
}
