//! The error type.

use std::net::SocketAddr;
use std::path::PathBuf;

use nodewright_runtime::request::RequestError;

/// An error of the server, its certificate or its registration.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address cannot be bound.
    #[error(
        "failed to listen on {address} for webhooks: {source}; choose another one by --webhook-address or --webhook-port"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A certificate cannot be created.
    #[error("failed to create a certificate: {0}")]
    Create(#[from] rcgen::Error),
    /// A certificate file cannot be read.
    #[error("failed to read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A certificate or key is invalid.
    #[error("failed to use the certificate of {origin}: {reason}")]
    Certificate {
        /// The Secret or directory.
        origin: String,
        /// The reason. Does not quote the key.
        reason: String,
    },
    /// A request to the API server failed.
    #[error("failed to {action}: {source}")]
    Request {
        /// The action that failed.
        action: String,
        /// The cause.
        source: RequestError,
    },
    /// A response of the API server is invalid.
    #[error("failed to {action}: cannot parse the response: {source}")]
    Answer {
        /// The action that failed.
        action: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The webhook configuration does not exist.
    #[error("failed to find the {kind} {name}: apply config/webhook")]
    NotRegistered {
        /// The kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is no certificate of the authority that the API server has to trust.
    #[error("failed to register the webhooks: there is no ca.crt; add it, or have another program set the caBundle")]
    NoAuthority,
}
