//! What has to be there before anything can begin, told in one line each.

use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use nodewright_api::{
    API_VERSION,
    served::{OPENAPI_PATH, Served},
};

use tokio::time::Instant;

use crate::clusters::one_line;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PreflightError {
    #[error(
        "failed to reach the API server of the {cluster} cluster: {message}; check the server address in its kubeconfig"
    )]
    Unreachable { cluster: &'static str, message: String },
    #[error("the API server of the {cluster} cluster does not accept the credentials in its kubeconfig ({code})")]
    Refused { cluster: &'static str, code: StatusCode },
    #[error("the API server of the {cluster} cluster answered {code} to GET {path}")]
    Answer { cluster: &'static str, code: StatusCode, path: String },
    #[error(
        "the control cluster does not serve {missing} of {API_VERSION}: install the CRDs with `kubectl apply --server-side -k config/crd`"
    )]
    NoCrd { missing: String },
}

/// How long CRDs that were applied just now may take until the API server describes them.
const DESCRIBED_WITHIN: Duration = Duration::from_secs(15);

/// Looks what the control cluster serves; waits a little for CRDs that may have been applied a moment ago.
pub(crate) async fn control(client: &Client, agent: &HeaderValue) -> Result<Served, PreflightError> {
    let begun = Instant::now();
    let mut told = String::new();
    loop {
        match control_now(client, agent).await {
            Err(PreflightError::NoCrd { missing }) if begun.elapsed() < DESCRIBED_WITHIN => {
                if missing != told {
                    tracing::info!(%missing, "waiting for the CRDs");
                    told = missing;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            result => return result,
        }
    }
}

async fn control_now(client: &Client, agent: &HeaderValue) -> Result<Served, PreflightError> {
    let (code, body) = get(client, agent, "control", OPENAPI_PATH).await?;
    let served = match code {
        StatusCode::OK => Served::from_openapi(&serde_json::from_slice(&body).unwrap_or_default()),
        StatusCode::NOT_FOUND => Served::from_openapi(&serde_json::Value::Null),
        code => return Err(refused("control", code, OPENAPI_PATH.to_owned())),
    };
    if served.missing_kinds.is_empty() {
        Ok(served)
    } else {
        Err(PreflightError::NoCrd { missing: served.missing_kinds.join(", ") })
    }
}

/// Looks whether the target cluster can be talked to.
pub(crate) async fn target(client: &Client, agent: &HeaderValue) -> Result<(), PreflightError> {
    let path = "/api/v1".to_owned();
    match get(client, agent, "target", &path).await? {
        (StatusCode::OK, _) => Ok(()),
        (code, _) => Err(refused("target", code, path)),
    }
}

fn refused(cluster: &'static str, code: StatusCode, path: String) -> PreflightError {
    match code {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PreflightError::Refused { cluster, code },
        code => PreflightError::Answer { cluster, code, path },
    }
}

async fn get(
    client: &Client,
    agent: &HeaderValue,
    cluster: &'static str,
    path: &str,
) -> Result<(StatusCode, bytes::Bytes), PreflightError> {
    let failed = |message| PreflightError::Unreachable { cluster, message };
    let request = Request::get(path).header(header::USER_AGENT, agent).body(Body::empty());
    let request = request.map_err(|error| failed(error.to_string()))?;
    let sent = tokio::time::timeout(Duration::from_secs(10), client.send(request)).await;
    let response =
        sent.map_err(|_| failed("no answer within 10 s".to_owned()))?.map_err(|error| failed(one_line(&error)))?;
    let code = response.status();
    let body =
        Limited::new(response.into_body(), 4 << 20).collect().await.map_err(|error| failed(error.to_string()))?;
    Ok((code, body.to_bytes()))
}
