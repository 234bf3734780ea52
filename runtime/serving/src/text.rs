//! Plain-text answers.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, StatusCode, header};

pub(crate) fn plain(status: StatusCode, text: String) -> Response {
    const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (NO_SNIFF, "nosniff")];
    (status, headers, text).into_response()
}
