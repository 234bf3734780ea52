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
use crate::review::InvalidReview;

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

async fn answer(shared: Shared, endpoint: Endpoint, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    check_content(&head.headers)?;
    let caller = traceparent(&head.headers);
    let body = shared.reader.read(body).await.map_err(Problem::Body)?;
    // Decoding a large object takes milliseconds, and a provider's rule may be slow or panic. A thread of its own keeps that
    // from other connections.
    let review = tokio::task::spawn_blocking(move || {
        // Moves the whole body, so that its reservations last until the response is complete.
        let body = body;
        shared.admission.answer(endpoint, &body.bytes, caller)
    });
    let json = review.await.map_err(|_| Problem::Panic)?.map_err(Problem::Review)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn check_content(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    if !content.eq_ignore_ascii_case("application/json") {
        return Err(Problem::ContentType);
    }
    // API servers do not compress. A compressed body could expand beyond the limits.
    if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
        return Err(Problem::Encoding);
    }
    Ok(())
}

fn traceparent(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// Why a request has no `AdmissionReview` as a response.
#[derive(Debug)]
enum Problem {
    ContentType,
    Encoding,
    Body(BodyError),
    Review(InvalidReview),
    Panic,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::ContentType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json".to_owned())
            }
            Self::Encoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed".to_owned()),
            Self::Body(BodyError::TooLarge) => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large".to_owned()),
            Self::Body(BodyError::TooSlow) => (StatusCode::REQUEST_TIMEOUT, "the body arrived too slowly".to_owned()),
            Self::Body(BodyError::Broken) => (StatusCode::BAD_REQUEST, "the body is incomplete".to_owned()),
            Self::Body(BodyError::Busy) => {
                let retry = [(header::RETRY_AFTER, "1")];
                return (StatusCode::SERVICE_UNAVAILABLE, retry, "too many requests; try again").into_response();
            }
            Self::Review(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            Self::Panic => {
                tracing::error!("a review panicked; report this bug with the log lines above");
                (StatusCode::INTERNAL_SERVER_ERROR, "the review failed".to_owned())
            }
        };
        (status, text).into_response()
    }
}
