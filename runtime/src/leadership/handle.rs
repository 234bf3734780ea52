//! A handle for leadership that is created before the lease is acquired: for clients, and connections for writes.
//!
//! An HTTP client passes requests to tasks of its own, which own the connections. If the process is stopped meanwhile
//! (`SIGSTOP`, a frozen container), these tasks would send the queued requests when it wakes, long after its leadership has
//! expired, and the caller could not prevent it. Therefore the [`LeadershipGuard`], below the client and TLS, checks the clock
//! where the bytes leave.
//!
//! # Guarantees
//! * Before leadership begins, [`LeadershipHandle`] gives no right to write.
//! * A [`LeadershipGuard`] sends nothing once leadership has *expired* ([`Leadership::has_lapsed`]). It works before leadership
//!   begins, and after its holder has ended it: a standby reads, and a process that stops releases its lease.
//!
//! # Caveats
//! * Bytes that the kernel has accepted are sent, and there is a short time between the check and the system call. Safety rests
//!   on names, versions, UIDs and client tokens.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower::{Service, ServiceExt, util::MapResponse};

use super::term::Leadership;

/// The leadership of a process, once it has begun. All clones share it. For one [`crate::manager::Manager`].
#[derive(Clone, Debug, Default)]
pub struct LeadershipHandle(Arc<OnceLock<Leadership>>);

impl From<Leadership> for LeadershipHandle {
    fn from(term: Leadership) -> Self {
        Self(Arc::new(term.into()))
    }
}

impl LeadershipHandle {
    /// Begins the leadership. If it has begun before, the first one stays.
    pub(crate) fn begin(&self, term: Leadership) -> &Leadership {
        self.0.get_or_init(|| term)
    }

    /// How long the right to write lasts; zero before leadership begins.
    pub fn remaining(&self) -> Duration {
        self.0.get().map_or(Duration::ZERO, Leadership::remaining)
    }

    /// A connector for a `hyper-util` client, for an API server or a cloud. `inner` must return plain streams, so that TLS runs
    /// on top of the guard.
    pub fn connector<C: Service<Uri>>(
        &self,
        inner: C,
    ) -> MapResponse<C, impl FnOnce(C::Response) -> LeadershipGuard<C::Response> + Clone + Send + Sync + 'static> {
        let leading = self.clone();
        inner.map_response(move |stream| LeadershipGuard { stream, leading })
    }

    fn has_lapsed(&self) -> bool {
        self.0.get().is_some_and(Leadership::has_lapsed)
    }
}

/// A connection that sends nothing once leadership has expired. See the [module](self).
#[derive(Debug)]
pub struct LeadershipGuard<S> {
    stream: S,
    leading: LeadershipHandle,
}

impl<S> LeadershipGuard<S> {
    /// The stream to send through.
    fn sending(&mut self) -> io::Result<Pin<&mut S>>
    where
        S: Unpin,
    {
        if self.leading.has_lapsed() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the term of this process has run out"));
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl<S: Write + Unpin> Write for LeadershipGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sending()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sending()?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sending()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Read + Unpin> Read for LeadershipGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: Connection> Connection for LeadershipGuard<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU64, Ordering},
    };

    use bytes::Bytes;
    use futures::poll;
    use http::{Request, Response};
    use http_body_util::Empty;
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::{
        client::legacy::{Client, connect::HttpConnector},
        rt::{TokioExecutor, TokioIo},
    };
    use tokio::net::TcpListener;

    use super::*;
    use crate::testing::HandClock;

    /// A server that counts requests; its address and the count.
    async fn counting() -> (String, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let counted = counted.clone();
                let answer = service_fn(move |_| {
                    counted.fetch_add(1, Ordering::SeqCst);
                    async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        (url, count)
    }

    /// How many requests arrive if `then` runs after the second request is queued and before its connection sends it.
    async fn arriving(leading: LeadershipHandle, then: impl FnOnce()) -> (bool, u64) {
        let (url, count) = counting().await;
        let client = Client::builder(TokioExecutor::new()).build(leading.connector(HttpConnector::new()));
        let request = || Request::get(&url).body(Empty::<Bytes>::new()).unwrap();
        client.request(request()).await.expect("a connection is made, and kept");
        // No other task runs meanwhile.
        let mut second = Box::pin(client.request(request()));
        assert!(poll!(&mut second).is_pending());
        then();
        (second.await.is_ok(), count.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn what_a_sleeping_process_has_queued_is_not_sent_when_it_wakes() {
        let clock = Arc::new(HandClock::default());
        let term = Leadership::until(clock.clone(), Duration::from_secs(10));
        let wake = || clock.set(60);
        assert_eq!(arriving(term.into(), wake).await, (false, 1));
    }

    #[tokio::test]
    async fn who_stands_by_or_has_ended_its_term_is_connected() {
        assert_eq!(arriving(LeadershipHandle::default(), || ()).await, (true, 2));
        let term = Leadership::unlimited();
        assert_eq!(arriving(term.clone().into(), || term.end()).await, (true, 2));
        assert!(
            LeadershipHandle::from(term).remaining().is_zero() && LeadershipHandle::default().remaining().is_zero()
        );
    }
}
