//! Errors of leases, and rate-limited logging of them.

use std::time::Duration;

use tokio::time::Instant;

use super::config::LeaseConfig;

/// Why an attempt had no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// Permanent until an administrator grants the permission.
    #[error(
        "failed to {verb} lease {namespace}/{name}: not permitted: grant get, create and update on \
         leases.coordination.k8s.io in namespace {namespace} to this process: {message}"
    )]
    Forbidden { verb: &'static str, namespace: String, name: String, message: String },
    /// Permanent: the credentials are wrong or have expired.
    #[error(
        "failed to {verb} lease {namespace}/{name}: credentials refused: check the kubeconfig or service account: {message}"
    )]
    Unauthorized { verb: &'static str, namespace: String, name: String, message: String },
    /// Permanent until an administrator creates the namespace.
    #[error(
        "failed to create lease {namespace}/{name}: create namespace {namespace} first, or choose another: {message}"
    )]
    NoNamespace { namespace: String, name: String, message: String },
    /// Another client changed the lease in between.
    #[error("failed to {verb} lease {namespace}/{name}: another contender was faster")]
    Conflict { verb: &'static str, namespace: String, name: String },
    /// The API server did not answer in time; the outcome of the request is unknown.
    #[error("failed to renew or acquire lease {namespace}/{name}: no answer within {after:?}")]
    Timeout { namespace: String, name: String, after: Duration },
    /// Any other error, which may be temporary.
    #[error("failed to {verb} lease {namespace}/{name}: {source}")]
    Request { verb: &'static str, namespace: String, name: String, source: Box<kube::Error> },
}

impl ClaimError {
    pub(super) fn new(config: &LeaseConfig, verb: &'static str, error: kube::Error) -> Self {
        let (namespace, name) = (config.namespace.clone(), config.name.clone());
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                Self::Forbidden { verb, namespace, name, message: status.message }
            }
            kube::Error::Api(status) if status.code == 401 => {
                Self::Unauthorized { verb, namespace, name, message: status.message }
            }
            kube::Error::Api(status) if status.code == 404 && verb == "create" => {
                Self::NoNamespace { namespace, name, message: status.message }
            }
            kube::Error::Api(status) if status.code == 409 => Self::Conflict { verb, namespace, name },
            source => Self::Request { verb, namespace, name, source: Box::new(source) },
        }
    }

    /// Whether an administrator must act before an attempt can succeed.
    fn is_fatal(&self) -> bool {
        matches!(self, Self::Forbidden { .. } | Self::Unauthorized { .. } | Self::NoNamespace { .. })
    }
}

/// Logs each change of the error, and a lasting error once a minute: attempts come every other second.
#[derive(Debug, Default)]
pub(super) struct Report {
    last: Option<(String, Instant)>,
}

impl Report {
    const REPEAT: Duration = Duration::from_mins(1);

    pub(super) fn waiting(&mut self, config: &LeaseConfig, holder: &str) {
        if self.is_news(holder) {
            tracing::info!(lease = config.name, holder, "waiting for lease");
        }
    }

    pub(super) fn failure(&mut self, config: &LeaseConfig, error: &ClaimError) {
        if matches!(error, ClaimError::Conflict { .. }) {
            tracing::debug!(lease = config.name, %error);
        } else if self.is_news(&error.to_string()) {
            if error.is_fatal() {
                tracing::error!(lease = config.name, "{error}; retrying until it is permitted");
            } else {
                tracing::warn!(lease = config.name, "{error}; retrying");
            }
        }
    }

    fn is_news(&mut self, text: &str) -> bool {
        let known = self.last.as_ref().is_some_and(|(last, at)| last == text && at.elapsed() < Self::REPEAT);
        if !known {
            self.last = Some((text.to_owned(), Instant::now()));
        }
        !known
    }
}
