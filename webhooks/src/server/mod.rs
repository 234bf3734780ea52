//! The webhooks' HTTPS server.

mod body;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodewright_observability::trace::Spans;
use nodewright_runtime::leadership::Clock;
use nodewright_runtime::request::Connection;
use nodewright_serving::{self as serving, ListenError, Server, tls_acceptor};
use rustls::server::ResolvesServerCert;

use crate::admission::{Admission, IdentityFields, ProviderSpecCheck};
use crate::certificates::CertificateSource;
use crate::certificates::directory::Directory;
use crate::certificates::manager::{CertificateManager, Source};
use crate::certificates::secret::SharedSecret;
use crate::registration::{Registrar, Registration};

/// The options of a [`WebhookServer`].
#[derive(Clone)]
pub struct Options {
    /// The address to listen on. Port 0 takes a free one, see [`WebhookServer::address`].
    pub listen: SocketAddr,
    /// The source of the certificate.
    pub certificates: CertificateSource,
    /// The registration at the API server.
    pub registration: Registration,
    /// The namespace whose objects are reviewed.
    pub namespace: String,
    /// The API server with the Secret and the webhook configurations, which are written whether or not this process leads: its
    /// leadership has to be unlimited.
    pub connection: Connection,
    /// The providers' rules of their classes.
    pub provider_specs: ProviderSpecCheck,
    /// The fields of their classes by which the providers identify VMs.
    pub identity: IdentityFields,
    /// The extensions of the operating system that a MachineConfig may ask for. `None`: any.
    pub extensions: Option<Arc<[String]>>,
    /// Records the spans of admissions.
    pub spans: Spans,
    /// The clock for the renewal of certificates.
    pub clock: Arc<dyn Clock>,
    /// Limits for clients.
    pub limits: Limits,
}

/// Fails with the reason unless the webhooks have a valid certificate and are registered.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Limits for clients. The defaults suit an API server with its usual limit of 3 MiB for an object.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Limits of the connections.
    pub port: serving::Limits,
    /// Maximum time of a body.
    pub body: Duration,
    /// Maximum bytes of a body: two objects and an envelope.
    pub body_size: usize,
    /// Maximum time that a request waits for memory. The client then gets a 503.
    pub memory: Duration,
    /// Maximum bytes of all small bodies.
    pub small_bodies_size: usize,
    /// Maximum bytes of the objects that are decoded from small bodies.
    pub small_reviews_size: usize,
    /// Maximum bytes of all larger bodies.
    pub large_bodies_size: usize,
    /// Maximum bytes of the objects that are decoded from larger bodies. At least what the largest review needs, see
    /// `admission::MAX_VALUES`.
    pub large_reviews_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            port: serving::Limits {
                connections: 1_024,
                first_request: Duration::from_secs(5),
                // Longer than the 90 s after which API servers close idle connections, so that the server closes none while a
                // request is on its way.
                idle: Duration::from_mins(2),
                head_size: 64 << 10,
                lifetime: None,
                end: Duration::from_secs(2),
                ..serving::Limits::default()
            },
            body: Duration::from_secs(5),
            body_size: 8 << 20,
            memory: Duration::from_secs(2),
            small_bodies_size: 4 << 20,
            small_reviews_size: 12 << 20,
            large_bodies_size: 16 << 20,
            large_reviews_size: 32 << 20,
        }
    }
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum BindError {
    /// The address cannot be bound.
    Listen(#[from] ListenError),
    /// TLS cannot be set up.
    Tls(#[from] rustls::Error),
}

/// The webhooks' HTTPS server.
///
/// # Guarantees
///
/// * It serves TLS 1.2 and 1.3. The first handshake after a renewal has the new certificate.
/// * Within the [`Limits`], each request gets a response, or its connection is closed. Memory is bounded.
/// * A panic during a review fails only that request.
///
/// # Caveats
///
/// Clients are not authenticated, because an API server presents no certificate by default. A client that reaches the port
/// learns only the defaults and rules. Use a `NetworkPolicy` to restrict access.
pub struct WebhookServer {
    server: Server,
    certificates: CertificateManager,
    tls: tokio_rustls::TlsAcceptor,
    routes: axum::Router,
    readiness: Readiness,
    limits: Limits,
}

impl WebhookServer {
    /// Binds the address. [`WebhookServer::run`] serves it.
    pub async fn bind(options: Options) -> Result<Self, BindError> {
        let server = Server::bind(options.listen, "--webhook-address or --webhook-port").await?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let connection = options.connection;
        let source = match options.certificates {
            CertificateSource::Directory(path) => Source::Directory(Directory::new(path)),
            CertificateSource::Secret { namespace, name, hosts } => {
                Source::Secret(SharedSecret { connection: connection.clone(), namespace, name, hosts })
            }
        };
        let registrar = Registrar {
            connection,
            registration: options.registration,
            namespace: options.namespace,
            port: server.address().port(),
        };
        let certificates = CertificateManager::new(source, registrar, provider, options.clock.clone());
        let state = certificates.state();
        let (clock, provider_specs, identity) = (options.clock.clone(), options.provider_specs, options.identity);
        let extensions = options.extensions;
        let admission = Admission { provider_specs, identity, extensions, spans: options.spans, clock };
        Ok(Self {
            tls: tls_acceptor(state.clone())?,
            readiness: Arc::new(move || state.check(options.clock.wall())),
            routes: routes::router(admission, options.limits),
            limits: options.limits,
            server,
            certificates,
        })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The readiness check of the webhooks. Outlives the server.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// The server's certificate, for other ports of the process. Outlives the server.
    pub fn certificate(&self) -> Arc<dyn ResolvesServerCert> {
        self.certificates.state()
    }

    /// Serves, keeps the certificate valid and the webhooks registered, until `stop` resolves. Then finishes open requests
    /// within [`serving::Limits::end`].
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = self.server.serve_within(self.limits.port, Some(self.tls), self.routes, stop) => {}
            () = self.certificates.run() => {}
        }
    }
}
