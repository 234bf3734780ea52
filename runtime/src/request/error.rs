//! Why a request failed, and how to handle it.

use std::{error::Error, io, time::Duration};

use http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{
    client::Body,
    core::{
        Status,
        response::{StatusCause, StatusDetails},
    },
};

use crate::{clip::clip_to, json};

/// Limit of an API server's message, in bytes: it goes into logs and is stored for each object.
pub(super) const MAX_MESSAGE: usize = 2_048;

/// The class of an API server's answer. Each class has one treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Another writer was faster (409, a failed test or precondition): read again.
    Conflict,
    /// The name is taken (409 on a create): check which object has it.
    AlreadyExists,
    /// The request can never succeed unchanged (400, 404 of the resource, 413, 422).
    Invalid,
    /// Not allowed (403).
    Forbidden,
    /// The server does not know who asks (401): a token has expired, or what verifies it does not answer.
    Unauthorized,
    /// Too many requests (429): retry after the time that the server named.
    TooManyRequests,
    /// The server was unreachable: nothing was sent.
    Unreachable,
    /// The outcome is unknown (5xx, timeout, broken connection).
    Unknown,
    /// Leadership ended: nothing was sent.
    Expired,
}

impl FailureClass {
    /// Whether the failure concerns one request only, so that another one may succeed.
    pub(crate) fn is_of_one_request(self) -> bool {
        matches!(self, Self::Conflict | Self::AlreadyExists | Self::Invalid | Self::Forbidden)
    }

    /// A word for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::AlreadyExists => "taken",
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Unauthorized => "unauthorized",
            Self::TooManyRequests => "busy",
            Self::Unreachable => "unreachable",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }
}

/// A failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// How to handle it.
    pub class: FailureClass,
    /// The HTTP status, if there was an answer.
    pub status: Option<StatusCode>,
    /// The reason of the server's `Status`, such as `AlreadyExists`; empty if it gave none.
    pub reason: String,
    /// The details of the server's `Status`: the kind, and a cause for each field.
    pub details: Option<Box<StatusDetails>>,
    /// The message for people.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl RequestError {
    pub(crate) fn local(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, status: None, reason: String::new(), details: None, message: message.into(), retry_after: None }
    }

    /// Whether the server reports that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status == Some(StatusCode::NOT_FOUND)
    }

    /// Whether the requested version is too old or too new for the server's cache.
    pub(crate) fn is_version_unavailable(&self) -> bool {
        let is_too_new = |cause: &StatusCause| cause.reason == "ResourceVersionTooLarge";
        self.status == Some(StatusCode::GONE) || self.causes().iter().any(is_too_new)
    }

    /// Whether the object with this UID is gone and another one has its name.
    pub(crate) fn is_of_namesake(&self) -> bool {
        self.status == Some(StatusCode::UNPROCESSABLE_ENTITY)
            && self.causes().iter().any(|cause| cause.field == "metadata.uid")
    }

    /// Whether a JSON patch was refused because a test failed or a path did not exist: another writer was faster. For an
    /// invalid result, also a 422, the API server names the kind. A denial by a webhook has no details.
    pub(crate) fn is_failed_test(&self) -> bool {
        let says_nothing = |details: &StatusDetails| details.kind.is_empty() && details.causes.is_empty();
        self.status == Some(StatusCode::UNPROCESSABLE_ENTITY) && self.details.as_deref().is_some_and(says_nothing)
    }

    fn causes(&self) -> &[StatusCause] {
        self.details.as_ref().map_or(&[], |details| &details.causes)
    }
}

/// Without a connection nothing was sent; after that, the write may have been applied.
pub(super) fn classify_transport(error: &kube::Error) -> RequestError {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    let mut text = error.to_string();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            text = io.to_string();
            if io.kind() == io::ErrorKind::ConnectionRefused {
                let message = format!("the API server cannot be reached: {text}");
                return RequestError::local(FailureClass::Unreachable, message);
            }
        }
        source = cause.source();
    }
    RequestError::local(FailureClass::Unknown, format!("the connection to the API server broke: {text}"))
}

pub(super) async fn read_refusal(response: http::Response<Body>) -> RequestError {
    let code = response.status();
    let seconds = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = Limited::new(response.into_body(), 1 << 20).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: Status = json::from_slice(&body).unwrap_or_default();
    let message =
        if status.message.is_empty() { format!("the API server answered {code}") } else { explained(&status) };
    RequestError {
        class: classify_status(code),
        status: Some(code),
        reason: status.reason,
        details: status.details.map(Box::new),
        message: clip_to(MAX_MESSAGE, message),
        retry_after: seconds.map(Duration::from_secs),
    }
}

/// The message, and the disruption budget that refuses an eviction: only a cause names it.
fn explained(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let budget = causes.filter(|cause| cause.reason == "DisruptionBudget").map(|cause| cause.message.as_str());
    let message = [status.message.as_str()].into_iter().chain(budget).collect::<Vec<_>>();
    message.join(" ")
}

fn classify_status(code: StatusCode) -> FailureClass {
    match code.as_u16() {
        409 => FailureClass::Conflict,
        401 => FailureClass::Unauthorized,
        403 => FailureClass::Forbidden,
        429 => FailureClass::TooManyRequests,
        500.. => FailureClass::Unknown,
        _ => FailureClass::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_class_has_one_meaning() {
        let of = |code| classify_status(StatusCode::from_u16(code).unwrap());
        assert_eq!(of(409), FailureClass::Conflict);
        assert_eq!(of(422), FailureClass::Invalid);
        assert_eq!(of(429), FailureClass::TooManyRequests);
        assert_eq!(of(504), FailureClass::Unknown);
        assert_eq!((of(401), of(403)), (FailureClass::Unauthorized, FailureClass::Forbidden));
    }
}
