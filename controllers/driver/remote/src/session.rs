//! The connection to the driver: one at a time, renewed when it ends.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use nodewright_driver::ProviderRequests;
use nodewright_driver_protocol::{self as protocol, Info, MESSAGE_LIMIT, SERVICE, v1};
use nodewright_runtime::{error::with_causes, leadership::Leadership};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tower::{BoxError, ServiceExt, service_fn};

/// How long the driver may take until it has said what it is, and for each answer about its health.
const GREETING: Duration = Duration::from_secs(5);
/// The pause after an attempt to connect that failed.
const RETRY: Duration = Duration::from_millis(100);
/// The pause between two questions about the driver's health, and about its requests to the provider.
const HEALTH: Duration = Duration::from_secs(5);

pub(crate) type Client = v1::driver_client::DriverClient<Channel>;
pub(crate) type Health = Result<(), String>;

/// A connection to a driver that has said what it is.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) info: Arc<Info>,
    /// Counts the sessions: the same driver may be another version in the next one.
    pub(crate) number: u64,
    health: HealthClient<Channel>,
    /// Cancelled when the connection ends.
    ended: CancellationToken,
}

/// The current session, for those who make calls.
#[derive(Clone)]
pub(crate) struct Link {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(crate) health: watch::Receiver<Health>,
    /// The requests to the provider, as the driver has counted them last.
    pub(crate) requests: watch::Receiver<Vec<ProviderRequests>>,
}

impl Link {
    /// The session, if there is one.
    pub(crate) fn open(&self) -> Option<Arc<Session>> {
        self.sessions.borrow().clone()
    }

    /// The session, as soon as there is one within this time.
    pub(crate) async fn session(&self, within: Duration) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.clone();
        let is_open = |open: &Option<Arc<Session>>| open.as_ref().is_some_and(|open| !open.ended.is_cancelled());
        let open = timeout(within, sessions.wait_for(is_open)).await;
        open.ok()?.ok()?.clone()
    }

    /// What the driver of the first session has said of itself.
    pub(crate) async fn first(&self) -> Arc<Info> {
        let mut sessions = self.sessions.clone();
        match sessions.wait_for(Option::is_some).await.map(|open| open.clone()) {
            Ok(Some(session)) => session.info.clone(),
            // The keeper ends with the process only.
            _ => std::future::pending().await,
        }
    }

    /// Why there is no session.
    pub(crate) fn reason(&self) -> String {
        self.health.borrow().clone().err().unwrap_or_else(|| "it has just ended".to_owned())
    }
}

/// Keeps a session open, and follows the driver's health.
pub(crate) struct Keeper {
    socket: PathBuf,
    leadership: Leadership,
    sessions: watch::Sender<Option<Arc<Session>>>,
    health: watch::Sender<Health>,
    requests: watch::Sender<Vec<ProviderRequests>>,
    /// Notified of each answer, whatever it says.
    answers: Arc<Notify>,
}

impl Keeper {
    pub(crate) fn new(socket: PathBuf, leadership: Leadership, answers: Arc<Notify>) -> (Link, Self) {
        let waiting = Err(format!("the driver at {} has not answered yet", socket.display()));
        let ((sessions, seen), (health, reported)) = (watch::channel(None), watch::channel(waiting));
        let (requests, counted) = watch::channel(vec![]);
        let link = Link { sessions: seen, health: reported, requests: counted };
        (link, Self { socket, leadership, sessions, health, requests, answers })
    }

    pub(crate) async fn run(self) {
        let (mut first, mut number) = (None::<Arc<Info>>, 0);
        let begun = Instant::now();
        loop {
            // Asked for first: it may be bound after the connection has failed.
            let is_unbound = !self.socket.exists();
            let opened = timeout(GREETING, open(&self.socket, &self.leadership, number)).await;
            let opened = opened.unwrap_or_else(|_| Err(format!("it has not answered GetInfo within {GREETING:?}")));
            match opened.and_then(|session| same_as(first.as_deref(), session)) {
                Ok(session) => {
                    first.get_or_insert_with(|| session.info.clone());
                    number += 1;
                    self.serve(session).await;
                }
                // It starts at the same moment as this process, and has not bound its socket yet.
                Err(_) if first.is_none() && begun.elapsed() < GREETING && is_unbound => {}
                Err(why) => self.report(Err(format!("the driver at {} is away: {why}", self.socket.display()))),
            }
            sleep(RETRY).await;
        }
    }

