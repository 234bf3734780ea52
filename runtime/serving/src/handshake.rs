//! The handshake of a connection before HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::ResolvesServerCert;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// Turns an accepted connection into one that speaks HTTP.
pub trait Handshake: Clone + Send + Sync + 'static {
    /// The stream that carries HTTP.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Performs the handshake on an accepted connection.
    fn shake(&self, stream: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// No handshake: HTTP without TLS.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Handshake for Plain {
    type Stream = TcpStream;

    async fn shake(&self, stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }
}

impl Handshake for TlsAcceptor {
    type Stream = TlsStream<TcpStream>;

    async fn shake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        self.accept(stream).await
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

/// The address of a client: an extension of each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);
