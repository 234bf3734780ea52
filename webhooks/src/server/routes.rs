//! The routes, and HTTP errors of requests that are no valid `AdmissionReview`.

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode, header};
use nodewright_observability::trace::TraceContext;

use super::Limits;
use super::body::{BodyError, Reader};
use crate::admission::Admission;
use crate::configurations::{Endpoint, endpoints};

#[derive(Clone)]
struct Shared {
    admission: Admission,
    reader: Reader,
}

/// A route for each webhook, and `/healthz`, which always returns 200.
pub(super) fn router(admission: Admission, limits: Limits) -> Router {
    let mut router = Router::new().route("/healthz", get(async || "ok"));
    for endpoint in endpoints() {
        let handler = async move |State(shared): State<Shared>, request: Request| {
            answer(shared, endpoint, request).await.unwrap_or_else(IntoResponse::into_response)
        };
        router = router.route(&endpoint.path(), post(handler));
    }
    router.with_state(Shared { admission, reader: Reader::new(limits) })
}

async fn answer(shared: Shared, endpoint: Endpoint, request: Request) -> Result<Response, HttpError> {
    let (head, body) = request.into_parts();
    check_content(&head.headers)?;
    let caller = traceparent(&head.headers);
    let body = shared.reader.read(body).await?;
    // Decoding a large object takes milliseconds, and a provider's rule may be slow or panic. A thread of its own keeps that
    // from other connections.
    let review = tokio::task::spawn_blocking(move || {
        // Moves the whole body, so that its reservations last until the response is complete.
        let body = body;
        shared.admission.answer(endpoint, &body.bytes, caller)
    });
    let reviewed = review.await.map_err(|_| {
        tracing::error!("a review panicked; report this bug with the log lines above");
        HttpError(StatusCode::INTERNAL_SERVER_ERROR, "the review failed".to_owned())
    })?;
    let json = reviewed.map_err(|error| HttpError(StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn check_content(headers: &HeaderMap) -> Result<(), HttpError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    if !content.eq_ignore_ascii_case("application/json") {
        let text = "the content type must be application/json";
        return Err(HttpError(StatusCode::UNSUPPORTED_MEDIA_TYPE, text.to_owned()));
    }
    // API servers do not compress. A compressed body could expand beyond the limits.
    if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
        return Err(HttpError(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed".to_owned()));
    }
    Ok(())
}

fn traceparent(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// Why a request has no `AdmissionReview` as a response.
#[derive(Debug)]
struct HttpError(StatusCode, String);

impl From<BodyError> for HttpError {
    fn from(error: BodyError) -> Self {
        let (status, text) = match error {
            BodyError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the body arrived too slowly"),
            BodyError::Broken => (StatusCode::BAD_REQUEST, "the body is incomplete"),
            BodyError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "too many requests; try again"),
        };
        Self(status, text.to_owned())
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let Self(status, text) = self;
        let retry = (status == StatusCode::SERVICE_UNAVAILABLE).then_some([(header::RETRY_AFTER, "1")]);
        (status, retry, text).into_response()
    }
}
