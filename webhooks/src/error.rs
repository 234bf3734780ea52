//! The error of a round, which creates, loads and registers a certificate.

use std::path::PathBuf;

use nodewright_runtime::request::RequestError;

/// Names the object, and does not quote a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    #[error("failed to create a certificate: {0}")]
    Create(#[from] rcgen::Error),
    #[error("failed to read {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The origin is a Secret or a directory.
    #[error("failed to use the certificate of {origin}: {reason}")]
    Certificate { origin: String, reason: String },
    #[error("failed to {action}: {source}")]
    Request { action: String, source: RequestError },
    #[error("failed to {action}: cannot parse the response: {source}")]
    Response { action: String, source: serde_json::Error },
    #[error("failed to find the {kind} {name}: apply config/webhook")]
    NotRegistered { kind: &'static str, name: String },
    #[error("failed to register the webhooks: there is no ca.crt; add it, or have another program set the caBundle")]
    NoAuthority,
}

impl RoundError {
    /// Whether a webhook configuration is missing.
    pub(crate) fn is_not_registered(&self) -> bool {
        matches!(self, Self::NotRegistered { .. })
    }
}
