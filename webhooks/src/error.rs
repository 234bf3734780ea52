//! What can go wrong around the webhooks.

use std::net::SocketAddr;
use std::path::PathBuf;

use nodewright_runtime::request::RequestError;

/// Why the webhooks cannot be served, or not be registered.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address is taken, or not one of this machine.
    #[error(
        "failed to listen on {address} for webhooks: {source}; choose another one by --webhook-address or --webhook-port"
    )]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The TLS library refuses its own settings.
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A certificate could not be made.
    #[error("failed to make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A file of a certificate cannot be read.
    #[error("failed to read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate or key was read, and is none.
    #[error("failed to use the certificate of {origin}: {reason}")]
    Certificate {
        /// Where it is from.
        origin: String,
        /// What is wrong with it. Never quotes a key.
        reason: String,
    },
    /// The API server refused, or did not answer.
    #[error("failed to {action}: {source}")]
    Request {
        /// What was tried.
        action: String,
        /// What came back.
        source: RequestError,
    },
    /// An answer of the API server cannot be read.
    #[error("failed to {action}: cannot read the answer: {source}")]
    Answer {
        /// What was tried.
        action: String,
        /// What is wrong with the answer.
        source: serde_json::Error,
    },
    /// The webhooks are not registered.
    #[error("failed to find the {kind} {name}: apply config/webhook")]
    NotRegistered {
        /// The kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The bundle that the API server is to trust is not known.
    #[error("failed to register the webhooks: {0} has no ca.crt; add it, or let others write the caBundle")]
    NoAuthority(String),
}
