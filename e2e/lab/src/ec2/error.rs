//! What can go wrong.

use crate::process::ProcessError;

/// Why there is no EC2, or no answer of moto's.
#[derive(Debug, thiserror::Error)]
pub enum Ec2Error {
    /// A process cannot be started, or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The kubelets' cluster cannot be used.
    #[error(transparent)]
    Command(#[from] crate::cloud::command::CommandError),
    /// The client of the kubelets' cluster cannot be made.
    #[error("failed to make a client for the kubelets: {0}")]
    Client(#[from] kube::Error),
    /// The server cannot listen, or say where it does.
    #[error("failed to serve: {0}")]
    Serve(#[from] std::io::Error),
    /// moto did not answer, or not as it should.
    #[error("failed to ask moto: {0}")]
    Moto(String),
    /// A script for the driver cannot be written.
    #[error(transparent)]
    Driver(#[from] crate::cloud::DriverProgramError),
}
