//! The accept loop of a cloud's HTTP server. An error of the service closes its connection without an answer, as a lost answer
//! does; axum has no way to say that.

use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1::Builder,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tower::{BoxError, Service};

/// The maximum number of connections. More connections wait. Each hung call holds one.
const CONNECTION_LIMIT: usize = 4_096;
/// The deadline for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves connections until this is dropped. Pending calls then get no answer.
pub async fn accept<S, B>(listener: TcpListener, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let mut connections: JoinSet<()> = JoinSet::new();
    let free = Arc::new(Semaphore::new(CONNECTION_LIMIT));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let service = service.clone();
                    connections.spawn(async move {
                        serve(stream, service).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Most likely there are no free file descriptors. Retry when connections have ended.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve<S, B>(stream: TcpStream, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Messages are small: without this, answers wait for acknowledgements.
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
