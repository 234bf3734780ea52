//! Checks of the clusters before the controllers start. Each error is one line with what to do.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use nodewright_api::{
    API_VERSION,
    machine_config::{DISCOVERY_PATH, GROUP, missing_kinds},
    served::{OPENAPI_PATH, Served},
};
use nodewright_controllers::shared::schema::Schemas;
use nodewright_runtime::{error::one_line, json};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PreflightError {
    #[error(
        "failed to reach the API server of the {cluster} cluster: {message}; check the server address in its kubeconfig"
    )]
    Unreachable { cluster: &'static str, message: String },
    #[error("the API server of the {cluster} cluster does not accept the credentials in its kubeconfig ({code})")]
    Refused { cluster: &'static str, code: StatusCode },
    #[error("the API server of the {cluster} cluster answered {code} to GET {path}")]
    Status { cluster: &'static str, code: StatusCode, path: &'static str },
    #[error(
        "the control cluster does not serve {missing} of {API_VERSION}: install the CRDs with `kubectl apply --server-side -k config/crd`"
    )]
    NoCrd { missing: String },
}

/// How long a reachable API server may fail the check. It describes new CRDs after a delay, and has no roles right after its
/// start.
const GRACE: Duration = Duration::from_secs(15);
const PERIOD: Duration = Duration::from_secs(1);
/// The period of the check of the CRDs after the start.
const SCHEMA_PERIOD: Duration = Duration::from_secs(30);
const LOG_PERIOD: Duration = Duration::from_secs(10);

impl PreflightError {
    /// Whether the API server is unavailable. One at a wrong address looks the same.
    fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { code, .. } => code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS,
            Self::Refused { .. } | Self::NoCrd { .. } => false,
        }
    }
}

/// The readiness check of the start: an error until the process has started.
pub(crate) type Startup = Arc<Mutex<Result<(), String>>>;

/// Waits until the control cluster serves the CRDs. Waits forever for an unavailable API server: the kubelet would restart a
/// process that exits with an increasing delay.
pub(crate) async fn wait_for_crds(
    control: &Client,
    agent: &HeaderValue,
    startup: &Startup,
) -> Result<Served, PreflightError> {
    let (mut answered, mut logged) = (None, None::<Instant>);
    loop {
        let error = match check_control(control, agent).await {
            Ok(served) => return Ok(served),
            Err(error) => error,
        };
        if error.is_unavailable() {
            answered = None;
        } else if answered.get_or_insert_with(Instant::now).elapsed() >= GRACE {
            return Err(error);
        }
        *startup.lock() = Err(error.to_string());
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_PERIOD) {
            match &error {
                error if error.is_unavailable() => tracing::warn!("waiting: {error}"),
                error => tracing::info!("retrying: {error}"),
            }
            logged = Some(Instant::now());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Logs that the target cluster is unreachable, until it is reachable. Controllers of the control cluster run meanwhile, and
/// each Machine waits until the Nodes are listed.
pub(crate) async fn log_target(target: Client, agent: HeaderValue) {
    let mut is_logged = false;
    loop {
        match get(&target, &agent, "target", "/api/v1").await {
            Ok(_) if is_logged => return tracing::info!("the API server of the target cluster answers"),
            Ok(_) => return,
            Err(error) => tracing::warn!("machines wait: {error}"),
        }
        is_logged = true;
        tokio::time::sleep(LOG_PERIOD).await;
    }
}

/// Updates `schemas` when the CRDs of the control cluster change. A gardenlet may replace ours by machine-controller-manager's,
/// and an upgrade may replace those by ours.
pub(crate) async fn follow_schemas(control: Client, agent: HeaderValue, first: Served, schemas: Schemas) {
    let mut known = first;
    loop {
        tokio::time::sleep(SCHEMA_PERIOD).await;
        match check_control(&control, &agent).await {
            Ok(served) if served != known => {
                tracing::info!(?served, "the CRDs have changed; statuses follow the new schemas");
                schemas.update(&served);
                known = served;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("failed to check the CRDs: {error}"),
        }
    }
}

/// The kinds of node configuration that a cluster does not serve.
pub(crate) async fn missing_machine_config_kinds(
    target: &Client,
    agent: &HeaderValue,
) -> Result<Vec<&'static str>, PreflightError> {
    let discovery = match get(target, agent, "target", DISCOVERY_PATH).await {
        Ok(body) => json::from_slice(&body).unwrap_or_default(),
        Err(PreflightError::Status { code: StatusCode::NOT_FOUND, .. }) => Value::Null,
        Err(error) => return Err(error),
    };
    Ok(missing_kinds(&discovery))
}

/// Logs once that the target cluster serves the kinds of node configuration, which it did not at the start.
pub(crate) async fn log_machine_config(target: Client, agent: HeaderValue) {
    loop {
        tokio::time::sleep(SCHEMA_PERIOD).await;
        if missing_machine_config_kinds(&target, &agent).await.is_ok_and(|missing| missing.is_empty()) {
            return tracing::warn!(
                "the target cluster serves {GROUP} now: restart this process to run the controllers of node configuration"
            );
        }
    }
}

async fn check_control(client: &Client, agent: &HeaderValue) -> Result<Served, PreflightError> {
    let document = match get(client, agent, "control", OPENAPI_PATH).await {
        Ok(body) => json::from_slice(&body).unwrap_or_default(),
        Err(PreflightError::Status { code: StatusCode::NOT_FOUND, .. }) => Value::Null,
        Err(error) => return Err(error),
    };
    let served = Served::from_openapi(&document);
    if served.missing_kinds.is_empty() {
        Ok(served)
    } else {
        Err(PreflightError::NoCrd { missing: served.missing_kinds.join(", ") })
    }
}

/// The body of a successful response.
async fn get(
    client: &Client,
    agent: &HeaderValue,
    cluster: &'static str,
    path: &'static str,
) -> Result<bytes::Bytes, PreflightError> {
    let failed = |message| PreflightError::Unreachable { cluster, message };
    let request = Request::get(path).header(header::USER_AGENT, agent).body(Body::empty());
    let request = request.map_err(|error| failed(error.to_string()))?;
    let sent = tokio::time::timeout(Duration::from_secs(10), client.send(request)).await;
    let response =
        sent.map_err(|_| failed("no response within 10 s".to_owned()))?.map_err(|error| failed(one_line(&error)))?;
    let code = response.status();
    let body =
        Limited::new(response.into_body(), 4 << 20).collect().await.map_err(|error| failed(error.to_string()))?;
    match code {
        StatusCode::OK => Ok(body.to_bytes()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PreflightError::Refused { cluster, code }),
        code => Err(PreflightError::Status { cluster, code, path }),
    }
}
