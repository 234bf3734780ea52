//! What has to be there before anything can begin, told in one line each. What may come by itself is waited for.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use nodewright_api::{
    API_VERSION,
    served::{OPENAPI_PATH, Served},
};
use nodewright_controllers::shared::schema::Schemas;
use parking_lot::Mutex;
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

/// How long an API server that answers may lack what it has to serve or to permit: CRDs that were applied just now are
/// not described yet, and one that has come up just now knows no roles yet.
const SETTLES_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks at the CRDs of a process that runs.
const SCHEMA_PERIOD: Duration = Duration::from_secs(30);
/// Between two lines about an API server that is away.
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl PreflightError {
    /// Whether the API server is away, for all that is known. One at a wrong address looks the same.
    fn is_away(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Answer { code, .. } => code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS,
            Self::Refused { .. } | Self::NoCrd { .. } => false,
        }
    }
}

/// What a process waits for before it can begin, for `/readyz`, until its own checks take over.
#[derive(Clone, Debug)]
pub(crate) struct Awaited(Arc<Mutex<Option<String>>>);

impl Awaited {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some("the clusters are not looked at yet".to_owned()))))
    }

    /// For a check of readiness.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.0.lock().clone().map_or(Ok(()), Err)
    }

    fn tell(&self, reason: String) {
        *self.0.lock() = Some(reason);
    }

    /// It has begun.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }
}

/// Looks what the control cluster has to serve. Waits for an API server that is away for as long as it is: a process that
/// ended instead would be started again and again, later each time, and come late when the API server is back.
pub(crate) async fn look(control: &Client, agent: &HeaderValue, awaited: &Awaited) -> Result<Served, PreflightError> {
    settled(awaited, || look_at_control(control, agent)).await
}

/// Says in the log that the target cluster cannot be talked to, until it can. Nothing else waits for it: what needs only the
/// control cluster runs, and each Machine waits until the Nodes have been listed.
pub(crate) async fn tell_of_target(target: Client, agent: HeaderValue) {
    let mut is_told = false;
    loop {
        match look_at_target(&target, &agent).await {
            Ok(()) if is_told => return tracing::info!("the API server of the target cluster answers"),
            Ok(()) => return,
            Err(error) => tracing::warn!("machines wait: {error}"),
        }
        is_told = true;
        tokio::time::sleep(TOLD_EVERY).await;
    }
}

/// Keeps `schemas` in step with what the control cluster serves: a gardenlet may put machine-controller-manager's CRDs over
/// ours, or an upgrade ours over those.
pub(crate) async fn follow_schemas(control: Client, agent: HeaderValue, first: Served, schemas: Schemas) {
    let mut known = first;
    loop {
        tokio::time::sleep(SCHEMA_PERIOD).await;
        match look_at_control(&control, &agent).await {
            Ok(served) if served != known => {
                tracing::info!(?served, "the CRDs have changed; statuses are written as they are described now");
                schemas.update(&served);
                known = served;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("cannot look at the CRDs: {error}"),
        }
    }
}

async fn settled<T>(awaited: &Awaited, look: impl AsyncFn() -> Result<T, PreflightError>) -> Result<T, PreflightError> {
    let (mut answered, mut told) = (None, None::<Instant>);
    loop {
        let error = match look().await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if error.is_away() {
            answered = None;
        } else if answered.get_or_insert_with(Instant::now).elapsed() >= SETTLES_WITHIN {
            return Err(error);
        }
        awaited.tell(error.to_string());
        if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            match &error {
                error if error.is_away() => tracing::warn!("waiting: {error}"),
                error => tracing::info!("looking again, as it may come by itself: {error}"),
            }
            told = Some(Instant::now());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn look_at_control(client: &Client, agent: &HeaderValue) -> Result<Served, PreflightError> {
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
async fn look_at_target(client: &Client, agent: &HeaderValue) -> Result<(), PreflightError> {
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
