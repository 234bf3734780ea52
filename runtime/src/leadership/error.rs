//! What can go wrong with a lease, and how it is told without flooding the log.

use std::time::Duration;

use tokio::time::Instant;

use super::config::LeaseConfig;

/// Why an attempt came to no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// Will not pass by itself: somebody has to grant the permission.
    #[error(
        "failed to {verb} lease {namespace}/{name}: not permitted: grant get, create and update on \
         leases.coordination.k8s.io in namespace {namespace} to this process: {message}"
    )]
    Forbidden { verb: &'static str, namespace: String, name: String, message: String },
    /// Will not pass by itself: the credentials are wrong or have expired.
    #[error(
        "failed to {verb} lease {namespace}/{name}: credentials refused: check the kubeconfig or service account: {message}"
    )]
    Unauthorized { verb: &'static str, namespace: String, name: String, message: String },
    /// Will not pass by itself: somebody has to create the namespace.
    #[error(
        "failed to create lease {namespace}/{name}: create namespace {namespace} first, or choose another: {message}"
    )]
    NoNamespace { namespace: String, name: String, message: String },
    /// Somebody else changed the lease in between.
    #[error("failed to {verb} lease {namespace}/{name}: another contender was faster")]
    Conflict { verb: &'static str, namespace: String, name: String },
    /// The API server does not answer in time; whether the request took effect is not known.
    #[error("failed to renew or acquire lease {namespace}/{name}: no answer within {after:?}")]
    Timeout { namespace: String, name: String, after: Duration },
    /// Anything else, which may pass.
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

    /// Whether somebody has to do something before it can succeed.
    fn is_fatal(&self) -> bool {
        matches!(self, Self::Forbidden { .. } | Self::Unauthorized { .. } | Self::NoNamespace { .. })
    }
}

/// Logs what changes, and what lasts once a minute: attempts come every other second.
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
