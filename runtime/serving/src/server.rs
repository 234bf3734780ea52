//! A listening port, its TLS, and the limit of open files for its connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::StatusCode;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::ResolvesServerCert;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::accept;
use crate::checks::plain;
use crate::limits::Limits;

/// Limit of a request's body, in bytes.
const BODY_LIMIT: usize = 64 << 10;
/// How long a handler may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}: {source}; choose another with {flag}")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    /// The system's error.
    pub source: io::Error,
}

/// A listening socket that is not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address; port 0 takes any free one. `flag` appears in the error message as the flag to change.
    pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await.and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        });
        listener.map_err(|source| ListenError { address, flag, source })
    }

    /// The address of the socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves operators until `stop` is cancelled, then answers requests in progress and returns within about a second.
    pub async fn serve(self, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
        let router = router.layer(DefaultBodyLimit::max(BODY_LIMIT)).layer(middleware::from_fn(limit_time));
        self.serve_within(Limits::default(), tls, router, stop.cancelled()).await;
    }

    /// Serves a router that limits the time and the bodies of its requests itself, until `stop` resolves.
    pub async fn serve_within(
        self,
        limits: Limits,
        tls: Option<TlsAcceptor>,
        router: Router,
        stop: impl Future<Output = ()> + Send,
    ) {
        accept::serve(self.listener, tls, router, limits, stop).await;
    }
}

/// A TLS 1.2 and 1.3 acceptor for HTTP/1.1. `certificates` selects the certificate of each handshake.
pub fn tls_acceptor(certificates: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Raises the soft limit of open files to the hard limit, as Go programs do. Each connection uses a file, and container
/// runtimes start with 1,024. Returns the limit; `None` means unlimited.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}

async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "the request took too long".to_owned()),
    }
}
