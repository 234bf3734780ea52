//! The server's certificate: made by the webhooks themselves, or given.

pub(crate) mod authority;
pub(crate) mod directory;
pub(crate) mod keeper;
pub(crate) mod rotation;
pub(crate) mod secret;
pub(crate) mod validity;

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;

/// Where the server's certificate is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Made here and renewed in time, with an authority of its own. All of it is kept in one Secret, which all
    /// replicas share: whoever comes first makes it.
    Secret {
        /// The namespace of the Secret.
        namespace: String,
        /// The name of the Secret.
        name: String,
        /// The DNS names and addresses under which the API server calls.
        hosts: Vec<String>,
    },
    /// Files that others make and renew, such as cert-manager: `tls.crt` (the certificate, then those between it and
    /// its authority), `tls.key`, and, if the webhooks are to register themselves, `ca.crt`.
    Directory(PathBuf),
}

/// A certificate that can be served.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    /// The authorities that clients are to trust, as PEM.
    pub(crate) bundle: Option<Vec<u8>>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}
