//! A port for operators.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::StatusCode;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::accept;
use crate::handshake::{Handshake, Plain};
use crate::limits::Limits;
use crate::text::plain;

/// Limit of a request's body, in bytes.
const BODY_LIMIT: usize = 64 << 10;
/// How long a handler may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const LIMITS: Limits = Limits {
    connections: 128,
    first_request: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    head: Duration::from_secs(5),
    head_size: 16 << 10,
    answer: Duration::from_secs(30),
    lifetime: Some(Duration::from_mins(10)),
    end: Duration::from_secs(1),
};

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process uses the port.
    #[error("failed to listen on {address}: address already in use; choose another with {flag}")]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// Probably a port below 1024.
    #[error("failed to listen on {address}: permission denied; choose a port above 1023 with {flag}")]
    NotPermitted {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// Any other error.
    #[error("failed to listen on {address}: {source}; choose another with {flag}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// The system's error.
        source: io::Error,
    },
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
        listener.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address, flag },
            io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address, flag },
            _ => ListenError::Other { address, flag, source },
        })
    }

    /// The address of the socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP until `stop` is cancelled, then answers requests in progress and returns within about a second.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        self.serve_with(Plain, router, stop).await;
    }

    /// The same after a handshake, such as TLS.
    pub async fn serve_with(self, handshake: impl Handshake, router: Router, stop: CancellationToken) {
        let router = router.layer(DefaultBodyLimit::max(BODY_LIMIT)).layer(middleware::from_fn(limit_time));
        accept::serve(self.listener, handshake, router, LIMITS, stop.cancelled()).await;
    }
}

async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "the request took too long".to_owned()),
    }
}
