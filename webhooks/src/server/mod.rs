//! The server.

mod body;
mod routes;
mod tls;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use nodewright_observability::trace::Spans;
use nodewright_runtime::request::Connection;
use nodewright_runtime::term::{Clock, Term};
use nodewright_serving as serving;
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;

use crate::admission::{Admission, IdentityFields, ProviderSpecCheck};
use crate::certificates::CertificateSource;
use crate::certificates::directory::Directory;
use crate::certificates::keeper::{Keeper, Kept, Source};
use crate::certificates::secret::SharedSecret;
use crate::configurations::Installation;
use crate::registration::{Registrar, Registration};
use crate::{USER_AGENT, WebhookError};

/// What the server is made of.
#[derive(Clone)]
pub struct Options {
    /// Where to listen. Port 0 takes any free one; see [`WebhookServer::address`].
    pub listen: SocketAddr,
    /// Where the certificate is from.
    pub certificates: CertificateSource,
    /// What to tell the API server.
    pub registration: Registration,
    /// Whose objects are reviewed.
    pub installation: Installation,
    /// The API server with the Secret and the webhook configurations. The server's own requests go through it as
    /// [`USER_AGENT`], and without a term: a certificate is everybody's matter, not the leader's.
    pub connection: Connection,
    /// What the providers say about their classes.
    pub provider_specs: ProviderSpecCheck,
    /// By which fields of their classes the providers find VMs.
    pub identity: IdentityFields,
    /// Where the spans of admissions go.
    pub spans: Spans,
    /// By which certificates are renewed.
    pub clock: Arc<dyn Clock>,
    /// What is endured.
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

/// What the server endures of its clients. The defaults are for an API server with objects of its usual 3 MiB at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections are open at once. At that bound a new one takes the place of the longest idle.
    pub connections: usize,
    /// How long a connection may take until its first request is there, TLS included.
    pub first_request: Duration,
    /// How long a connection may be idle. Longer than the 90 s after which
    /// API servers close their idle connections, so that none is closed while a request is on its way.
    pub idle: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// How many bytes a body may have: two objects and an envelope.
    pub body_size: usize,
    /// How long a request may wait for memory; then it is asked to come again.
    pub memory: Duration,
    /// How many bytes all small bodies under way may have together.
    pub small_bodies_size: usize,
    /// How many bytes may be made of small bodies at once.
    pub small_reviews_size: usize,
    /// How many bytes all larger bodies under way may have together.
    pub large_bodies_size: usize,
    /// How many bytes may be made of larger bodies at once. No less than the largest review needs, see
    /// `admission::MOST_VALUES`.
    pub large_reviews_size: usize,
    /// How long requests under way may take when the server ends.
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
/// * It serves TLS 1.2 and later only. A certificate that was renewed is served from the next handshake on.
/// * Every request has an answer, or its connection an end, within the [`Limits`]; so memory is bounded too.
/// * Idle and slow connections make room for new ones (see [`serving`]).
/// * A panic while an object is judged costs that request, and nothing else.
///
/// # Caveats
///
/// * Clients are not asked who they are, as API servers do not say so unless they are configured to. Whoever reaches
///   the port can ask what the defaults are, and no more. A `NetworkPolicy` keeps others away.
pub struct WebhookServer {
    listener: TcpListener,
    address: SocketAddr,
    keeper: Keeper,
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
    /// Takes the address. Nothing is served before [`WebhookServer::run`].
    pub async fn bind(options: Options) -> Result<Self, WebhookError> {
        let failed = |source| WebhookError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let connection = options.connection.as_agent(HeaderValue::from_static(USER_AGENT)).within(Term::unlimited());
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
        let keeper = Keeper::new(source, registrar, provider.clone(), options.clock.clone());
        let admission = Admission::new(options.provider_specs, options.identity, options.spans, options.clock.clone());
        Ok(Self {
            tls: tls::acceptor(keeper.kept(), provider)?,
            readiness: Readiness { kept: keeper.kept(), clock: options.clock },
            routes: routes::router(admission, options.limits),
            limits: options.limits,
            listener,
            address,
            keeper,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the API server can call. Outlives the server.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// What it is served with, for other ports of the process. Outlives the server.
    pub fn certificate(&self) -> ServedCertificate {
        ServedCertificate(self.keeper.kept())
    }

    /// Serves, keeps the certificate valid and the webhooks registered, until `stop` resolves; then requests under way
    /// are answered, within [`Limits::end`].
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { listener, keeper, tls, routes, limits, .. } = self;
        let serve = serving::serve(listener, tls, routes, limits.serving(), stop);
        tokio::select! {
            () = serve => {}
            () = keeper.run() => {}
        }
    }
}

/// The certificate of the webhooks, which is renewed.
#[derive(Clone, Debug)]
pub struct ServedCertificate(Arc<Kept>);

impl ServedCertificate {
    /// That of this moment, once there is one.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.certificate.load_full()
    }
}

/// Whether the webhooks can be called: there is a certificate, it is valid, and the API server was told of it.
#[derive(Clone)]
pub struct Readiness {
    kept: Arc<Kept>,
    clock: Arc<dyn Clock>,
}

impl Readiness {
    /// If not, why.
    pub fn check(&self) -> Result<(), String> {
        self.kept.check(self.clock.wall())
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Readiness").field(&self.check()).finish()
    }
}
