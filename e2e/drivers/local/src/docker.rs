//! The requests of docker's Engine API that the driver needs, over the daemon's Unix socket.
//!
//! The paths have no version: a daemon then answers in its newest one. All fields used here are in every version since 1.41
//! (Docker 20.10), the first one with private cgroup namespaces.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::rt::{Read, Write};
use hyper_util::{
    client::legacy::{self, connect::Connection},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use nodewright_runtime::{error::with_causes, leadership::Leadership};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tower::{BoxError, Service, ServiceExt, service_fn, util::BoxCloneSyncService};

/// The maximum size of an answer. A container in a list has some kilobytes.
const ANSWER_LIMIT: usize = 16 << 20;
/// The maximum length of the daemon's own text in an error.
const EXCERPT: usize = 300;

/// What a container is created from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NewContainer {
    pub hostname: String,
    pub image: String,
    pub tty: bool,
    pub labels: BTreeMap<&'static str, String>,
    pub volumes: Value,
    pub host_config: Value,
}

/// A container as `inspect` shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Container {
    pub id: String,
    pub state: State,
    pub config: Config,
}

/// The state of a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    /// `created`, `running`, `exited`, `removing` and so on.
    pub status: String,
}

/// The configuration of a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Config {
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
}

impl Container {
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.config.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// A container as a list shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listed {
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// In seconds since 1970.
    #[serde(default)]
    pub created: i64,
    #[serde(default)]
    pub state: String,
}

/// A client of one daemon.
#[derive(Clone, Debug)]
pub(super) struct Docker {
    socket: Arc<Path>,
    http: BoxCloneSyncService<Request<Full<Bytes>>, Response<hyper::body::Incoming>, legacy::Error>,
}

impl Docker {
    /// It sends nothing once this leadership has expired.
    pub(super) fn new(socket: &Path, leadership: &Leadership) -> Self {
        let path: Arc<Path> = socket.into();
        let connector = service_fn(move |_: Uri| {
            let path = Arc::clone(&path);
            Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
        });
        Self::connected_by(connector, socket, leadership)
    }

    /// A client whose connections are this connector's.
    pub(super) fn connected_by<C>(connector: C, socket: &Path, leadership: &Leadership) -> Self
    where
        C: Service<
                Uri,
                Response: Read + Write + Connection + Send + Unpin + 'static,
                Error: Into<BoxError>,
                Future: Send + Unpin + 'static,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build::<_, Full<Bytes>>(leadership.connector(connector));
        Self { socket: socket.into(), http: BoxCloneSyncService::new(http) }
    }

    /// Creates a container, or fails with [`Code::AlreadyExists`].
    pub(super) async fn create(&self, name: &str, container: &NewContainer) -> Result<()> {
        let body = json!(container).to_string().into();
        self.send(Method::POST, &format!("/containers/create?name={}", escaped(name)), body).await.map(drop)
    }

    /// Unpacks an archive into the file system of a container.
    pub(super) async fn upload(&self, id: &str, archive: Vec<u8>) -> Result<()> {
        self.send(Method::PUT, &format!("/containers/{}/archive?path=/", escaped(id)), archive.into()).await.map(drop)
    }

    pub(super) async fn start(&self, id: &str) -> Result<()> {
        self.send(Method::POST, &format!("/containers/{}/start", escaped(id)), Bytes::new()).await.map(drop)
    }

    /// Kills a container and deletes it with its volumes. If it is being deleted already, that is a success.
    pub(super) async fn remove(&self, id: &str) -> Result<()> {
        let path = format!("/containers/{}?force=true&v=true", escaped(id));
        match self.send(Method::DELETE, &path, Bytes::new()).await {
            Err(error) if matches!(error.code, Code::NotFound | Code::AlreadyExists) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The container of a name or an id, if there is one.
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<Container>> {
        match self.get(&format!("/containers/{}/json", escaped(name))).await {
            Ok(container) => Ok(Some(container)),
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All containers with a label of this value, running or not.
    pub(super) async fn list(&self, key: &str, value: &str) -> Result<Vec<Listed>> {
        let filters = json!({"label": [format!("{key}={value}")]}).to_string();
        self.get(&format!("/containers/json?all=true&filters={}", escaped(&filters))).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = self.send(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body).map_err(|error| {
            DriverError::new(
                Code::Internal,
                format!("failed to GET {path}: docker's answer cannot be decoded: {error}"),
            )
        })
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        // It has no secret: these are only in bodies.
        let what = format!("{method} {path}");
        let content = if method == Method::PUT { "application/x-tar" } else { "application/json" };
        let request = Request::builder().method(method).uri(format!("http://docker{path}"));
        let request = request.header(header::CONTENT_TYPE, content).body(Full::new(body));
        let request =
            request.map_err(|error| DriverError::new(Code::InvalidArgument, format!("failed to {what}: {error}")))?;
        let response = self.http.clone().oneshot(request).await.map_err(|error| self.lost(&what, &error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
        let body = body.map_err(|error: BoxError| unknown(&what, &with_causes(error.as_ref())))?.to_bytes();
        // Not modified: a container that runs was to be started.
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            Ok(body)
        } else {
            Err(refusal(&what, status, &body))
        }
    }

    fn lost(&self, what: &str, error: &legacy::Error) -> DriverError {
        let causes = with_causes(error);
        if !error.is_connect() {
            return unknown(what, &causes);
        }
        let message = format!(
            "failed to {what}: docker cannot be reached at {}: {causes}; is it running, and may this process use its socket?",
            self.socket.display()
        );
        DriverError::new(Code::Unavailable, message)
    }
}

fn unknown(what: &str, why: &str) -> DriverError {
    DriverError::new(Code::Unknown, format!("failed to {what}: the answer was lost: {why}; it may have had an effect"))
}

#[derive(Deserialize)]
struct Failure {
    message: String,
}

fn refusal(what: &str, status: StatusCode, body: &[u8]) -> DriverError {
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT => Code::AlreadyExists,
        status if status.is_client_error() => Code::InvalidArgument,
        // Whatever is broken on this computer may be mended: try again soon.
        _ => Code::Unavailable,
    };
    let message = serde_json::from_slice(body).map_or_else(|_| status.to_string(), |Failure { message }| message);
    let message: String = message.chars().filter(|character| !character.is_control()).take(EXCERPT).collect();
    DriverError::new(code, format!("failed to {what}: docker answers {}: {message}", status.as_u16()))
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
