//! One accept loop for all ports of a process: HTTP, or HTTPS behind a [`Handshake`].
//!
//! # Guarantees
//!
//! - At most [`Limits::connections`] connections are open. At that limit a new connection is accepted and an idle one is
//!   closed: of the address with the most connections, the one that has been idle for the longest time.
//! - A connection is idle unless a whole request has arrived on it and is being answered. Single bytes keep no connection open.
//! - The handshake, the head of a request, the pause between two requests and the sending of an answer each have a deadline.
//! - When the server stops, it answers requests in progress, for at most [`Limits::end`].
//!
//! # Assumptions
//!
//! - Handlers limit the time in which they read a body and answer.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::connection;
use crate::handshake::{Handshake, Peer};
use crate::limits::Limits;
use crate::places::Places;
use crate::progress::Progress;

/// The pause after a failed accept, which usually means a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The log interval for a flood of connections.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Serves until `stop` resolves, then answers requests in progress. No connection outlives this future.
pub async fn serve<H: Handshake>(
    listener: TcpListener,
    handshake: H,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) {
    let mut connections = Connections::new(limits, listener.local_addr().ok());
    let (mut stop, stopping) = (pin!(stop), CancellationToken::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = connections.tasks.join_next_with_id() => {
                connections.forget(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if connections.make_room().await {
                    let peer = Peer(peer);
                    connections.open(peer, |progress| {
                        connection::run(
                            stream,
                            peer,
                            handshake.clone(),
                            router.clone(),
                            limits,
                            progress,
                            stopping.clone(),
                        )
                    });
                }
            }
            Err(error) => {
                tracing::warn!(address = ?connections.address, %error, "failed to accept a connection, retrying");
                connections.close_one();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.cancel();
    // Each connection ends by itself within its time limit.
    while connections.tasks.join_next().await.is_some() {}
}

/// The connections of one port.
struct Connections {
    limits: Limits,
    address: Option<SocketAddr>,
    tasks: JoinSet<()>,
    places: Places,
    /// How many connections were closed since the last log line, and when the next line may be logged.
    closed: (u64, Option<Instant>),
}

impl Connections {
    fn new(limits: Limits, address: Option<SocketAddr>) -> Self {
        Self { limits, address, tasks: JoinSet::new(), places: Places::default(), closed: (0, None) }
    }

    fn open<F>(&mut self, peer: Peer, run: impl FnOnce(Arc<Progress>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let progress = Arc::new(Progress::new(Instant::now()));
        let task = self.tasks.spawn(run(progress.clone()));
        self.places.insert(peer.0.ip().to_canonical(), task, progress);
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.places.remove(id);
    }

    /// Makes room for one more connection. Returns false if all connections are answering requests.
    async fn make_room(&mut self) -> bool {
        while self.tasks.len() >= self.limits.connections {
            if !self.close_one() {
                self.log("all connections are answering requests; closed a new one");
                return false;
            }
            self.log("too many connections; closed the one that was idle for the longest time");
            // The task ends at its next poll. Until then it uses memory.
            if let Some(ended) = self.tasks.join_next_with_id().await {
                self.forget(ended);
            }
        }
        true
    }

    /// Closes the connection to evict, if there is one.
    fn close_one(&mut self) -> bool {
        self.places.take_idle().inspect(AbortHandle::abort).is_some()
    }

    fn log(&mut self, what: &str) {
        let (count, next) = &mut self.closed;
        *count += 1;
        let now = Instant::now();
        if next.is_none_or(|next| next <= now) {
            tracing::warn!(address = ?self.address, limit = self.limits.connections, closed = *count, "{what}");
            self.closed = (0, Some(now + LOG_INTERVAL));
        }
    }
}
