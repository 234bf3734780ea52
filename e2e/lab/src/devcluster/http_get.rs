//! HTTP requests to the manager.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use super::manager::ManagerError;

/// The deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Status and body of the answer. The error is one line.
pub(crate) async fn get(url: &str) -> Result<(StatusCode, String), String> {
    match tokio::time::timeout(TIMEOUT, ask(url)).await {
        Ok(answer) => answer.map_err(|error| format!("{url} does not answer: {error}")),
        Err(_) => Err(format!("{url} does not answer within {TIMEOUT:?}")),
    }
}

/// The body of an answer with status 200.
pub(crate) async fn text(url: String) -> Result<String, ManagerError> {
    match get(&url).await {
        Ok((StatusCode::OK, text)) => Ok(text),
        Ok((code, text)) => Err(ManagerError::Endpoint { url, reason: format!("{code}: {text}") }),
        Err(reason) => Err(ManagerError::Endpoint { url, reason }),
    }
}

async fn ask(url: &str) -> Result<(StatusCode, String), Box<dyn std::error::Error + Send + Sync>> {
    // A new connection each time: an old one may lead to a process that ended.
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(Request::get(url).body(Empty::new())?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
