//! What comes before HTTP on a connection.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Turns an accepted connection into one that speaks HTTP.
pub trait Handshake: Clone + Send + Sync + 'static {
    /// The stream that carries HTTP.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Shakes hands on an accepted connection.
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

/// The address of a client: an extension of each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);
