//! The server's certificate, which the webhooks create themselves or read from files.

pub(crate) mod authority;
pub(crate) mod directory;
pub(crate) mod manager;
pub(crate) mod rotation;
pub(crate) mod secret;
pub(crate) mod validity;

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;

/// The source of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// The webhooks create the certificate and its authority, renew them, and keep them in a Secret that all replicas share.
    Secret {
        /// The namespace of the Secret.
        namespace: String,
        /// The name of the Secret.
        name: String,
        /// The DNS names and addresses under which the API server calls the webhooks.
        hosts: Vec<String>,
    },
    /// Another program, such as cert-manager, writes the files: `tls.crt` with the certificate and its intermediates,
    /// `tls.key`, and `ca.crt` if the webhooks register themselves.
    Directory(PathBuf),
}

/// A certificate that the server can serve.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    /// The authorities that clients trust, as PEM.
    pub(crate) bundle: Option<Vec<u8>>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}
