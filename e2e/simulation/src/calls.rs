//! The connection from a manager to the cloud. Each call may meet a request_result.

use std::{
    future::pending,
    io,
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tokio::time::sleep;
use tower::Service;

use super::{
    adversary::{Adversary, Decision},
    schedule::RequestResult,
};
use nodewright_e2e_cloud::CloudService;

/// A manager's connection to the cloud.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) cloud: CloudService,
    pub(super) adversary: Adversary,
    /// The manager's name.
    pub(super) name: String,
}

impl Service<Request<Full<Bytes>>> for Calls {
    type Response = Response;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        self.clone().meet(request).boxed()
    }
}

impl Calls {
    async fn meet(mut self, request: Request<Full<Bytes>>) -> io::Result<Response> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let Decision { dead, request_result } = self.adversary.call(&self.name, request.method().as_str(), &path);
        if dead {
            return pending().await;
        }
        let Some(request_result) = request_result else {
            let answer = self.cloud.call(request).await;
            return self.deliver(answer).await;
        };
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        match request_result {
            RequestResult::CrashBefore => self.adversary.kill(&self.name),
            RequestResult::CrashAfter => {
                let call = self.cloud.call(request);
                self.adversary.kill(&self.name);
                drop(call.await);
            }
            RequestResult::Hang => {}
            RequestResult::HangAfter => drop(self.cloud.call(request).await),
            RequestResult::LoseAnswer => {
                drop(self.cloud.call(request).await);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            RequestResult::CommitLate(after) => {
                tokio::spawn(async move {
                    sleep(seconds(after)).await;
                    drop(self.cloud.call(request).await);
                });
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            RequestResult::AnswerLate(after) => {
                let answer = self.cloud.call(request).await;
                sleep(seconds(after)).await;
                return self.deliver(answer).await;
            }
            RequestResult::ArriveLate(after) => {
                sleep(seconds(after)).await;
                let answer = self.cloud.call(request).await;
                return self.deliver(answer).await;
            }
            RequestResult::Refuse(code) => return Ok(refusal(code)),
            RequestResult::RefuseAfter(code) => {
                drop(self.cloud.call(request).await);
                return Ok(refusal(code));
            }
        }
        pending().await
    }

    /// A killed manager gets no answer.
    async fn deliver(&self, answer: io::Result<Response>) -> io::Result<Response> {
        if self.adversary.is_alive(&self.name) { answer } else { pending().await }
    }
}

/// A refusal in the cloud's format.
fn refusal(status: u16) -> Response {
    let code = match status {
        409 => "Aborted",
        429 => "ResourceExhausted",
        503 => "Unavailable",
        504 => "DeadlineExceeded",
        _ => "Internal",
    };
    let body = json!({ "code": code, "message": "decided by the simulation" });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response
}
