//! Answers as bytes on the wire.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use jiff::{Timestamp, fmt::rfc2822};
use kube::core::Status;
use serde_json::{Map, Value};

use super::refusal::Refusal;
use crate::stand_in;

/// The body of an answer: complete, or a stream of events.
pub type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

pub(super) fn json(code: u16, value: &Value) -> Response<AnswerBody> {
    with_body(code, Full::new(Bytes::from(value.to_string())).boxed_unsync())
}

pub(super) fn text(body: &'static str) -> Response<AnswerBody> {
    with_body(200, Full::new(Bytes::from_static(body.as_bytes())).boxed_unsync())
}

pub(super) fn stream(lines: impl Stream<Item = Bytes> + Send + 'static) -> Response<AnswerBody> {
    let mut frames = lines.map(|line| Ok(Frame::data(line))).boxed();
    let frames = stream::poll_fn(move |context| stand_in::within(|| frames.poll_next_unpin(context)));
    with_body(200, StreamBody::new(frames).boxed_unsync())
}

pub(super) fn refusal(refused: &Refusal) -> Response<AnswerBody> {
    let details = refused.status.details.as_ref();
    let retry_after = details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let mut body = status(&refused.status);
    if let Some(token) = &refused.resume {
        body["metadata"]["continue"] = token.as_str().into();
    }
    let mut answer = json(refused.status.code, &body);
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

/// A Status with the fields that kube's type leaves out.
pub(super) fn status(status: &Status) -> Value {
    let mut body = serde_json::to_value(status).unwrap_or_default();
    body["kind"] = "Status".into();
    body["apiVersion"] = "v1".into();
    body["metadata"] = Value::Object(Map::new());
    body
}

/// Sets the header `Date`, as a Go server does.
pub(super) fn dated(mut answer: Response<AnswerBody>, now: Timestamp) -> Response<AnswerBody> {
    let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).ok();
    if let Some(date) = date.and_then(|date| header::HeaderValue::try_from(date).ok()) {
        answer.headers_mut().insert(header::DATE, date);
    }
    answer
}

fn with_body(code: u16, body: AnswerBody) -> Response<AnswerBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}
