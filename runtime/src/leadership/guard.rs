//! Connections that send nothing once leadership has expired.
//!
//! An HTTP client passes requests to tasks of its own. After a stop of the process (`SIGSTOP`, a frozen container) they would send
//! what is queued, long after its leadership has expired. So the [`Guard`], below client and TLS, checks the clock where the
//! bytes leave.
//!
//! # Guarantees
//! * A guard sends nothing once leadership has *expired* ([`Leadership::has_lapsed`]). It works before leadership begins, and
//!   after its holder has ended it: a standby reads, and a process that stops releases its lease.
//!
//! # Caveats
//! * There is a short time between the check and the system call. Safety rests on names, versions, UIDs and client tokens.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower::{BoxError, Service, ServiceExt};

use super::Leadership;

impl Leadership {
    /// This connector for a `hyper-util` client, whose connections send nothing once this leadership has expired.
    pub fn connector<C>(
        &self,
        connector: C,
    ) -> impl Service<
        Uri,
        Response = impl Read + Write + Connection + Send + Unpin + use<C>,
        Error: Into<BoxError>,
        Future: Send + Unpin,
    > + Clone
    + Send
    + Sync
    + use<C>
    where
        C: Service<
                Uri,
                Response: Read + Write + Connection + Send + Unpin,
                Error: Into<BoxError>,
                Future: Send + Unpin,
            > + Clone
            + Send
            + Sync,
    {
        let leadership = self.clone();
        connector.map_response(move |stream| Guard { stream, leadership })
    }
}

struct Guard<S> {
    stream: S,
    leadership: Leadership,
}

impl<S: Unpin> Guard<S> {
    fn sending(&mut self) -> io::Result<Pin<&mut S>> {
        if self.leadership.has_lapsed() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the leadership of this process has expired"));
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl<S: Write + Unpin> Write for Guard<S> {
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

impl<S: Read + Unpin> Read for Guard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: Connection> Connection for Guard<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
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
    async fn arriving(leadership: Leadership, then: impl FnOnce()) -> (bool, u64) {
        let (url, count) = counting().await;
        let client = Client::builder(TokioExecutor::new()).build(leadership.connector(HttpConnector::new()));
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
        let leadership = Leadership::until(clock.clone(), Duration::from_secs(10));
        let wake = || clock.set(60);
        assert_eq!(arriving(leadership, wake).await, (false, 1));
    }

    #[tokio::test]
    async fn a_standby_and_one_that_has_ended_its_leadership_are_connected() {
        assert_eq!(arriving(Leadership::default(), || ()).await, (true, 2));
        let leadership = Leadership::unlimited();
        assert_eq!(arriving(leadership.clone(), || leadership.end()).await, (true, 2));
        assert!(leadership.is_over() && Leadership::default().is_over());
    }
}
