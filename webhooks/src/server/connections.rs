//! Connections: accepted, bounded in number and time, ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::Limits;

/// How much of a request's head is endured.
const HEAD_SIZE: usize = 64 << 10;

/// How long to wait after the system refused to accept, as it does when files run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Serves until `stop`, then lets requests under way end.
pub(super) async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    routes: Router,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) {
    // A set, so that no connection outlives this future, however it ends.
    let (mut tasks, ending) = (JoinSet::new(), CancellationToken::new());
    let slots = Arc::new(Semaphore::new(limits.connections));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection to the webhooks");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            tracing::warn!(limit = limits.connections, "too many connections to the webhooks; closing a new one");
            continue;
        };
        while tasks.try_join_next().is_some() {}
        tasks.spawn(connection(stream, tls.clone(), routes.clone(), limits, ending.clone(), slot));
    }
    drop(listener);
    ending.cancel();
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(limits.end, all).await.is_err() {
        tracing::warn!(open = tasks.len(), "ending with requests to the webhooks under way");
    }
}

/// One connection, from the handshake to its end. The peer's mistakes are its own matter: they are told at debug level.
async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    routes: Router,
    limits: Limits,
    ending: CancellationToken,
    _slot: OwnedSemaphorePermit,
) {
    // Answers are small and written whole.
    let _ = stream.set_nodelay(true);
    let first = Instant::now() + limits.first_request;
    let shaken = tokio::select! {
        () = ending.cancelled() => return,
        shaken = timeout_at(first, tls.accept(stream)) => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => requests(stream, routes, limits, first, ending).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with the webhooks failed"),
        Err(_) => tracing::debug!("a TLS handshake with the webhooks took too long"),
    }
}

/// The requests of one connection. The first one has to be there at `first`.
async fn requests(
    stream: TlsStream<TcpStream>,
    routes: Router,
    limits: Limits,
    first: Instant,
    ending: CancellationToken,
) {
    let asked = Arc::new(AtomicBool::new(false));
    let service = {
        let asked = asked.clone();
        TowerToHyperService::new(routes.map_request(move |request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            request.map(Body::new)
        }))
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(HEAD_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let mut first = std::pin::pin!(sleep_until(first));
    let (mut is_waiting, mut is_ending) = (true, false);
    loop {
        tokio::select! {
            result = &mut served => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection to the webhooks broke");
                }
                return;
            }
            () = &mut first, if is_waiting => {
                is_waiting = false;
                if !asked.load(Ordering::Relaxed) {
                    return tracing::debug!("a connection to the webhooks asked nothing in time");
                }
            }
            () = ending.cancelled(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}