    /// Publishes the session until it ends.
    async fn serve(&self, session: Session) {
        let (ended, session) = (session.ended.clone(), Arc::new(session));
        tracing::info!(provider = session.info.provider, socket = %self.socket.display(), "connected to the driver");
        self.answers.notify_one();
        self.report(Ok(()));
        self.sessions.send_replace(Some(session.clone()));
        ended.run_until_cancelled(self.follow_health(&session)).await;
        self.sessions.send_replace(None);
        self.report(Err(format!("the driver at {} is away: it has closed the connection", self.socket.display())));
    }

    async fn follow_health(&self, session: &Session) {
        loop {
            if session.info.counts_requests {
                self.count_requests(session).await;
            }
            sleep(HEALTH).await;
            let answer = timeout(GREETING, session.check()).await;
            if answer.is_ok() {
                self.answers.notify_one();
            }
            let silent = |_| Err(format!("the driver has not answered within {GREETING:?} whether it is healthy"));
            self.report(answer.unwrap_or_else(silent));
        }
    }

    /// Keeps the counts that are known if there is no answer: they are for metrics alone.
    async fn count_requests(&self, session: &Session) {
        match timeout(GREETING, session.requests()).await {
            Ok(Ok(counted)) => drop(self.requests.send_replace(counted)),
            Ok(Err(why)) => tracing::debug!("the driver does not count its requests: {why}"),
            Err(_) => tracing::debug!("the driver has not counted its requests within {GREETING:?}"),
        }
    }

    /// Sets the health, and logs its changes.
    fn report(&self, health: Health) {
        self.health.send_if_modified(|known| {
            if *known == health {
                return false;
            }
            if let Err(why) = &health {
                tracing::warn!("{why}");
            } else if known.is_err() {
                tracing::info!("the driver is healthy");
            }
            *known = health;
            true
        });
    }
}

impl Session {
    /// Lets calls that begin wait for the next session. Those that are under way go on.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    async fn check(&self) -> Health {
        let asked = HealthCheckRequest { service: SERVICE.to_owned() };
        match self.health.clone().check(asked).await {
            Err(status) if status.code() == Code::Unimplemented => Ok(()),
            Err(status) => Err(format!("the driver does not report its health: {}", status.code())),
            Ok(answer) if answer.get_ref().status() == ServingStatus::Serving => Ok(()),
            Ok(answer) => Err(format!("the driver reports {}", answer.get_ref().status().as_str_name())),
        }
    }

    async fn requests(&self) -> Result<Vec<ProviderRequests>, String> {
        let counted = self.client.clone().get_provider_requests(v1::GetProviderRequestsRequest {}).await;
        let counted = counted.map_err(|status| format!("GetProviderRequests fails with {}", status.code()))?;
        protocol::decode_requests(counted.into_inner()).map_err(|what| format!("it answers with {what}"))
    }
}

/// Connects, and asks what driver it is.
async fn open(socket: &Path, leadership: &Leadership, number: u64) -> Result<Session, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
    let ended = CancellationToken::new();
    let stream = Watched { stream, _ended: ended.clone().drop_guard() };
    // One connection and no other: what the next one leads to has to say first what it is.
    let once = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let connector = service_fn(move |_: http::Uri| {
        let stream = once.lock().take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(stream)
    });
    let channel = Endpoint::from_static("http://driver")
        .connect_with_connector(leadership.connector(connector).map_err(Into::<BoxError>::into))
        .await
        .map_err(|error| with_causes(&error))?;
    let mut client =
        Client::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT).max_encoding_message_size(MESSAGE_LIMIT);
    let info = client.get_info(v1::GetInfoRequest {}).await;
    let info = info.map_err(|status| format!("GetInfo fails with {}", status.code()))?;
    let info = Info::decode(info.into_inner()).map_err(|error| error.to_string())?;
    let health = HealthClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    Ok(Session { client, info: Arc::new(info), number, health, ended })
}

/// Refuses a driver whose VMs are not those of the first one.
fn same_as(first: Option<&Info>, session: Session) -> Result<Session, String> {
    let identity = |info: &Info| (info.provider.clone(), info.provider_id_prefix.clone(), info.identity.clone());
    match first {
        Some(first) if identity(first) != identity(&session.info) => Err(format!(
            "it is another driver than before: {:?} with provider ids {}… and the identity {:?}, not {:?} with {}… and {:?}; \
             restart this process if that is meant",
            session.info.provider,
            session.info.provider_id_prefix,
            session.info.identity,
            first.provider,
            first.provider_id_prefix,
            first.identity,
        )),
        _ => Ok(session),
    }
}

/// A stream whose end is noticed, also when no call is under way.
struct Watched {
    stream: UnixStream,
    _ended: DropGuard,
}

impl Connection for Watched {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
