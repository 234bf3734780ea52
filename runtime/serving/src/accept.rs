//! One accept loop for all ports of a process: HTTP or HTTPS.
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
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Peer};
use crate::connection_state::ConnectionState;
use crate::connections::Connections;
use crate::limits::Limits;

/// The pause after a failed accept, which usually means a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Serves until `stop` resolves, then answers requests in progress. No connection outlives this future.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) {
    let address = listener.local_addr().ok();
    let mut port = Port { limits, address, connections: Connections::default(), closed: (0, None) };
    let (mut stop, stopping) = (pin!(stop), CancellationToken::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(()) = port.connections.ended() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                if port.make_room().await {
                    let state = Arc::new(ConnectionState::new(Instant::now()));
                    let (peer, router, stopping) = (Peer(address), router.clone(), stopping.clone());
                    let connection = Connection { peer, router, limits, state: state.clone(), stopping };
                    port.connections.open(address.ip().to_canonical(), state, connection.run(stream, tls.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(address = ?port.address, %error, "failed to accept a connection, retrying");
                port.connections.close_idle();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.cancel();
    // Each connection ends by itself within its time limit.
    while port.connections.ended().await.is_some() {}
}

struct Port {
    limits: Limits,
    address: Option<SocketAddr>,
    connections: Connections,
    /// How many connections were closed since the last log line, and when the next line may be logged.
    closed: (u64, Option<Instant>),
}

impl Port {
    /// Makes room for one more connection. Returns false if all connections are answering requests.
    async fn make_room(&mut self) -> bool {
        while self.connections.len() >= self.limits.connections {
            if !self.connections.close_idle() {
                self.log("all connections are answering requests; closed a new one");
                return false;
            }
            self.log("too many connections; closed the one that was idle for the longest time");
            // The task ends at its next poll. Until then it uses memory.
            self.connections.ended().await;
        }
        true
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
