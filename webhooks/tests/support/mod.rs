//! A server as in production, with an API server in process, and a client that trusts the registered bundle.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use nodewright_api::MachineClass;
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_observability::metrics::Metrics;
use nodewright_observability::trace::Spans;
use nodewright_runtime::leadership::{Leadership, boot_clock};
use nodewright_runtime::request::Connection;
use nodewright_testing::api_server::ApiServer;
use nodewright_webhooks::{CertificateSource, Limits, Options, Readiness, Registration, WebhookServer};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanProcessor};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A timeout for everything that a busy machine may delay.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct Running {
    pub(crate) port: u16,
    pub(crate) readiness: Readiness,
    pub(crate) spans: Arc<Collected>,
    pub(crate) cluster: ApiServer,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Collected(pub Mutex<Vec<SpanData>>);

impl SpanProcessor for Collected {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}
    fn on_end(&self, span: SpanData) {
        self.0.lock().push(span);
    }
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Running {
    /// Starts a server and waits until it is ready.
    pub(crate) async fn start(limits: Limits) -> Self {
        Self::start_with(limits, |spans| Spans::new(spans, "test", 1.0)).await
    }

    /// A server that exports no traces.
    pub(crate) async fn start_without_traces() -> Self {
        Self::start_with(Limits::default(), |_| Spans::default()).await
    }

    async fn start_with(limits: Limits, exported: impl FnOnce(Arc<Collected>) -> Spans) -> Self {
        let cluster = ApiServer::new();
        let spans = Arc::new(Collected::default());
        let options = Options { spans: exported(spans.clone()), ..options(&cluster, &spans, limits) };
        let server = WebhookServer::bind(options).await.unwrap();
        let (port, readiness) = (server.address().port(), server.readiness());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
        let running = Self { port, readiness, spans, cluster, stop, task };
        running.until_ready().await;
        running
    }

    async fn until_ready(&self) {
        let ready = async {
            while (self.readiness)().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(TEST_TIMEOUT, ready).await;
        assert!(waited.is_ok(), "{:?}", (self.readiness)());
    }

    /// Stops it, and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(TEST_TIMEOUT, self.task).await.unwrap().unwrap();
    }

    /// The authorities in the registered configurations.
    pub(crate) fn bundle(&self) -> Vec<u8> {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/nodewright-fleet";
        let configuration = self.cluster.object(path).unwrap();
        let bundle = &configuration["webhooks"][0]["clientConfig"]["caBundle"];
        serde_json::from_value::<ByteString>(bundle.clone()).unwrap().0
    }

    pub(crate) async fn tcp(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    pub(crate) async fn tls(&self) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&self.bundle()).map(Result::unwrap));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect("127.0.0.1".try_into().unwrap(), self.tcp().await).await.unwrap()
    }

    /// A client with its own connection.
    pub(crate) async fn client(&self) -> Client {
        let (sender, connection) = http1::handshake(TokioIo::new(self.tls().await)).await.unwrap();
        tokio::spawn(connection);
        Client(sender)
    }
}

/// A client that keeps its connection.
pub(crate) struct Client(http1::SendRequest<Full<Bytes>>);

impl Client {
    pub(crate) async fn post(
        &mut self,
        path: &str,
        body: impl Into<Bytes>,
        headers: &[(&str, &str)],
    ) -> (StatusCode, Bytes) {
        let mut request = Request::post(path).header("host", "webhook");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<(StatusCode, Bytes)> {
        self.0.ready().await?;
        let response: Response<_> = self.0.send_request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

fn options(cluster: &ApiServer, spans: &Arc<Collected>, limits: Limits) -> Options {
    let metrics = Arc::new(Metrics::new());
    let agent = HeaderValue::from_static("test");
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        certificates: CertificateSource::Secret {
            namespace: "nodewright-system".to_owned(),
            name: "nodewright-webhook".to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
        },
        registration: Registration::Whole { host: "127.0.0.1".to_owned() },
        namespace: "fleet".to_owned(),
        connection: Connection::new(cluster.client(), agent, Leadership::unlimited(), 10, metrics),
        provider_specs: Arc::new(check),
        identity: Arc::new(|_| vec!["cluster".to_owned()]),
        extensions: Some(Arc::from(["usbguard".to_owned()])),
        spans: Spans::new(spans.clone(), "test", 1.0),
        clock: boot_clock(),
        limits,
    }
}

/// A provider that requires a cluster, and panics or does not answer if the spec demands it.
fn check(class: &MachineClass) -> Result<Vec<FieldError>, String> {
    let spec: Value = class.provider_spec.parse().unwrap_or_default();
    assert_ne!(spec["panic"], true, "a provider with a defect");
    if spec["silent"] == true {
        return Err("the driver has not answered".to_owned());
    }
    if !spec.is_object() || spec["cluster"].is_string() {
        return Ok(vec![]);
    }
    let path = FieldPath::new("providerSpec").child("cluster");
    Ok(vec![FieldError::required(path, "must be the name of the cluster")])
}
