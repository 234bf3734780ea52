//! Requests of stand-ins to an API server, with a deadline.

use std::time::Duration;

/// The deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The error of the client or the server.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// There was no answer in time.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
}

impl RequestError {
    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }

    /// The object exists already, or a precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }
}

/// Sends a request with the deadline. It may have been applied although there was no answer.
pub async fn request<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RequestError::Timeout),
    }
}
