//! One connection, from its handshake to its end. Client errors are logged at debug level.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use axum::Router;
use bytes::Bytes;
use http::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::connection_state::ConnectionState;
use crate::limits::Limits;

/// The address of a client: an extension of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// What a connection needs of its port.
pub(super) struct Connection {
    pub(super) peer: Peer,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) state: Arc<ConnectionState>,
    /// Cancelled when the server stops.
    pub(super) stopping: CancellationToken,
}

impl Connection {
    /// Serves until the client ends the connection, a deadline passes, or the server stops.
    pub(super) async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Answers are small and written at once.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else { return self.requests(stream).await };
        let accepted = tokio::select! {
            biased;
            () = self.stopping.cancelled() => return,
            accepted = self.within_deadline(tls.accept(stream)) => accepted,
        };
        match accepted {
            Ok(Ok(stream)) => self.requests(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "failed to shake hands on a connection"),
            Err(why) => tracing::debug!(why, "closed a connection"),
        }
    }

    async fn requests<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(|request| answer(request, self.peer, self.router.clone(), self.state.clone()));
        let stream = TokioIo::new(ObservedStream { stream, state: self.state.clone() });
        let served = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(self.limits.head_size)
            .serve_connection(stream, service);
        let mut served = pin!(served);
        let ended = tokio::select! {
            biased;
            ended = self.within_deadline(served.as_mut()) => Some(ended),
            () = self.stopping.cancelled() => None,
            () = sleep(self.limits.lifetime.unwrap_or(Duration::MAX)) => None,
        };
        let ended = if let Some(ended) = ended {
            ended
        } else {
            served.as_mut().graceful_shutdown();
            timeout(self.limits.end, served).await.map_err(|_| "its request was still under way at the end")
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
            Err(why) => tracing::debug!(why, "closed a connection"),
        }
    }

    /// Polls until completion, or until the deadline of the current phase. Each poll may move the deadline.
    async fn within_deadline<T>(&self, mut future: impl Future<Output = T> + Unpin) -> Result<T, &'static str> {
        let mut timer = pin!(sleep_until(Instant::now()));
        poll_fn(|context| {
            if let Poll::Ready(ended) = Pin::new(&mut future).poll(context) {
                return Poll::Ready(Ok(ended));
            }
            let Some((deadline, why)) = self.state.deadline(&self.limits) else { return Poll::Pending };
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            timer.as_mut().poll(context).map(|()| Err(why))
        })
        .await
    }
}

async fn answer(
    request: Request<Incoming>,
    peer: Peer,
    router: Router,
    state: Arc<ConnectionState>,
) -> http::Result<http::Response<ObservedBody<axum::body::Body>>> {
    state.head_read(!request.body().is_end_stream());
    let mut request = request.map(|body| ObservedBody::new(body, state.clone(), ConnectionState::body_read));
    request.extensions_mut().insert(peer);
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    state.answered();
    Ok(response.map(|body| ObservedBody::new(body, state, ConnectionState::handed_over)))
}

/// A body that reports its end, or its earlier drop, to the state.
struct ObservedBody<B> {
    body: B,
    state: Arc<ConnectionState>,
    end: fn(&ConnectionState),
    is_ended: bool,
}

impl<B> ObservedBody<B> {
    fn new(body: B, state: Arc<ConnectionState>, end: fn(&ConnectionState)) -> Self {
        Self { body, state, end, is_ended: false }
    }

    fn end(&mut self) {
        if !mem::replace(&mut self.is_ended, true) {
            (self.end)(&self.state);
        }
    }
}

impl<B> Drop for ObservedBody<B> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ObservedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || (frame.is_ready() && self.body.is_end_stream()) {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports its reads and flushes to the state.
struct ObservedStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.state.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.state.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    /// An in-memory connection, on paused time.
    struct Running {
        client: DuplexStream,
        task: JoinHandle<()>,
        state: Arc<ConnectionState>,
        limits: Limits,
        begun: Instant,
    }

    fn open() -> Running {
        let router = Router::new()
            .route("/", get(|| async { "fine" }))
            .route("/large", get(|| async { "x".repeat(1 << 20) }))
            .route("/echo", post(|body: Bytes| async { body }));
        let (client, server) = duplex(1 << 10);
        let (begun, limits) = (Instant::now(), Limits::default());
        let state = Arc::new(ConnectionState::new(begun));
        let peer = Peer(([10, 0, 0, 1], 1).into());
        let stopping = CancellationToken::new();
        let connection = Connection { peer, router, limits, state: state.clone(), stopping };
        let task = tokio::spawn(connection.requests(server));
        Running { client, task, state, limits, begun }
    }

    impl Running {
        /// Sends a whole request without a body, and reads its answer.
        async fn ask(&mut self) {
            self.client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            let mut answer = vec![];
            while !answer.ends_with(b"fine") {
                assert_ne!(self.client.read_buf(&mut answer).await.unwrap(), 0);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200"));
        }

        /// Sends a byte every second. Returns how long the connection stayed open.
        async fn drip(self, bytes: &[u8]) -> Duration {
            let Self { mut client, task, .. } = self;
            let begun = Instant::now();
            for byte in bytes.iter().cycle() {
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
            task.await.unwrap();
            begun.elapsed()
        }
    }

    fn about(time: Duration) -> std::ops::RangeInclusive<Duration> {
        time..=time + Duration::from_secs(2)
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_a_deadline() {
        let silent = open();
        silent.task.await.unwrap();
        assert!(about(silent.limits.first_request).contains(&silent.begun.elapsed()), "nothing is sent");
        let mut idle = open();
        idle.ask().await;
        idle.task.await.unwrap();
        assert!(about(idle.limits.idle).contains(&idle.begun.elapsed()), "nothing more is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_moves_no_deadline() {
        let first = open();
        let limits = first.limits;
        assert!(about(limits.first_request).contains(&first.drip(b"x").await), "in the first head");
        let mut second = open();
        second.ask().await;
        assert!(about(limits.head).contains(&second.drip(b"x").await), "in a further head");
        let mut slow = open();
        slow.client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let Running { mut client, task, begun, .. } = slow;
        while client.read(&mut [0]).await.unwrap() > 0 && !task.is_finished() {
            sleep(Duration::from_secs(1)).await;
        }
        assert!(about(limits.answer).contains(&begun.elapsed()), "in an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_whole_request_ends_idleness() {
        let mut slow = open();
        let second = Duration::from_secs(1);
        sleep(second).await;
        slow.client.write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nfi").await.unwrap();
        sleep(second).await;
        assert_eq!(slow.state.idle_since(), Some(slow.begun), "a part of a body is no request");
        slow.client.write_all(b"ne").await.unwrap();
        let mut answer = vec![];
        while !answer.ends_with(b"fine") {
            slow.client.read_buf(&mut answer).await.unwrap();
        }
        assert_eq!(slow.state.idle_since(), Some(slow.begun + second * 2), "the answer is");
        slow.ask().await;
        assert!(!slow.task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_a_row_are_answered() {
        let mut pipelined = open();
        pipelined.client.write_all(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3)).await.unwrap();
        let mut answers = vec![];
        while answers.windows(4).filter(|part| part == b"fine").count() < 3 {
            pipelined.client.read_buf(&mut answers).await.unwrap();
        }
        sleep(pipelined.limits.head * 2).await;
        pipelined.ask().await;
    }
}
