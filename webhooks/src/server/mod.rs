//! The webhooks' HTTPS server.

mod body;
mod routes;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use nodewright_observability::trace::Spans;
use nodewright_runtime::leadership::{Clock, Leadership};
use nodewright_runtime::request::Connection;
use nodewright_serving::{self as serving, tls_acceptor};
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;

use crate::admission::{Admission, IdentityFields, ProviderSpecCheck};
use crate::certificates::CertificateSource;
use crate::certificates::directory::Directory;
use crate::certificates::manager::{CertificateManager, CertificateState, Source};
use crate::certificates::secret::SharedSecret;
use crate::configurations::Installation;
use crate::registration::{Registrar, Registration};
use crate::{USER_AGENT, WebhookError};

/// The options of a [`WebhookServer`].
#[derive(Clone)]
pub struct Options {
    /// The address to listen on. Port 0 takes a free one, see [`WebhookServer::address`].
    pub listen: SocketAddr,
    /// The source of the certificate.
    pub certificates: CertificateSource,
    /// The registration at the API server.
    pub registration: Registration,
    /// The installation whose objects are reviewed.
    pub installation: Installation,
    /// The API server with the Secret and the webhook configurations. The server sends its requests with [`USER_AGENT`], and
    /// whether or not this process leads.
    pub connection: Connection,
    /// The providers' rules of their classes.
    pub provider_specs: ProviderSpecCheck,
    /// The fields of their classes by which the providers identify VMs.
    pub identity: IdentityFields,
    /// Records the spans of admissions.
    pub spans: Spans,
    /// The clock for the renewal of certificates.
    pub clock: Arc<dyn Clock>,
    /// Limits for clients.
    pub limits: Limits,
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Options")
            .field("listen", &self.listen)
            .field("certificates", &self.certificates)
            .field("registration", &self.registration)
            .field("installation", &self.installation)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Limits for clients. The defaults suit an API server with its usual limit of 3 MiB for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections. A new one replaces the one that has been idle longest.
    pub connections: usize,
    /// Maximum time until the first request of a connection, including the TLS handshake.
    pub first_request: Duration,
    /// Maximum idle time of a connection. Longer than the 90 s after which API servers close idle connections, so that the
    /// server closes none while a request is on its way.
    pub idle: Duration,
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
    /// Maximum time to finish requests when the server stops.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            first_request: Duration::from_secs(5),
            idle: Duration::from_mins(2),
            body: Duration::from_secs(5),
            body_size: 8 << 20,
            memory: Duration::from_secs(2),
            small_bodies_size: 4 << 20,
            small_reviews_size: 12 << 20,
            large_bodies_size: 16 << 20,
            large_reviews_size: 32 << 20,
            end: Duration::from_secs(2),
        }
    }
}

impl Limits {
    fn serving(&self) -> serving::Limits {
        serving::Limits {
            connections: self.connections,
            first_request: self.first_request,
            idle: self.idle,
            head_size: 64 << 10,
            end: self.end,
            ..serving::Limits::default()
        }
    }
}

/// The webhooks' HTTPS server.
///
/// # Guarantees
///
/// * It serves TLS 1.2 and 1.3. The first handshake after a renewal has the new certificate.
/// * Within the [`Limits`], each request gets a response, or its connection is closed. Memory is bounded.
/// * A new connection replaces an idle or slow one, see [`serving`].
/// * A panic during a review fails only that request.
///
/// # Caveats
///
/// Clients are not authenticated, because an API server presents no certificate by default. A client that reaches the port
/// learns only the defaults and rules. Use a `NetworkPolicy` to restrict access.
pub struct WebhookServer {
    listener: TcpListener,
    address: SocketAddr,
    certificates: CertificateManager,
    tls: tokio_rustls::TlsAcceptor,
    routes: axum::Router,
    readiness: Readiness,
    limits: Limits,
}

impl fmt::Debug for WebhookServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WebhookServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl WebhookServer {
    /// Binds the address. [`WebhookServer::run`] serves it.
    pub async fn bind(options: Options) -> Result<Self, WebhookError> {
        let failed = |source| WebhookError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let connection =
            options.connection.as_agent(HeaderValue::from_static(USER_AGENT)).within(Leadership::unlimited());
        let source = match options.certificates {
            CertificateSource::Directory(path) => Source::Directory(Directory::new(path)),
            CertificateSource::Secret { namespace, name, hosts } => {
                Source::Secret(SharedSecret { connection: connection.clone(), namespace, name, hosts })
            }
        };
        let registrar = Registrar {
            connection,
            registration: options.registration,
            installation: options.installation,
            port: address.port(),
        };
        let certificates = CertificateManager::new(source, registrar, provider, options.clock.clone());
        let admission = Admission::new(options.provider_specs, options.identity, options.spans, options.clock.clone());
        Ok(Self {
            tls: tls_acceptor(certificates.state())?,
            readiness: Readiness { state: certificates.state(), clock: options.clock },
            routes: routes::router(admission, options.limits),
            limits: options.limits,
            listener,
            address,
            certificates,
        })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The readiness of the webhooks. Outlives the server.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// The server's certificate, for other ports of the process. Outlives the server.
    pub fn certificate(&self) -> ServedCertificate {
        ServedCertificate(self.certificates.state())
    }

    /// Serves, keeps the certificate valid and the webhooks registered, until `stop` resolves. Then finishes open requests
    /// within [`Limits::end`].
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { listener, certificates, tls, routes, limits, .. } = self;
        let serve = serving::serve(listener, tls, routes, limits.serving(), stop);
        tokio::select! {
            () = serve => {}
            () = certificates.run() => {}
        }
    }
}

/// The server's certificate, which changes with each renewal.
#[derive(Clone, Debug)]
pub struct ServedCertificate(Arc<CertificateState>);

impl ServedCertificate {
    /// The current certificate. `None` before there is one.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.certificate.load_full()
    }
}

/// Whether the webhooks are ready: they have a valid certificate and are registered.
#[derive(Clone)]
pub struct Readiness {
    state: Arc<CertificateState>,
    clock: Arc<dyn Clock>,
}

impl Readiness {
    /// Fails with the reason unless the webhooks are ready.
    pub fn check(&self) -> Result<(), String> {
        self.state.check(self.clock.wall())
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Readiness").field(&self.check()).finish()
    }
}
