//! Errors of leases, and rate-limited logging of them.

use std::time::Duration;

use tokio::time::Instant;

use super::LeaseConfig;

/// Why an attempt had no result.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} lease {namespace}/{name}: {why}")]
pub(super) struct LeaseError {
    verb: &'static str,
    namespace: String,
    name: String,
    why: String,
    /// The API server's status; 0 without an answer.
    code: u16,
}

impl LeaseError {
    pub(super) fn new(config: &LeaseConfig, verb: &'static str, error: &kube::Error) -> Self {
        let (code, message) = match error {
            kube::Error::Api(status) => (status.code, status.message.as_str()),
            _ => (0, ""),
        };
        let namespace = config.namespace.clone();
        let why = match (code, verb) {
            (401, _) => format!("credentials refused: check the kubeconfig or service account: {message}"),
            (403, _) => format!(
                "not permitted: grant get, create and update on leases.coordination.k8s.io in namespace {namespace} to this \
                 process: {message}"
            ),
            (404, "create") => format!("create namespace {namespace} first, or choose another: {message}"),
            (409, _) => "another contender was faster".to_owned(),
            _ => error.to_string(),
        };
        Self { verb, namespace, name: config.name.clone(), why, code }
    }

    /// The outcome of the request is unknown.
    pub(super) fn timeout(config: &LeaseConfig, after: Duration) -> Self {
        let (namespace, name) = (config.namespace.clone(), config.name.clone());
        Self { verb: "renew or acquire", namespace, name, why: format!("no answer within {after:?}"), code: 0 }
    }

    /// Whether another client changed the lease in between.
    pub(super) fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// Whether there is no such lease, or no such namespace.
    pub(super) fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Whether an administrator must act before an attempt can succeed.
    fn is_fatal(&self) -> bool {
        matches!((self.code, self.verb), (401 | 403, _) | (404, "create"))
    }
}

/// Logs each change of the error, and a lasting error once a minute: attempts come every other second.
#[derive(Default)]
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

    pub(super) fn failure(&mut self, config: &LeaseConfig, error: &LeaseError) {
        if error.is_conflict() {
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
